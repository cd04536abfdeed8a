package source

import (
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	defaultAffinitySeconds = corev1.DefaultClientIPServiceAffinitySeconds
	maxAffinitySeconds     = 86400
)

// Service translates a Service. It returns nil for one that fairlead does not serve: an
// ExternalName, one without a ClusterIP, or one with the label of another proxy.
func Service(s *corev1.Service) *model.Service {
	if s.Spec.ClusterIP == "" {
		return nil
	}
	return service(s)
}

// Standalone translates a Service from a source that does not complete it as an API server would.
// It differs from Service in that a missing ClusterIP does not make a Service headless (only an
// explicit "None" does): the Service is served on its other addresses, and what only an API server
// could have allocated is reported as missing.
func Standalone(s *corev1.Service) *model.Service {
	out := service(s)
	if out == nil {
		return nil
	}
	p := problems{list: out.Problems}
	nodePort := slices.ContainsFunc(out.Ports, func(port model.Port) bool { return port.NodePort != 0 })
	if len(out.ClusterIPs)+len(out.ExternalIPs)+len(out.LoadBalancerIPs) == 0 && !nodePort {
		p.add("NoAddress", "the Service has no address: set spec.clusterIP, because nothing allocates one for a file")
	}
	if s.Spec.Type == corev1.ServiceTypeNodePort {
		for i := range out.Ports {
			if port := &out.Ports[i]; port.NodePort == 0 {
				p.add("NoNodePort", "port %d has no node port: set its nodePort, because nothing allocates one for a file", port.Port)
			}
		}
	}
	out.Problems = p.all()
	return out
}

func service(s *corev1.Service) *model.Service {
	spec := &s.Spec
	if spec.ClusterIP == corev1.ClusterIPNone || spec.Type == corev1.ServiceTypeExternalName || labeled(s.Labels, labelProxyName) {
		return nil
	}
	p := &problems{}
	checkOnly(p, s.Annotations, kindService)
	checkEnums(p, spec)
	out := &model.Service{
		Name:            model.Name{Namespace: s.Namespace, Name: s.Name},
		UID:             string(s.UID),
		Created:         created(&s.ObjectMeta),
		ClusterIPs:      clusterIPs(p, spec),
		ExternalIPs:     externalIPs(p, spec.ExternalIPs),
		LoadBalancerIPs: loadBalancerIPs(p, s.Status.LoadBalancer.Ingress),
		Ports:           ports(p, spec),
		Algorithm:       strings.TrimSpace(s.Annotations[annotationAlgorithm]),
		Direct:          strings.TrimSpace(s.Annotations[annotationDSR]),
		AffinitySeconds: affinitySeconds(p, spec),
		InternalLocal: spec.InternalTrafficPolicy != nil &&
			*spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		ExternalLocal: externallyAccessible(spec) && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}
	// Source ranges only guard load balancer addresses, which any type of Service may have. A
	// Service without such an address may still be waiting for one if its type is LoadBalancer.
	if spec.Type == corev1.ServiceTypeLoadBalancer || len(out.LoadBalancerIPs) > 0 {
		out.SourceRanges = sourceRanges(p, spec.LoadBalancerSourceRanges)
		if len(spec.LoadBalancerSourceRanges) == 0 && strings.TrimSpace(s.Annotations[annotationSourceRanges]) != "" {
			p.add("SourceRangesAnnotation", "annotation %s has no effect on the nodes, so the Service is open to everyone: "+
				"use spec.loadBalancerSourceRanges", annotationSourceRanges)
		}
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && out.ExternalLocal {
		out.HealthCheckNodePort = healthCheckNodePort(p, spec.HealthCheckNodePort)
	}
	out.Problems = p.all()
	return out
}

func created(meta *metav1.ObjectMeta) int64 {
	if meta.CreationTimestamp.IsZero() {
		return 0
	}
	return meta.CreationTimestamp.Unix()
}

// externallyAccessible considers nothing but the spec: addresses that a load balancer adds and
// removes must not switch the traffic policy.
func externallyAccessible(spec *corev1.ServiceSpec) bool {
	switch spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeClusterIP:
		return len(spec.ExternalIPs) > 0
	}
	return false
}

