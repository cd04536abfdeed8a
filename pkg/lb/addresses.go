package lb

import (
	"net/netip"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// addrs are the addresses of a Service that it is allowed to have.
type addrs struct {
	cluster, loadBalancer, external []netip.Addr
}

// count returns how many addresses of a family there are.
func (a *addrs) count(family model.Family) (n int) {
	for _, list := range [][]netip.Addr{a.cluster, a.loadBalancer, a.external} {
		for _, addr := range list {
			if model.FamilyOf(addr) == family {
				n++
			}
		}
	}
	return n
}

func (c *Compiler) addrs(service *model.Service, wanted *Wanted) addrs {
	return addrs{c.clusterIPs(service, wanted), c.loadBalancerIPs(service, wanted), c.externalIPs(service, wanted)}
}

// clusterIPs leaves out what an interface of this node has. Something on the node answers there on
// purpose, such as a DNS cache, so that is no mistake. Who wonders why a Service is not balanced
// should still be able to find out.
func (c *Compiler) clusterIPs(service *model.Service, wanted *Wanted) (list []netip.Addr) {
	for _, addr := range service.ClusterIPs {
		if c.local(addr) {
			wanted.problem(model.ClusterIPOnNode, "clusterIP %s is left to the node: one of its devices has that address, so a process there answers, "+
				"such as a DNS cache", addr)
			continue
		}
		list = append(list, addr)
	}
	return list
}

func (c *Compiler) loadBalancerIPs(service *model.Service, wanted *Wanted) []netip.Addr {
	if c.facts.Claims == nil {
		return service.LoadBalancerIPs
	}
	var list []netip.Addr
	for _, addr := range service.LoadBalancerIPs {
		refusal := c.facts.Claims.RefusedLoadBalancerIP(service, addr)
		if !c.allows(refusal, wanted, "LoadBalancerIPReserved", "load balancer address", addr) {
			continue
		}
		list = append(list, addr)
		if other, ok := c.facts.Claims.ExternalClaimant(service.Name, addr); ok {
			wanted.problem(model.LoadBalancerIPClaimed, "load balancer address %s is also among the externalIPs of %s, where it is ignored", addr, other)
		}
	}
	return list
}

func (c *Compiler) externalIPs(service *model.Service, wanted *Wanted) []netip.Addr {
	if len(service.ExternalIPs) == 0 {
		return nil
	}
	if c.facts.ExternalIPs == ExternalIPsDeny {
		wanted.problem("ExternalIPsDenied", "externalIPs are ignored: the agent runs with --external-ips=deny")
		return nil
	}
	if c.facts.Claims == nil {
		return service.ExternalIPs
	}
	var list []netip.Addr
	for _, addr := range service.ExternalIPs {
		if c.allows(c.facts.Claims.RefusedExternalIP(service.Name, addr), wanted, "ExternalIPReserved", "externalIP", addr) {
			list = append(list, addr)
		}
	}
	return list
}

// allows reports whether a Service may have an address on this node. Where addresses of nodes are
// allowed, each node serves its own: other nodes leave packets to it alone.
func (c *Compiler) allows(refusal model.Refusal, wanted *Wanted, reason, field string, addr netip.Addr) bool {
	switch {
	case refusal.Why == "":
		return true
	case refusal.Node != "" && c.facts.NodeExternalIPs:
		return refusal.Node == c.facts.Node.Name
	case refusal.Node != "":
		wanted.problem(reason, "%s %s is ignored: it is %s; only agents with --node-external-ips=true serve addresses of nodes", field, addr, refusal.Why)
	default:
		wanted.problem(reason, "%s %s is ignored: it is %s", field, addr, refusal.Why)
	}
	return false
}

// mayOpen reports whether a node port is in the cluster's range. The API server allocates no other,
// but a manifest may ask for any port, and the node's own servers listen on those outside.
func (c *Compiler) mayOpen(nodePort uint16) bool {
	r := c.facts.NodePorts
	return r.Last == 0 || r.First <= nodePort && nodePort <= r.Last
}

func (c *Compiler) checkNodePorts(service *model.Service, wanted *Wanted) {
	check := func(field string, port uint16) {
		if port != 0 && !c.mayOpen(port) {
			wanted.problem("NodePortOutOfRange", "%s %d is not served: it is not in --nodeport-range, %s, and the node's own servers may need it",
				field, port, c.facts.NodePorts)
		}
	}
	for i := range service.Ports {
		check("nodePort", service.Ports[i].NodePort)
	}
	check("healthCheckNodePort", service.HealthCheckNodePort)
}

// tunnels names the ports of model.NodesOnly.
const tunnels = "UDP 8472 for pods, UDP 6081 for direct server return"

// reserved reports whether nobody may take an address and port. A node receives the tunnels of other
// nodes there itself: a frontend would take what they send, and with it the traffic of all their
// pods. Where externalIPs may be addresses of nodes, an API server may be at one of them.
func (c *Compiler) reserved(kind uint32, addr netip.Addr, port uint16, protocol model.Protocol) bool {
	why := ""
	switch {
	case model.NodesOnly(port, protocol):
		if addr.IsUnspecified() || c.facts.IsNode != nil && !addr.IsLoopback() && c.facts.IsNode(addr) {
			why = "a node receives the tunnel of the other nodes there (" + tunnels + ")"
		}
	case (kind == maps.ExternalIP || kind == maps.ExternalOnly) && protocol == model.TCP && c.facts.Claims != nil:
		if c.facts.Claims.IsServer(netip.AddrPortFrom(addr, port)) {
			why = "an API server of the cluster answers there"
		}
	}
	if why != "" {
		c.wanted.problem("PortReserved", "%s/%s is not served: %s; use another port", netip.AddrPortFrom(addr, port), protocol, why)
	}
	return why != ""
}
