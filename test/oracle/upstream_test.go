package oracle

import (
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
	netutils "k8s.io/utils/net"

	"fairlead.io/fairlead/pkg/model"
)

// upstream is the part of kube-proxy that comes before it writes rules: a tracker of Services and
// one of EndpointSlices for each family, and the choice of endpoints.
type upstream struct {
	node     node
	labels   map[string]string
	families [2]upstreamFamily
	service  *corev1.Service // as last seen through kube-proxy's label selector
	slices   map[string]*discoveryv1.EndpointSlice
}

type upstreamFamily struct {
	family    model.Family
	changed   *proxy.ServiceChangeTracker
	moved     *proxy.EndpointsChangeTracker
	services  proxy.ServicePortMap
	endpoints proxy.EndpointsMap
}

func newUpstream(on node) *upstream {
	u := &upstream{node: on, labels: map[string]string{}, slices: map[string]*discoveryv1.EndpointSlice{}}
	if on.zone != "" {
		u.labels[corev1.LabelTopologyZone] = on.zone
	}
	for i, name := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		u.families[i] = upstreamFamily{
			family:    map[corev1.IPFamily]model.Family{corev1.IPv4Protocol: model.IPv4, corev1.IPv6Protocol: model.IPv6}[name],
			changed:   proxy.NewServiceChangeTracker(name, nil, nil),
			moved:     proxy.NewEndpointsChangeTracker(name, on.name, nil, nil),
			services:  proxy.ServicePortMap{},
			endpoints: proxy.EndpointsMap{},
		}
	}
	return u
}

// watchesService and watchesSlice are the selectors that kube-proxy's informers use.
func watchesService(s *corev1.Service) bool {
	_, foreign := s.Labels[labelProxyName]
	return !foreign && s.Spec.ClusterIP != corev1.ClusterIPNone
}

func watchesSlice(s *discoveryv1.EndpointSlice) bool {
	_, headless := s.Labels[corev1.IsHeadlessService]
	return !headless
}

// apply delivers what differs from the previous state, and returns kube-proxy's answers for the new
// one.
func (u *upstream) apply(s *state, seen *coverage) answers {
	u.deliver(s)
	out := answers{}
	for i := range u.families {
		f := &u.families[i]
		f.services.Update(f.changed)
		f.endpoints.Update(f.moved)
		for name, info := range f.services {
			if name.Namespace != namespace || name.Name != serviceName {
				continue
			}
			key := portKey{name.Port, protocolOf(name.Protocol), f.family}
			out[key] = u.answer(info, f.endpoints[name], f.family, seen)
			if out[key].HealthCheckNodePort != 0 {
				out[key].LocalReady = f.endpoints.LocalReadyEndpoints()[name.NamespacedName]
				seen.hitIf(out[key].LocalReady > 0, "health check: endpoints")
			}
		}
	}
	return out
}

func (u *upstream) deliver(s *state) {
	service := s.service
	if !watchesService(service) {
		service = nil
	}
	current := make(map[string]*discoveryv1.EndpointSlice, len(s.slices))
	for _, slice := range s.slices {
		if watchesSlice(slice) {
			current[slice.Name] = slice
		}
	}
	for i := range u.families {
		f := &u.families[i]
		if service != u.service {
			f.changed.Update(u.service, service)
		}
		for name, slice := range u.slices {
			if current[name] == nil {
				f.moved.EndpointSliceUpdate(slice, true)
			}
		}
		for name, slice := range current {
			if u.slices[name] != slice {
				f.moved.EndpointSliceUpdate(slice, false)
			}
		}
	}
	u.service, u.slices = service, current
}

func (u *upstream) answer(info proxy.ServicePort, endpoints []proxy.Endpoint, family model.Family, seen *coverage) *answer {
	all, local, reachable, _ := proxy.CategorizeEndpoints(endpoints, info, u.node.name, u.labels)
	seen.choice(u.node, info, endpoints, all, local)
	a := &answer{
		ClusterIP:           netip.AddrPortFrom(addrOf(info.ClusterIP()), uint16(info.Port())),
		ExternalIPs:         frontendsOf(info.ExternalIPs(), info.Port()),
		HealthCheckNodePort: uint16(info.HealthCheckNodePort()),
		AffinitySeconds:     uint32(info.StickyMaxAgeSeconds()),
		InternalLocal:       info.InternalPolicyLocal(),
		ExternalLocal:       info.ExternalPolicyLocal(),
		External:            info.ExternallyAccessible(),
		All:                 backendsOf(all),
		Local:               backendsOf(local),
		Reachable:           backendsOf(reachable),
	}
	if port := info.NodePort(); port != 0 {
		a.NodePort = netip.AddrPortFrom(family.Unspecified(), uint16(port))
	}
	if len(info.LoadBalancerVIPs()) > 0 { // source ranges restrict nothing else
		a.SourceRanges = prefixesOf(info.LoadBalancerSourceRanges())
	}
	// An address that is both has one row in our maps, restricted like that of any load balancer.
	a.LoadBalancerIPs = frontendsOf(info.LoadBalancerVIPs(), info.Port())
	a.ExternalIPs = without(a.ExternalIPs, a.LoadBalancerIPs)
	return a
}

func protocolOf(name corev1.Protocol) model.Protocol {
	return map[corev1.Protocol]model.Protocol{
		corev1.ProtocolTCP: model.TCP, corev1.ProtocolUDP: model.UDP, corev1.ProtocolSCTP: model.SCTP,
	}[name]
}

func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

func frontendsOf(list []net.IP, port int) []netip.AddrPort {
	var out []netip.AddrPort
	for _, ip := range list {
		out = append(out, netip.AddrPortFrom(addrOf(ip), uint16(port)))
	}
	return sortedFrontends(out)
}

func prefixesOf(list []*net.IPNet) []netip.Prefix {
	var out []netip.Prefix
	for _, cidr := range list {
		bits, _ := cidr.Mask.Size()
		out = append(out, netip.PrefixFrom(addrOf(cidr.IP), bits))
	}
	return sortedPrefixes(out)
}

func backendsOf(list []proxy.Endpoint) []netip.AddrPort {
	var out []netip.AddrPort
	for _, endpoint := range list {
		out = append(out, netip.AddrPortFrom(netip.MustParseAddr(endpoint.IP()), uint16(endpoint.Port())))
	}
	return sortedBackends(out)
}

// canonical returns an address as Kubernetes writes it.
func canonical(text string) string { return netutils.ParseIPSloppy(text).String() }