// checkEnums reports invalid values of enumerations. Each counts as the default.
func checkEnums(p *problems, spec *corev1.ServiceSpec) {
	switch spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, "":
	default:
		p.add("InvalidType", "type %.64q counts as ClusterIP: use ClusterIP, NodePort or LoadBalancer", spec.Type)
	}
	switch spec.ExternalTrafficPolicy {
	case corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal, "":
	default:
		p.add("InvalidTrafficPolicy", "externalTrafficPolicy %.64q counts as Cluster: use Cluster or Local", spec.ExternalTrafficPolicy)
	}
	if policy := spec.InternalTrafficPolicy; policy != nil {
		switch *policy {
		case corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal:
		default:
			p.add("InvalidTrafficPolicy", "internalTrafficPolicy %.64q counts as Cluster: use Cluster or Local", *policy)
		}
	}
}

// clusterIPs returns one address per family: those that ipFamilies names, or only clusterIP if an
// old API server left ipFamilies out.
func clusterIPs(p *problems, spec *corev1.ServiceSpec) []netip.Addr {
	if spec.ClusterIP == "" {
		return nil
	}
	if len(spec.IPFamilies) == 0 {
		if addr, ok := virtualIP(p, "clusterIP", spec.ClusterIP); ok {
			return []netip.Addr{addr}
		}
		return nil
	}
	list := make([]netip.Addr, 0, len(spec.IPFamilies))
	for i, family := range spec.IPFamilies {
		if i >= len(spec.ClusterIPs) {
			break
		}
		if slices.Contains(spec.IPFamilies[:i], family) {
			p.add("InvalidClusterIP", "clusterIP %.64q is ignored: there is one of family %.64q already, keep one of each",
				spec.ClusterIPs[i], family)
			continue
		}
		addr, ok := virtualIP(p, "clusterIP", spec.ClusterIPs[i])
		if !ok {
			continue
		}
		if want := ipFamily(family); want != model.FamilyOf(addr) {
			p.add("InvalidClusterIP", "clusterIP %s is ignored: it is not of family %.64q, correct spec.ipFamilies", addr, family)
			continue
		}
		list = append(list, addr)
	}
	return list
}

func ipFamily(name corev1.IPFamily) model.Family {
	switch name {
	case corev1.IPv4Protocol:
		return model.IPv4
	case corev1.IPv6Protocol:
		return model.IPv6
	}
	return 0
}

// probed reports whether addr is one that agents dial to test whether their programs are at work
// (bpf/lib/sock_ctx.h): the dummy address of RFC 7600, or one in the discard prefix of RFC 6666.
func probed(addr netip.Addr) bool {
	return addr == netip.AddrFrom4([4]byte{192, 0, 0, 8}) || netip.MustParsePrefix("100::/64").Contains(addr)
}

func (p *problems) addProbed(field string, addr netip.Addr) {
	p.add("InvalidAddress", "%s %s is ignored: agents test their programs by dialing it, use another address", field, addr)
}

// virtualIP parses an address of a Service. It rejects special ones: the unspecified address, for
// one, means every address of the node in the maps.
func virtualIP(p *problems, field, text string) (netip.Addr, bool) {
	addr, ok := parseAddr(text)
	if !ok {
		p.add("InvalidAddress", "%s %.64q is ignored: it is not an IP address, correct it", field, text)
		return addr, false
	}
	switch why := model.Special(addr); {
	case why != "":
		p.add("InvalidAddress", "%s %s is ignored: it is %s, use a unicast address that the network knows", field, addr, why)
		ok = false
	case probed(addr):
		p.addProbed(field, addr)
		ok = false
	}
	return addr, ok
}

// maxAddresses bounds each list of addresses. Every address is multiplied by the ports, and anyone
// may own a Service.
const maxAddresses = 512

// addresses collects the addresses of one field without duplicates.
type addresses struct {
	list []netip.Addr
	seen map[netip.Addr]bool
	over int
}

