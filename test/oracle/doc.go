// Package oracle checks the choice of endpoints against kube-proxy's. Random Services and
// EndpointSlices go through the Kubernetes packages that kube-proxy is made of, and through ours,
// and both must arrive at the same frontends, policies and backends for this node.
//
// It is a separate module so that Kubernetes itself does not become a dependency of the agent.
package oracle
