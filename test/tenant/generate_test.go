package tenant

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// virtual is an address that the node has and no Node lists, as of a control plane that moves.
const virtual = "192.0.2.100"

func meta(namespace, name, uid string, created time.Time) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid), CreationTimestamp: metav1.NewTime(created)}
}

// honest returns the objects of the tenant that has to be left alone.
func honest() ([]*corev1.Service, []*discoveryv1.EndpointSlice) {
	created := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	web := &corev1.Service{ObjectMeta: meta(shop, "web", "m", created)}
	web.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10", "fd96::10"},
		IPFamilies:  []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		ExternalIPs: []string{"203.0.113.5"},
		Ports:       []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080, Protocol: corev1.ProtocolTCP}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}},
	}
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}, {IP: "2001:db8:1::1"}}
	return []*corev1.Service{web}, []*discoveryv1.EndpointSlice{
		slice(shop, "web-4", "web", discoveryv1.AddressTypeIPv4, []string{"http", "dns"}, "10.1.0.1", "10.1.1.1"),
		slice(shop, "web-6", "web", discoveryv1.AddressTypeIPv6, []string{"http", "dns"}, "fd01::1"),
	}
}

func slice(namespace, name, service string, family discoveryv1.AddressType, ports []string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta(namespace, name, name, time.Time{}), AddressType: family}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	for i, port := range ports {
		number := int32(8080 + i)
		protocol := corev1.ProtocolTCP
		if port == "dns" {
			protocol = corev1.ProtocolUDP
		}
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &port, Port: &number, Protocol: &protocol})
	}
	for _, addr := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}})
	}
	return s
}

// destinations are what the honest tenant's clients and the node's dial: all addresses that are not
// the attacker's, at ports that something serves and at ports that nothing does.
func destinations() (list []maps.SvcKey) {
	for _, addr := range addrs("10.96.0.10", "fd96::10", "198.51.100.1", "2001:db8:1::1", "192.0.2.1", "192.0.2.2", virtual,
		"10.1.0.1", "10.1.1.1", "127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "::") {
		for _, port := range []uint16{7, 22, 53, 80, 443, 6443, 10250, 30080} {
			for _, protocol := range []model.Protocol{model.TCP, model.UDP} {
				list = append(list, maps.KeyOf(addr, port, protocol))
			}
		}
	}
	// An externalIP belongs to whoever named it first, so only what its owner serves is the owner's,
	// and only if it is the older one. The attacker's are.
	return list
}

// generator makes the objects of a tenant. What it may not choose is what the API server allocates:
// ClusterIPs and node ports are its own, except that a manifest may name any node port that nobody
// has. A load balancer's controller may be talked into anything.
type generator struct {
	rand *rand.Rand
}

func (g *generator) chance(percent int) bool { return g.rand.IntN(100) < percent }

func pick[T any](g *generator, list []T) T { return list[g.rand.IntN(len(list))] }

// wanted are addresses that are worth having, in more than one form.
func (g *generator) wanted() string {
	switch g.rand.IntN(4) {
	case 0:
		return fmt.Sprintf("198.51.100.%d", 100+g.rand.IntN(60)) // its own
	case 1:
		return fmt.Sprintf("2001:db8:66::%x", 1+g.rand.IntN(60))
	}
	return pick(g, []string{
		"10.96.0.10", "fd96::10", "198.51.100.1", "2001:db8:1::1", "192.0.2.1", "192.0.2.2", virtual, "10.1.0.1", "10.1.1.1",
		"127.0.0.1", "127.0.0.53", "::1", "169.254.169.254", "fe80::1", "224.0.0.1", "ff02::1", "0.0.0.0", "::", "255.255.255.255",
		"0.0.0.1", "::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "127.000.000.001", "::ffff:192.0.2.1", "fe80::1%eth0", "nonsense", "",
	})
}

// owned is an address of which its load balancer's controller thinks that it is free: no other
// Service's load balancer address, and no other node's. Controllers that give addresses of nodes
// (small clusters have them) give them with the port, and all nodes serve that.
func (g *generator) owned() string {
	for {
		text := g.wanted()
		if addr, err := netip.ParseAddr(text); err != nil || addr.Unmap().String() != "198.51.100.1" && text != "2001:db8:1::1" && text != "192.0.2.2" {
			return text
		}
	}
}

func (g *generator) objects() (services []*corev1.Service, list []*discoveryv1.EndpointSlice) {
	for i := range 1 + g.rand.IntN(4) {
		s := g.service(i)
		services = append(services, s)
		for j := range g.rand.IntN(4) {
			list = append(list, g.slice(s, fmt.Sprintf("%s-%d", s.Name, j)))
		}
	}
	return services, list
}

func (g *generator) service(i int) *corev1.Service {
	created := time.Date(2025+g.rand.IntN(3), 1, 1, 0, 0, 0, 0, time.UTC)
	s := &corev1.Service{ObjectMeta: meta(evil, fmt.Sprint("s", i), pick(g, []string{"a", "z"})+fmt.Sprint(i), created)}
	s.Spec.Type = pick(g, []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, "Other"})
	s.Spec.ClusterIP = fmt.Sprintf("10.96.66.%d", i)
	for range g.rand.IntN(8) {
		s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, g.wanted())
	}
	for range g.rand.IntN(6) {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: g.owned()})
	}
	s.Annotations = map[string]string{
		"fairlead.io/algorithm": pick(g, []string{"", "maglev", "maglev", "round-robin", "nonsense"}),
		"fairlead.io/dsr":       pick(g, []string{"", "opt", "geneve", "ipip", "nonsense"}),
	}
	if g.chance(30) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if g.chance(30) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	s.Spec.Ports = g.ports()
	return s
}

// ports are few, or so many that they exceed a quota.
func (g *generator) ports() (list []corev1.ServicePort) {
	many := 1 + g.rand.IntN(3)
	if g.chance(20) {
		many = 60
	}
	for i := range many {
		p := corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1000 + i), Protocol: pick(g, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, ""})}
		if g.chance(60) {
			p.Port = pick(g, []int32{7, 22, 53, 80, 443, 6443, 10250, 0, 70000})
		}
		if g.chance(30) {
			p.NodePort = pick(g, []int32{22, 10250, 6443, 31000 + g.rand.Int32N(40), 70000})
		}
		list = append(list, p)
	}
	return list
}

func (g *generator) slice(s *corev1.Service, name string) *discoveryv1.EndpointSlice {
	var ports []string
	for i := range s.Spec.Ports {
		ports = append(ports, s.Spec.Ports[i].Name)
	}
	out := slice(evil, name, s.Name, pick(g, []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}), ports)
	for i := range out.Ports {
		out.Ports[i].Protocol = pick(g, []*corev1.Protocol{out.Ports[i].Protocol, nil, &s.Spec.Ports[i].Protocol})
	}
	many := g.rand.IntN(4)
	if g.chance(20) {
		many = 40
	}
	for i := range many {
		addr := g.wanted()
		if g.chance(70) {
			addr = fmt.Sprintf("10.1.0.%d", 100+i)
		}
		e := discoveryv1.Endpoint{Addresses: []string{addr}}
		if g.chance(70) {
			local := "node-a"
			e.NodeName = &local
		}
		out.Endpoints = append(out.Endpoints, e)
	}
	if g.chance(20) {
		out.Annotations = map[string]string{"fairlead.io/weight": pick(g, []string{"0", "7", "1000", "-1", "x"})}
	}
	return out
}
