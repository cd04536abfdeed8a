package source

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestServiceProblems(t *testing.T) {
	tests := []struct {
		name   string
		change func(*corev1.Service)
		reason string
		says   string
		want   func(*model.Service) // the rest of the Service
	}{
		{
			"ClusterIP",
			func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.96.0.999"} },
			"InvalidAddress", "10.96.0.999",
			func(m *model.Service) { m.ClusterIPs = nil },
		},
		{
			"ClusterIP with a zone",
			func(s *corev1.Service) {
				s.Spec.ClusterIPs = []string{"10.96.0.10", "fe80::1%eth0"}
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
			},
			"InvalidAddress", "fe80::1%eth0",
			func(*model.Service) {},
		},
		{
			"ClusterIP that would be a wildcard",
			func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"0.0.0.0"} },
			"InvalidAddress", "0.0.0.0",
			func(m *model.Service) { m.ClusterIPs = nil },
		},
		{
			"ClusterIP of another family",
			func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} },
			"InvalidClusterIP", "ipFamilies",
			func(m *model.Service) { m.ClusterIPs = nil },
		},
		{
			"two ClusterIPs of one family",
			func(s *corev1.Service) {
				s.Spec.ClusterIPs = []string{"10.96.0.10", "10.96.0.11"}
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv4Protocol}
			},
			"InvalidClusterIP", "10.96.0.11",
			func(*model.Service) {},
		},
		{
			"external IP",
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.1", "web.example"} },
			"InvalidAddress", "web.example",
			func(m *model.Service) { m.ExternalIPs = addrs("203.0.113.1") },
		},
		{
			"external IP that agents dial",
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.0.8", "203.0.113.1"} },
			"InvalidAddress", "externalIP 192.0.0.8",
			func(m *model.Service) { m.ExternalIPs = addrs("203.0.113.1") },
		},
		{
			"ingress that agents dial",
			loadBalancer(corev1.LoadBalancerIngress{IP: "100::1"}, corev1.LoadBalancerIngress{IP: "100:0:0:1::1"}),
			"InvalidAddress", "load balancer ingress 100::1 ",
			func(m *model.Service) { m.LoadBalancerIPs = addrs("100:0:0:1::1") },
		},
		{
			"ingress",
			loadBalancer(corev1.LoadBalancerIngress{IP: "::"}, corev1.LoadBalancerIngress{IP: "198.51.100.1"}),
			"InvalidAddress", "load balancer ingress ::",
			func(m *model.Service) { m.LoadBalancerIPs = addrs("198.51.100.1") },
		},
		{
			"source range",
			func(s *corev1.Service) {
				loadBalancer()(s)
				s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/33", "10.0.0.0/8"}
			},
			"InvalidSourceRange", "10.0.0.0/33",
			func(m *model.Service) { m.SourceRanges = prefixes("10.0.0.0/8") },
		},
		{
			"protocol",
			func(s *corev1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "x", Port: 81, Protocol: "tcp"})
			},
			"UnsupportedProtocol", "use TCP, UDP or SCTP",
			func(*model.Service) {},
		},
		{
			"port 0",
			func(s *corev1.Service) { s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "x"}) },
			"InvalidPort", "port 0",
			func(*model.Service) {},
		},
		{
			"port out of range",
			func(s *corev1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "x", Port: 65616})
			},
			"InvalidPort", "port 65616",
			func(*model.Service) {},
		},
		{
			"node port out of range",
			func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeNodePort
				s.Spec.Ports[0].NodePort = -1
			},
			"InvalidPort", "nodePort -1",
			func(*model.Service) {},
		},
		{
			"two ports of one name",
			func(s *corev1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "http", Port: 81, Protocol: corev1.ProtocolTCP})
			},
			"DuplicatePort", "port 81",
			func(*model.Service) {},
		},
		{
			"two ports of one number",
			func(s *corev1.Service) { s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "b", Port: 80}) },
			"DuplicatePort", "port 80",
			func(*model.Service) {},
		},
		{
			"two ports with one node port",
			func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeNodePort
				s.Spec.Ports[0].NodePort = 30080
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "b", Port: 81, NodePort: 30080})
			},
			"DuplicatePort", "nodePort 30080",
			func(m *model.Service) {
				m.Ports = []model.Port{
					{Name: "http", Port: 80, NodePort: 30080, Protocol: model.TCP},
					{Name: "b", Port: 81, Protocol: model.TCP},
				}
			},
		},
		{
			"session affinity",
			func(s *corev1.Service) { s.Spec.SessionAffinity = "Cookie" },
			"InvalidSessionAffinity", "Cookie",
			func(*model.Service) {},
		},
		{
			"affinity timeout",
			func(s *corev1.Service) {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(-5))}}
			},
			"InvalidSessionAffinity", "timeoutSeconds -5",
			func(m *model.Service) { m.AffinitySeconds = 10800 },
		},
		{
			"health check port",
			func(s *corev1.Service) {
				loadBalancer()(s)
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				s.Spec.HealthCheckNodePort = 70000
			},
			"InvalidPort", "healthCheckNodePort 70000",
			func(m *model.Service) { m.ExternalLocal = true },
		},
		{
			"no health check port",
			func(s *corev1.Service) {
				loadBalancer()(s)
				s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			},
			"NoHealthCheckNodePort", "healthCheckNodePort",
			func(m *model.Service) { m.ExternalLocal = true },
		},
		{
			"external policy",
			func(s *corev1.Service) {
				s.Spec.Type = corev1.ServiceTypeNodePort
				s.Spec.ExternalTrafficPolicy = "local"
			},
			"InvalidTrafficPolicy", "externalTrafficPolicy",
			func(*model.Service) {},
		},
		{
			"internal policy",
			func(s *corev1.Service) {
				s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicy("local"))
			},
			"InvalidTrafficPolicy", "internalTrafficPolicy",
			func(*model.Service) {},
		},
		{
			"type",
			func(s *corev1.Service) { s.Spec.Type = "Nodeport" },
			"InvalidType", "Nodeport",
			func(*model.Service) {},
		},
		{
			"misspelled annotation",
			func(s *corev1.Service) { s.Annotations = map[string]string{"fairlead.io/algoritm": "maglev"} },
			"UnknownAnnotation", "fairlead.io/algorithm",
			func(*model.Service) {},
		},
		{
			"annotation of another kind",
			func(s *corev1.Service) { s.Annotations = map[string]string{"fairlead.io/weight": "5"} },
			"MisplacedAnnotation", "an EndpointSlice",
			func(*model.Service) {},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Service(webService(test.change))
			checkProblem(t, got.Problems, test.reason, test.says)
			got.Problems = nil
			if diff := cmp.Diff(webModel(test.want), got, comparers); diff != "" {
				t.Errorf("the rest differs (-want +got):\n%s", diff)
			}
		})
	}
}

