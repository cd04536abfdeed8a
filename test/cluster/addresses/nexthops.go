package addresses

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/discovery/v1"
)

// routes maps each address to the nodes that it is reached by.
type routes map[netip.Addr][]netip.Addr

// nextHops returns the routes to all addresses. An address without a node gets no route, so that
// its clients are told that it is unreachable instead of waiting in vain.
func nextHops(given assignment, services []*corev1.Service, endpoints listers.EndpointSliceLister, nodes []*corev1.Node) (routes, error) {
	found := routes{}
	for _, s := range services {
		addrs := given[s.UID]
		if len(addrs) == 0 {
			continue
		}
		takes := func(*corev1.Node) bool { return true }
		if isLocal(s) {
			selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: s.Name})
			mine, err := endpoints.EndpointSlices(s.Namespace).List(selector)
			if err != nil {
				return nil, err
			}
			local := localNodes(mine)
			takes = func(n *corev1.Node) bool { return local[n.Name] }
		}
		for _, addr := range addrs {
			hops := hopsOf(nodes, familyOf(addr), takes)
			if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP && isLocal(s) {
				// A cloud's load balancer would keep each client on one node; a router chooses per
				// connection.
				hops = hops[:min(1, len(hops))]
			}
			if len(hops) > 0 {
				found[addr] = hops
			}
		}
	}
	return found, nil
}

func isLocal(s *corev1.Service) bool {
	return s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// localNodes returns the names of the nodes that would pass a health check of the Service: those
// with a ready endpoint. If no endpoint is ready, those with a terminating endpoint that still
// serves take its place.
func localNodes(endpoints []*discoveryv1.EndpointSlice) map[string]bool {
	ready, ending := map[string]bool{}, map[string]bool{}
	for _, slice := range endpoints {
		for _, e := range slice.Endpoints {
			if e.NodeName == nil {
				continue
			}
			switch {
			case e.Conditions.Ready == nil || *e.Conditions.Ready:
				ready[*e.NodeName] = true
			case isTrue(e.Conditions.Serving) && isTrue(e.Conditions.Terminating):
				ending[*e.NodeName] = true
			}
		}
	}
	if len(ready) == 0 {
		return ending
	}
	return ready
}

func isTrue(condition *bool) bool { return condition != nil && *condition }

// hopsOf returns the addresses of the ready nodes that accept traffic from outside.
func hopsOf(nodes []*corev1.Node, family corev1.IPFamily, takes func(*corev1.Node) bool) []netip.Addr {
	var hops []netip.Addr
	for _, n := range nodes {
		if !isReady(n) || !takes(n) {
			continue
		}
		if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; excluded {
			continue
		}
		for _, a := range n.Status.Addresses {
			addr, err := netip.ParseAddr(a.Address)
			if addr = addr.Unmap(); a.Type == corev1.NodeInternalIP && err == nil && familyOf(addr) == family {
				hops = append(hops, addr)
				break
			}
		}
	}
	slices.SortFunc(hops, netip.Addr.Compare)
	return slices.Compact(hops)
}

func isReady(node *corev1.Node) bool {
	at := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	return at >= 0 && node.Status.Conditions[at].Status == corev1.ConditionTrue
}
