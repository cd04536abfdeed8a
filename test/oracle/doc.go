// Package oracle holds the choice of endpoints to what kube-proxy would choose. Random Services and EndpointSlices go
// through the packages of Kubernetes that kube-proxy is made of, and through ours, and both must come to the same
// frontends, policies and backends for this node.
//
// It is a module of its own so that Kubernetes itself does not become a dependency of the agent.
package oracle
