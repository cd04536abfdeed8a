package source

import (
	"net/netip"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var comparers = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, model.Label{}),
	cmpopts.EquateEmpty(),
}

// webService returns a plain Service with the changes applied, and webModel what a plain one
// translates to.
func webService(changes ...func(*corev1.Service)) *corev1.Service {
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "u1",
			CreationTimestamp: metav1.NewTime(time.Unix(1700000000, 0)),
		},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			ClusterIP:             "10.96.0.10",
			ClusterIPs:            []string{"10.96.0.10"},
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol},
			InternalTrafficPolicy: &cluster,
			SessionAffinity:       corev1.ServiceAffinityNone,
			Ports:                 []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func webModel(changes ...func(*model.Service)) *model.Service {
	s := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "web"}, UID: "u1", Created: 1700000000,
		ClusterIPs: addrs("10.96.0.10"),
		Ports:      []model.Port{{Name: "http", Port: 80, Protocol: model.TCP}},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

func prefixes(texts ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func ptr[T any](v T) *T { return &v }

func loadBalancer(ingress ...corev1.LoadBalancerIngress) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = ingress
	}
}

func TestService(t *testing.T) {
	tests := []struct {
		name   string
		change func(*corev1.Service)
		want   func(*model.Service)
	}{
		{"plain", func(*corev1.Service) {}, func(*model.Service) {}},
		{
			"same port number for two protocols",
			func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{
					{Name: "tcp", Port: 80, Protocol: corev1.ProtocolTCP},
					{Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP},
					{Name: "sctp", Port: 80, Protocol: corev1.ProtocolSCTP},
				}
			},
			func(m *model.Service) {
				m.Ports = []model.Port{
					{Name: "tcp", Port: 80, Protocol: model.TCP},
					{Name: "udp", Port: 80, Protocol: model.UDP},
					{Name: "sctp", Port: 80, Protocol: model.SCTP},
				}
			},
		},
		{
			"no protocol is TCP, no name is a name",
			func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{{Port: 443}} },
			func(m *model.Service) { m.Ports = []model.Port{{Port: 443, Protocol: model.TCP}} },
		},
		{
			"dual stack, IPv6 first",
			func(s *corev1.Service) {
				s.Spec.ClusterIP = "fd00::a"
				s.Spec.ClusterIPs = []string{"fd00::a", "10.96.0.10"}
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
			},
			func(m *model.Service) { m.ClusterIPs = addrs("fd00::a", "10.96.0.10") },
		},
		{
			"more families than addresses yet",
			func(s *corev1.Service) {
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
			},
			func(*model.Service) {},
		},
		{
			"an old API server knows clusterIP only",
			func(s *corev1.Service) { s.Spec.ClusterIPs, s.Spec.IPFamilies = nil, nil },
			func(*model.Service) {},
		},
		{
			"without families only clusterIP counts",
			func(s *corev1.Service) {
				s.Spec.IPFamilies = nil
				s.Spec.ClusterIPs = []string{"10.96.0.10", "fd00::a"}
			},
			func(*model.Service) {},
		},
		{
			"an address from outside any service CIDR, with leading zeros",
			func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"192.0.02.010"} },
			func(m *model.Service) { m.ClusterIPs = addrs("192.0.2.10") },
		},
		{
			"an IPv4-mapped address is IPv4",
			func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"::ffff:10.96.0.11"} },
			func(m *model.Service) { m.ClusterIPs = addrs("10.96.0.11") },
		},
		{
			"node port",
			func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeNodePort
				s.Spec.Ports[0].NodePort = 30080
			},
			func(m *model.Service) { m.Ports[0].NodePort = 30080 },
		},
		{
			"a node port left behind in a ClusterIP Service",
			func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 },
			func(*model.Service) {},
		},
		{
			"load balancer without node ports",
			loadBalancer(corev1.LoadBalancerIngress{IP: "198.51.100.7"}),
			func(m *model.Service) { m.LoadBalancerIPs = addrs("198.51.100.7") },
		},
		{
			"of ingress only addresses in mode VIP",
			loadBalancer(
				corev1.LoadBalancerIngress{IP: "198.51.100.1"},
				corev1.LoadBalancerIngress{IP: "198.51.100.2", IPMode: ptr(corev1.LoadBalancerIPModeVIP)},
				corev1.LoadBalancerIngress{IP: "198.51.100.3", IPMode: ptr(corev1.LoadBalancerIPModeProxy)},
				corev1.LoadBalancerIngress{IP: "198.51.100.4", IPMode: ptr(corev1.LoadBalancerIPMode("Later"))},
				corev1.LoadBalancerIngress{Hostname: "lb.example"},
				corev1.LoadBalancerIngress{IP: "2001:db8::1"},
			),
			func(m *model.Service) {
				m.LoadBalancerIPs = addrs("198.51.100.1", "198.51.100.2", "2001:db8::1")
				m.Problems = []model.Problem{{
					Reason:  "InvalidIPMode",
					Message: `load balancer ingress "198.51.100.4" is not served: its ipMode "Later" is not known and counts as Proxy, use VIP or Proxy`,
				}}
			},
		},
		{
			"ingress counts for every type, and so do its ranges",
			func(s *corev1.Service) {
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
				s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
			},
			func(m *model.Service) {
				m.LoadBalancerIPs = addrs("198.51.100.1")
				m.SourceRanges = prefixes("10.0.0.0/8")
			},
		},
		{
			"ranges without a load balancer",
			func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"} },
			func(*model.Service) {},
		},
		{
			"ranges are trimmed, masked and may have leading zeros",
			func(s *corev1.Service) {
				loadBalancer()(s)
				s.Spec.LoadBalancerSourceRanges = []string{" 10.1.2.3/8 ", "\t010.009.0.0/16", "2001:db8::1/32", ""}
			},
			func(m *model.Service) { m.SourceRanges = prefixes("10.0.0.0/8", "10.9.0.0/16", "2001:db8::/32") },
		},
		{
			"a range of everything opens its family alone",
			func(s *corev1.Service) {
				loadBalancer()(s)
				s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "2001:db8::/32", "1.2.3.4/0"}
			},
			func(m *model.Service) { m.SourceRanges = prefixes("2001:db8::/32") },
		},
		{
			"external IPs of both families, empty ones skipped",
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.250", "", " ", "2001:db8::5"} },
			func(m *model.Service) { m.ExternalIPs = addrs("203.0.113.250", "2001:db8::5") },
		},
		{
			"session affinity",
			func(s *corev1.Service) {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(125))}}
			},
			func(m *model.Service) { m.AffinitySeconds = 125 },
		},
		{
			"session affinity without a timeout",
			func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
			func(m *model.Service) { m.AffinitySeconds = 10800 },
		},
		{
			"a timeout without session affinity",
			func(s *corev1.Service) {
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(125))}}
			},
			func(*model.Service) {},
		},
		{
			"internalTrafficPolicy Local",
			func(s *corev1.Service) {
				s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
			},
			func(m *model.Service) { m.InternalLocal = true },
		},
		{
			"no internalTrafficPolicy",
			func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = nil },
			func(*model.Service) {},
		},
		{
			"externalTrafficPolicy means nothing to a ClusterIP",
			func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal },
			func(*model.Service) {},
		},
		{
			"externalTrafficPolicy of external IPs",
			func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.ExternalIPs = []string{"203.0.113.250"}
			},
			func(m *model.Service) { m.ExternalLocal, m.ExternalIPs = true, addrs("203.0.113.250") },
		},
		{
			"a NodePort Service has no health check",
			func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeNodePort
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.HealthCheckNodePort = 32000
			},
			func(m *model.Service) { m.ExternalLocal = true },
		},
		{
			"a local LoadBalancer has one",
			func(s *corev1.Service) {
				loadBalancer()(s)
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.HealthCheckNodePort = 32000
			},
			func(m *model.Service) { m.ExternalLocal, m.HealthCheckNodePort = true, 32000 },
		},
		{
			"a cluster-wide LoadBalancer has none",
			func(s *corev1.Service) {
				loadBalancer()(s)
				s.Spec.HealthCheckNodePort = 32000
			},
			func(*model.Service) {},
		},
		{
			"algorithm",
			func(s *corev1.Service) {
				s.Annotations = map[string]string{"fairlead.io/algorithm": " maglev\n", "example.com/algorithm": "x"}
			},
			func(m *model.Service) { m.Algorithm = "maglev" },
		},
		{
			"direct server return",
			func(s *corev1.Service) { s.Annotations = map[string]string{"fairlead.io/dsr": " ipip\n"} },
			func(m *model.Service) { m.Direct = "ipip" },
		},
		{
			"never created",
			func(s *corev1.Service) { s.CreationTimestamp = metav1.Time{} },
			func(m *model.Service) { m.Created = 0 },
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(webModel(test.want), Service(webService(test.change)), comparers); diff != "" {
				t.Errorf("translation differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceNotOurs(t *testing.T) {
	tests := []struct {
		name   string
		change func(*corev1.Service)
	}{
		{"ExternalName", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }},
		{"ExternalName that was a ClusterIP", func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		}},
		{"no ClusterIP", func(s *corev1.Service) { s.Spec.ClusterIP = "" }},
		{"headless", func(s *corev1.Service) { s.Spec.ClusterIP = "None" }},
		{"another proxy's", func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		}},
		{"another proxy's without a name", func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := Service(webService(test.change)); got != nil {
				t.Errorf("got %+v, want none", got)
			}
		})
	}
}
