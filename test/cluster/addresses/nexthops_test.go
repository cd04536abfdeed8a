package addresses

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

func node(name string, status corev1.ConditionStatus, addrs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeDiskPressure, Status: "False"}, {Type: corev1.NodeReady, Status: status}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeExternalIP, Address: "192.0.2.9"}}
	for _, a := range addrs {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

// at returns an endpoint on a node; marks gives its conditions: r ready, s serving, t terminating,
// ? none set.
func at(node, marks string) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(false), Terminating: ptr.To(false)}}
	if node != "" {
		e.NodeName = &node
	}
	for _, m := range marks {
		switch m {
		case 'r':
			e.Conditions.Ready = ptr.To(true)
		case 's':
			e.Conditions.Serving = ptr.To(true)
		case 't':
			e.Conditions.Terminating = ptr.To(true)
		case '?':
			e.Conditions = discoveryv1.EndpointConditions{}
		}
	}
	return e
}

func TestNextHops(t *testing.T) {
	one, two, three := node("n1", "True", "10.0.0.1", "fd00::1"), node("n2", "True", "10.0.0.2", "fd00::2"), node("n3", "True", "10.0.0.3", "fd00::3")
	excluded := node("n4", "True", "10.0.0.4")
	excluded.Labels[corev1.LabelNodeExcludeBalancers] = ""
	tests := []struct {
		name      string
		policy    corev1.ServiceExternalTrafficPolicy
		endpoints []discoveryv1.Endpoint
		nodes     []*corev1.Node
		want      map[string][]string
		affinity  corev1.ServiceAffinity
	}{
		{"all nodes", "Cluster", nil, []*corev1.Node{three, one, two},
			map[string][]string{"10.9.0.1": {"10.0.0.1", "10.0.0.2", "10.0.0.3"}, "fd09::1": {"fd00::1", "fd00::2", "fd00::3"}}, "None"},
		{"nodes that are not ready", "Cluster", nil, []*corev1.Node{one, node("n5", "False", "10.0.0.5"), node("n6", "Unknown", "10.0.0.6"), {}},
			map[string][]string{"10.9.0.1": {"10.0.0.1"}, "fd09::1": {"fd00::1"}}, "None"},
		{"nodes that want no traffic from outside", "Cluster", nil, []*corev1.Node{excluded}, map[string][]string{}, "None"},
		{"nodes of one family", "Cluster", nil, []*corev1.Node{node("n7", "True", "10.0.0.7")}, map[string][]string{"10.9.0.1": {"10.0.0.7"}}, "None"},
		{"nodes with odd addresses", "Cluster", nil, []*corev1.Node{node("n8", "True", "x", "::ffff:10.0.0.8", "")}, map[string][]string{"10.9.0.1": {"10.0.0.8"}}, "None"},
		{"nodes with an endpoint", "Local", []discoveryv1.Endpoint{at("n2", "rs"), at("n2", "rs"), at("n1", ""), at("", "rs"), at("n3", "st"), at("n9", "rs")}, []*corev1.Node{one, two, three},
			map[string][]string{"10.9.0.1": {"10.0.0.2"}, "fd09::1": {"fd00::2"}}, "None"},
		{"an endpoint that does not say", "Local", []discoveryv1.Endpoint{at("n1", "?")}, []*corev1.Node{one, two},
			map[string][]string{"10.9.0.1": {"10.0.0.1"}, "fd09::1": {"fd00::1"}}, "None"},
		{"nodes where endpoints end", "Local", []discoveryv1.Endpoint{at("n3", "st"), at("n2", "t"), at("n1", "")}, []*corev1.Node{one, two, three},
			map[string][]string{"10.9.0.1": {"10.0.0.3"}, "fd09::1": {"fd00::3"}}, "None"},
		{"no endpoint", "Local", nil, []*corev1.Node{one, two}, map[string][]string{}, "None"},
		{"clients come back to their node", "Local", []discoveryv1.Endpoint{at("n2", "rs"), at("n3", "rs")}, []*corev1.Node{one, two, three},
			map[string][]string{"10.9.0.1": {"10.0.0.2"}, "fd09::1": {"fd00::2"}}, "ClientIP"},
		{"clients come to their endpoint by all nodes", "Cluster", nil, []*corev1.Node{one, two},
			map[string][]string{"10.9.0.1": {"10.0.0.1", "10.0.0.2"}, "fd09::1": {"fd00::1", "fd00::2"}}, "ClientIP"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			service := balancer("a", 1, "46")
			service.Spec.ExternalTrafficPolicy, service.Spec.SessionAffinity = tt.policy, tt.affinity
			slice := func(name, service string, endpoints []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
				labels := map[string]string{discoveryv1.LabelServiceName: service}
				return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: labels}, Endpoints: endpoints}
			}
			store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
			for _, s := range []*discoveryv1.EndpointSlice{slice("x", "a", tt.endpoints), slice("y", "other", []discoveryv1.Endpoint{at("n1", "rs")})} {
				if err := store.Add(s); err != nil {
					t.Fatal(err)
				}
			}
			given := assignment{"a": {netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd09::1")}}
			found, err := nextHops(given, []*corev1.Service{service, balancer("b", 1, "4")}, listers.NewEndpointSliceLister(store), tt.nodes)
			if err != nil {
				t.Fatal(err)
			}
			have := map[string][]string{}
			for addr, hops := range found {
				for _, hop := range hops {
					have[addr.String()] = append(have[addr.String()], hop.String())
				}
			}
			if diff := cmp.Diff(tt.want, have); diff != "" {
				t.Errorf("routes (-want +have):\n%s", diff)
			}
		})
	}
}