// checkProblem checks that there is exactly one problem, with that reason and a message that
// contains says.
func checkProblem(t *testing.T, problems []model.Problem, reason, says string) {
	t.Helper()
	if len(problems) != 1 || problems[0].Reason != reason || !strings.Contains(problems[0].Message, says) {
		t.Errorf("got problems %q, want one %s that says %q", problems, reason, says)
	}
}

func TestProblemsAreBounded(t *testing.T) {
	s := webService(func(s *corev1.Service) {
		for i := range 1000 {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("not-an-address-%d-%s", i, strings.Repeat("x", 5000)))
		}
	})
	got := Service(s)
	if n := len(got.Problems); n != maxProblems+1 {
		t.Fatalf("got %d problems, want %d", n, maxProblems+1)
	}
	if last := got.Problems[maxProblems]; last.Reason != "MoreProblems" || !strings.HasPrefix(last.Message, "984 more") {
		t.Errorf("last problem is %q, want the count of the others", last)
	}
	for _, problem := range got.Problems {
		if len(problem.Message) > 512 {
			t.Errorf("message of %d bytes, want a short one", len(problem.Message))
		}
	}
}

func TestAddressesAreBounded(t *testing.T) {
	s := webService(func(s *corev1.Service) {
		for i := range maxAddresses + 7 {
			addr := fmt.Sprintf("203.0.%d.%d", i>>8, i&255)
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, addr, addr) // the second is a duplicate
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: addr})
		}
	})
	got := Service(s)
	if len(got.ExternalIPs) != maxAddresses || len(got.LoadBalancerIPs) != maxAddresses {
		t.Errorf("%d and %d addresses, want %d", len(got.ExternalIPs), len(got.LoadBalancerIPs), maxAddresses)
	}
	if slices.ContainsFunc(got.ExternalIPs[1:], func(a netip.Addr) bool { return a == got.ExternalIPs[0] }) {
		t.Error("an address comes twice")
	}
	if len(got.Problems) != 2 || got.Problems[0].Reason != "TooManyAddresses" {
		t.Errorf("problems %q, want two TooManyAddresses", got.Problems)
	}
}

// TestProblemsAreOrdered translates one object repeatedly: a changing order would make it dirty for
// ever.
func TestProblemsAreOrdered(t *testing.T) {
	annotations := map[string]string{}
	for i := range 12 {
		annotations[fmt.Sprintf("fairlead.io/x%d", i)] = ""
	}
	s := webService(func(s *corev1.Service) { s.Annotations = annotations })
	first := Service(s).Problems
	for range 20 {
		if again := Service(s).Problems; !slices.Equal(first, again) {
			t.Fatalf("problems changed their order:\n%q\n%q", first, again)
		}
	}
}
