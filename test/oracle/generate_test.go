package oracle

import (
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// generator makes random states. It makes only objects that an API server accepts now or accepted
// in the past; for others kube-proxy's behavior is undefined, or it crashes. Three more things are
// left out:
//
//   - Addresses that only we refuse as frontends, such as the unspecified one, and weights, which only we have.
//   - Two mentions of an address in different slices that only the order of the slices could decide between, see state.ambiguity.
//   - A slice that moves to another Service: Kubernetes then uses it for both.
type generator struct {
	*rand.Rand
	before *state // the previous state, nil for the first
}

// chance returns true in the given percentage of calls.
func (g *generator) chance(percent int) bool { return g.IntN(100) < percent }

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

// some returns up to n of the values, possibly with repeats.
func some[T any](g *generator, n int, from ...T) []T {
	var out []T
	for range g.IntN(n + 1) {
		out = append(out, pick(g, from...))
	}
	return out
}

func (g *generator) node() node { return node{self, pick(g, "a", "a", "b", "")} }

// next returns a state. Some states keep the Service or the slices of the previous one.
func (g *generator) next() *state {
	s := &state{}
	switch {
	case g.before != nil && g.chance(15):
		s.service = g.before.service
	default:
		s.service = g.service()
	}
	switch {
	case g.before != nil && g.chance(15):
		s.slices = g.before.slices
	default:
		s.slices = g.slices(s.service)
	}
	for try := 0; ; try++ {
		a, b, found := s.ambiguity()
		if !found {
			break
		}
		g.reconcileMentions(s, a, b, try > 8)
	}
	g.before = s
	return s
}

// reconcileMentions makes two mentions of an address say the same, or has the second terminate. Where that
// does not converge, because a slice contradicts itself, it drops the second.
func (g *generator) reconcileMentions(s *state, a, b occurrence, drop bool) {
	first, second := s.at(a), s.at(b)
	switch {
	case drop:
		slice := s.slices[b.slice]
		slice.Endpoints = slices.Delete(slice.Endpoints, b.endpoint, b.endpoint+1)
	case running(first) && g.chance(50):
		second.Conditions.Terminating = new(true)
	default:
		second.Conditions, second.NodeName, second.Hints = first.Conditions, first.NodeName, first.Hints
	}
}

// The addresses that states draw from, few enough to repeat. Some are written in a form that only
// older API servers accept.
func (g *generator) clusterIP(family corev1.IPFamily) string {
	if family == corev1.IPv4Protocol {
		return pick(g, "10.96.0.10", "10.96.0.11", "10.96.0.12", "010.096.000.013")
	}
	return pick(g, "fd00:10:96::a", "fd00:10:96::b", "fd00:10:96::c", "FD00:0010:96:0::000D")
}

func (g *generator) externalIPs() []string {
	return some(g, 3, "192.0.2.1", "192.0.2.2", "192.000.002.003", "::ffff:192.0.2.4", "2001:db8::1", "2001:DB8:0:0::2", "", " ", "elsewhere")
}

func (g *generator) endpoint4() string {
	return pick(g, "10.244.1.1", "10.244.1.2", "10.244.2.1", "10.244.2.2", "10.244.3.1", "10.244.3.2", "010.244.001.001")
}

func (g *generator) endpoint6() string {
	return pick(g, "fd00:10:244:1::1", "fd00:10:244:1::2", "fd00:10:244:2::1", "fd00:10:244:2::2", "FD00:10:244:1:0::1")
}

// portSet returns the ports of a Service.
func (g *generator) portSet() []corev1.ServicePort {
	return append([]corev1.ServicePort(nil), pick(g,
		[]corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		[]corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		[]corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}},
		[]corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}},
		[]corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolTCP}},
		[]corev1.ServicePort{{Name: "peer", Port: 3868, Protocol: corev1.ProtocolSCTP}, {Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	)...)
}

func (g *generator) service() *corev1.Service {
	s := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName, Labels: g.labels()},
	}
	g.addresses(&s.Spec)
	g.kind(s)
	g.policies(&s.Spec)
	if g.chance(35) {
		s.Spec.ExternalIPs = g.externalIPs()
	}
	return s
}

// labels returns the labels of a Service or a slice; kube-proxy ignores objects with some of them.
func (g *generator) labels() map[string]string {
	labels := map[string]string{}
	switch g.IntN(50) {
	case 0:
		labels[labelProxyName] = pick(g, "", "other")
	case 1:
		labels[corev1.IsHeadlessService] = pick(g, "", "false")
	}
	return labels
}

