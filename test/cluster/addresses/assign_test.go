package addresses

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
)

// small returns pools that a test can use up: six usable addresses of IPv4 and seven of IPv6.
func small() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.9.0.0/29"), netip.MustParsePrefix("fd09::/125")}
}

// balancer returns a Service of type LoadBalancer that was created at the given second.
func balancer(uid string, second int64, families string, status ...string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: uid, UID: types.UID(uid), CreationTimestamp: metav1.Unix(second, 0),
	}}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	for _, f := range families {
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, map[rune]corev1.IPFamily{'4': corev1.IPv4Protocol, '6': corev1.IPv6Protocol}[f])
	}
	for _, ip := range status {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return s
}

func changed(s *corev1.Service, change func(*corev1.Service)) *corev1.Service {
	change(s)
	return s
}

func texts(a assignment) map[string][]string {
	found := map[string][]string{}
	for uid, addrs := range a {
		for _, addr := range addrs {
			found[string(uid)] = append(found[string(uid)], addr.String())
		}
	}
	return found
}

func TestAssign(t *testing.T) {
	tests := []struct {
		name     string
		services []*corev1.Service
		held     assignment
		want     map[string][]string
	}{
		{"by age", []*corev1.Service{balancer("young", 2, "4"), balancer("old", 1, "4")}, nil,
			map[string][]string{"old": {"10.9.0.1"}, "young": {"10.9.0.2"}}},
		{"of the same second, by name", []*corev1.Service{balancer("b", 1, "4"), balancer("a", 1, "4")}, nil,
			map[string][]string{"a": {"10.9.0.1"}, "b": {"10.9.0.2"}}},
		{"families in their order", []*corev1.Service{balancer("a", 1, "64"), balancer("b", 2, "6")}, nil,
			map[string][]string{"a": {"fd09::1", "10.9.0.1"}, "b": {"fd09::2"}}},
		{"what the status has stays", []*corev1.Service{balancer("a", 1, "4"), balancer("b", 2, "4", "10.9.0.1")}, nil,
			map[string][]string{"a": {"10.9.0.2"}, "b": {"10.9.0.1"}}},
		{"what was held goes before a status", []*corev1.Service{balancer("a", 1, "4", "10.9.0.1"), balancer("b", 2, "4")},
			assignment{"b": {netip.MustParseAddr("10.9.0.1")}}, map[string][]string{"a": {"10.9.0.2"}, "b": {"10.9.0.1"}}},
		{"two with one address", []*corev1.Service{balancer("young", 2, "4", "10.9.0.3"), balancer("old", 1, "4", "10.9.0.3")}, nil,
			map[string][]string{"old": {"10.9.0.3"}, "young": {"10.9.0.1"}}},
		{"addresses of others", []*corev1.Service{balancer("a", 1, "4", "192.0.2.1", "10.9.0.0", "10.9.0.7", "x", "fd09::2")}, nil,
			map[string][]string{"a": {"10.9.0.1"}}},
		{"several in the status", []*corev1.Service{balancer("a", 1, "46", "10.9.0.3", "10.9.0.2", "fd09::3")}, nil,
			map[string][]string{"a": {"10.9.0.3", "fd09::3"}}},
		{"a family less", []*corev1.Service{balancer("a", 1, "6", "10.9.0.1", "fd09::3")}, nil, map[string][]string{"a": {"fd09::3"}}},
		{"not ours", []*corev1.Service{
			changed(balancer("class", 1, "4", "10.9.0.1"), func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To("example.com/x") }),
			changed(balancer("type", 1, "4", "10.9.0.1"), func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }),
			changed(balancer("ends", 1, "4", "10.9.0.1"), func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: time.Unix(3, 0)} }),
			balancer("ours", 2, "4"),
		}, nil, map[string][]string{"ours": {"10.9.0.1"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			given, err := assign(small(), tt.services, tt.held)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, texts(given)); diff != "" {
				t.Errorf("addresses (-want +have):\n%s", diff)
			}
		})
	}
}

func TestNoAddressIsLeft(t *testing.T) {
	var services []*corev1.Service
	for i := range int64(7) {
		services = append(services, balancer(string(rune('a'+i)), i, "4"))
	}
	services = append(services, balancer("z", 9, "6"))
	given, err := assign(small(), services, nil)
	if !errors.Is(err, errNoAddress) {
		t.Errorf("seven Services share a pool of six addresses: %v, want errNoAddress", err)
	}
	if len(given["f"]) != 1 || len(given["g"]) != 0 || len(given["z"]) != 1 {
		t.Errorf("addresses: %v", texts(given))
	}
	if _, err := assign(small()[:1], []*corev1.Service{balancer("a", 1, "46")}, nil); !errors.Is(err, errNoAddress) {
		t.Errorf("no pool of IPv6: %v, want errNoAddress", err)
	}
}

// After any sequence of changes, no two Services share an address, and no Service loses one without
// a reason.
func TestAssignProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		services := map[string]*corev1.Service{}
		held := assignment{}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			uid := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"}).Draw(t, "uid")
			switch s := services[uid]; {
			case s == nil:
				services[uid] = balancer(uid, rapid.Int64Range(0, 3).Draw(t, "second"), rapid.SampledFrom([]string{"4", "6", "46", "64"}).Draw(t, "families"))
			case rapid.Bool().Draw(t, "delete"):
				delete(services, uid)
			default:
				s.Spec.Type = rapid.SampledFrom([]corev1.ServiceType{corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeClusterIP}).Draw(t, "type")
			}
			if rapid.Bool().Draw(t, "restart") {
				held = nil
			}
			var all []*corev1.Service
			for _, s := range services {
				all = append(all, s)
			}
			given, _ := assign(small(), all, held)
			owners := map[netip.Addr]types.UID{}
			for uid, addrs := range given {
				for _, addr := range addrs {
					if other, ok := owners[addr]; ok {
						t.Fatalf("%s and %s share %v", uid, other, addr)
					}
					owners[addr] = uid
				}
			}
			for uid, addrs := range held {
				if s := services[string(uid)]; s == nil || !isOurs(s) {
					continue
				}
				if len(given[uid]) < len(addrs) {
					t.Fatalf("%s had %v and has %v", uid, addrs, given[uid])
				}
			}
			for uid, addrs := range given { // publish the addresses, as the controller does
				s := services[string(uid)]
				s.Status.LoadBalancer.Ingress = nil
				for _, addr := range addrs {
					s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: addr.String()})
				}
			}
			held = given
		}
	})
}
