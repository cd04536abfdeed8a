package policyoracle

import (
	"slices"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
)

// cyclonus is its matcher, which knows NetworkPolicies only.
type cyclonus struct {
	policy *matcher.Policy
	state  *state
}

func newCyclonus(s *state) *cyclonus {
	return &cyclonus{matcher.BuildNetworkPolicies(false, s.policies), s}
}

// peer describes an address. A pod that has ended or is in the host's network is none.
func (c *cyclonus) peer(addr string) (*matcher.TrafficPeer, *corev1.Pod) {
	out := &matcher.TrafficPeer{IP: addr}
	pod := c.state.holder(addr)
	if pod != nil {
		out.Internal = &matcher.InternalPeer{PodLabels: pod.Labels, Namespace: pod.Namespace, NamespaceLabels: c.state.namespace(pod.Namespace).Labels}
	}
	return out, pod
}

// accepts judges a packet. The name of its port is the one that the destination has for it.
func (c *cyclonus) accepts(p probe) bool {
	src, _ := c.peer(p.src)
	dst, pod := c.peer(p.dst)
	traffic := &matcher.Traffic{Source: src, Destination: dst, ResolvedPort: p.port, Protocol: p.protocol}
	if pod != nil {
		ports := pod.Spec.Containers[0].Ports
		at := slices.IndexFunc(ports, func(port corev1.ContainerPort) bool {
			return int(port.ContainerPort) == p.port && port.Protocol == p.protocol
		})
		if at >= 0 {
			traffic.ResolvedPortName = ports[at].Name
		}
	}
	return c.policy.IsTrafficAllowed(traffic).IsAllowed()
}