func (g *generator) addresses(spec *corev1.ServiceSpec) {
	const four, six = corev1.IPv4Protocol, corev1.IPv6Protocol
	families := pick(g, []corev1.IPFamily{four}, []corev1.IPFamily{six}, []corev1.IPFamily{four, six}, []corev1.IPFamily{six, four})
	for _, family := range families {
		spec.ClusterIPs = append(spec.ClusterIPs, g.clusterIP(family))
	}
	spec.ClusterIP, spec.IPFamilies = spec.ClusterIPs[0], families
	switch g.IntN(16) {
	case 0: // from an API server without dual stack
		spec.ClusterIPs, spec.IPFamilies = nil, nil
	case 1: // from one that is switching to dual stack
		spec.ClusterIPs = spec.ClusterIPs[:1]
	case 2:
		spec.ClusterIP, spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	}
}

func (g *generator) kind(s *corev1.Service) {
	s.Spec.Ports = g.portSet()
	s.Spec.Type = pick(g, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
	switch {
	case g.chance(4):
		s.Spec.Type = corev1.ServiceTypeExternalName
		s.Spec.ExternalName = "elsewhere.example.com"
		if g.chance(80) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = "", nil, nil
		}
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		s.Spec.Type = corev1.ServiceTypeClusterIP
	}
	allocate := true
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		allocate = g.chance(60)
		s.Spec.AllocateLoadBalancerNodePorts = &allocate
		g.loadBalancer(s)
	} else if g.chance(5) {
		s.Status.LoadBalancer.Ingress = g.ingress() // left over from another type
	}
	if s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer {
		for i := range s.Spec.Ports {
			if allocate || g.chance(10) {
				s.Spec.Ports[i].NodePort = int32(30000 + 10*g.IntN(4) + i)
			}
		}
	}
}

func (g *generator) loadBalancer(s *corev1.Service) {
	if g.chance(80) {
		s.Status.LoadBalancer.Ingress = g.ingress()
	}
	if g.chance(40) {
		s.Spec.LoadBalancerSourceRanges = some(g, 3, "10.0.0.0/8", " 172.16.0.0/12 ", "010.1.2.3/16", "0.0.0.0/0",
			"fd00::/8", "2001:DB8::1/32", "::/0", "anywhere", "")
	}
	s.Spec.HealthCheckNodePort = pick[int32](g, 0, 32000, 32001)
}

func (g *generator) ingress() []corev1.LoadBalancerIngress {
	list := some(g, 3, "198.51.100.1", "198.51.100.2", "192.0.2.1", "198.051.100.003", "2001:db8:1::1", "2001:db8::1", "2001:DB8:1:0::2", "")
	var out []corev1.LoadBalancerIngress
	for _, ip := range list {
		in := corev1.LoadBalancerIngress{IP: ip}
		if ip == "" {
			in.Hostname = "lb.example.com"
		} else {
			in.IPMode = pick(g, nil, nil, new(corev1.LoadBalancerIPModeVIP), new(corev1.LoadBalancerIPModeProxy))
		}
		out = append(out, in)
	}
	return out
}

func (g *generator) policies(spec *corev1.ServiceSpec) {
	spec.InternalTrafficPolicy = pick(g, nil, new(corev1.ServiceInternalTrafficPolicyCluster), new(corev1.ServiceInternalTrafficPolicyLocal))
	spec.ExternalTrafficPolicy = pick(g, "", corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
	spec.SessionAffinity = pick(g, "", corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP || g.chance(5) {
		seconds := pick(g, 1, 30, corev1.DefaultClientIPServiceAffinitySeconds, 86400)
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

// profile is what the endpoints of one state have in common: without it, states in which every
// endpoint has a hint, or none is ready, would hardly occur.
type profile struct {
	healthy     int // percent of the endpoints
	terminating int // percent of those that are not healthy
	hints       func(*generator) *discoveryv1.EndpointHints
}

func (g *generator) profile() profile {
	p := profile{healthy: pick(g, 0, 0, 30, 80, 100), terminating: pick(g, 20, 60, 100)}
	p.hints = pick(g,
		func(*generator) *discoveryv1.EndpointHints { return nil },
		(*generator).zoneHints,
		(*generator).nodeHints,
		func(g *generator) *discoveryv1.EndpointHints {
			hints := g.zoneHints()
			hints.ForNodes = g.nodeHints().ForNodes
			return hints
		},
		func(g *generator) *discoveryv1.EndpointHints {
			return pick(g, nil, &discoveryv1.EndpointHints{}, g.zoneHints(), g.nodeHints())
		},
	)
	return p
}

func (g *generator) zoneHints() *discoveryv1.EndpointHints {
	hints := &discoveryv1.EndpointHints{}
	for range 1 + g.IntN(2) {
		hints.ForZones = append(hints.ForZones, discoveryv1.ForZone{Name: pick(g, "a", "b", "c")})
	}
	return hints
}

func (g *generator) nodeHints() *discoveryv1.EndpointHints {
	hints := &discoveryv1.EndpointHints{}
	for range 1 + g.IntN(2) {
		hints.ForNodes = append(hints.ForNodes, discoveryv1.ForNode{Name: pick(g, self, "node-b", "node-c")})
	}
	return hints
}