func (a *addresses) add(addr netip.Addr) {
	switch {
	case a.seen[addr]:
	case len(a.list) == maxAddresses:
		a.over++
	default:
		if a.seen == nil {
			a.seen = map[netip.Addr]bool{}
		}
		a.seen[addr] = true
		a.list = append(a.list, addr)
	}
}

func (a *addresses) all(p *problems, field string) []netip.Addr {
	if a.over > 0 {
		p.add("TooManyAddresses", "%d of %s are ignored: a Service can have %d, use more Services", a.over, field, maxAddresses)
	}
	return a.list
}

// externalIPs returns the addresses as they are. Package lb decides whether a Service may have
// them.
func externalIPs(p *problems, texts []string) []netip.Addr {
	var list addresses
	for _, text := range texts {
		addr, ok := parseAddr(text)
		switch {
		case ok && probed(addr):
			p.addProbed("externalIP", addr)
		case ok:
			list.add(addr)
		case strings.TrimSpace(text) != "": // the API server accepts empty ones
			p.add("InvalidAddress", "externalIP %.64q is ignored: it is not an IP address, correct it", text)
		}
	}
	return list.all(p, "spec.externalIPs")
}

// loadBalancerIPs returns the addresses that packets still carry when they reach a node. With
// ipMode Proxy, the load balancer sends to the node port instead, and traffic from inside the
// cluster must go through it too.
func loadBalancerIPs(p *problems, ingress []corev1.LoadBalancerIngress) []netip.Addr {
	var list addresses
	for i := range ingress {
		in := &ingress[i]
		if in.IP == "" {
			continue
		}
		if mode := in.IPMode; mode != nil && *mode != corev1.LoadBalancerIPModeVIP {
			if *mode != corev1.LoadBalancerIPModeProxy {
				p.add("InvalidIPMode", "load balancer ingress %.64q is not served: its ipMode %.64q is not known and counts as Proxy, use VIP or Proxy",
					in.IP, *mode)
			}
			continue
		}
		if addr, ok := virtualIP(p, "load balancer ingress", in.IP); ok {
			list.add(addr)
		}
	}
	return list.all(p, "status.loadBalancer.ingress")
}

// sourceRanges returns the ranges of the restricted families. A family with a range of length 0 is
// not restricted.
func sourceRanges(p *problems, texts []string) []netip.Prefix {
	if len(texts) == 0 {
		return nil
	}
	list := make([]netip.Prefix, 0, len(texts))
	open := map[model.Family]bool{}
	for _, text := range texts {
		text = strings.TrimSpace(text) // the API server accepts blanks
		if text == "" {
			continue
		}
		prefix, ok := parsePrefix(text)
		if !ok {
			p.add("InvalidSourceRange",
				"loadBalancerSourceRange %.64q is ignored: correct it; without any valid range the Service is open to everyone", text)
			continue
		}
		if prefix.Bits() == 0 {
			open[model.FamilyOf(prefix.Addr())] = true
		}
		list = append(list, prefix)
	}
	return slices.DeleteFunc(list, func(prefix netip.Prefix) bool { return open[model.FamilyOf(prefix.Addr())] })
}

func affinitySeconds(p *problems, spec *corev1.ServiceSpec) uint32 {
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityClientIP:
	case corev1.ServiceAffinityNone, "":
		return 0
	default:
		p.add("InvalidSessionAffinity", "sessionAffinity %.64q counts as None: use None or ClientIP", spec.SessionAffinity)
		return 0
	}
	config := spec.SessionAffinityConfig
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return uint32(defaultAffinitySeconds)
	}
	seconds := *config.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > maxAffinitySeconds {
		p.add("InvalidSessionAffinity", "timeoutSeconds %d counts as %d: use 1 to %d", seconds, defaultAffinitySeconds, maxAffinitySeconds)
		return uint32(defaultAffinitySeconds)
	}
	return uint32(seconds)
}

func healthCheckNodePort(p *problems, port int32) uint16 {
	switch {
	case isPort(port):
		return uint16(port)
	case port == 0:
		p.add("NoHealthCheckNodePort", "the load balancer cannot check the nodes: set spec.healthCheckNodePort")
	default:
		p.add("InvalidPort", "healthCheckNodePort %d is ignored: use 1 to 65535", port)
	}
	return 0
}
