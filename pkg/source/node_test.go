package source

import (
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNode(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "n1", UID: "u"}
	tests := []struct {
		name string
		in   corev1.Node
		want model.Node
	}{
		{"bare", corev1.Node{ObjectMeta: meta}, model.Node{Name: "n1", UID: "u"}},
		{
			"internal addresses come first, each once, what is no address is left out",
			corev1.Node{ObjectMeta: meta, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeHostName, Address: "n1"},
				{Type: corev1.NodeExternalIP, Address: "203.0.113.1"},
				{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
				{Type: corev1.NodeInternalIP, Address: "nonsense"},
				{Type: corev1.NodeInternalIP, Address: "0.0.0.0"},
				{Type: corev1.NodeInternalIP, Address: "2001:db8::1"},
				{Type: corev1.NodeInternalDNS, Address: "192.0.2.9"},
				{Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
			}}},
			model.Node{Name: "n1", UID: "u", Addrs: addrs("192.0.2.1", "2001:db8::1", "203.0.113.1")},
		},
		{
			"zone and pod CIDRs",
			corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", Labels: map[string]string{"topology.kubernetes.io/zone": "a"}},
				Spec:       corev1.NodeSpec{PodCIDR: "10.9.0.0/24", PodCIDRs: []string{"10.244.1.0/24", "x", "fd00:1::5/64"}},
			},
			model.Node{Name: "n1", UID: "u", Zone: "a", PodCIDRs: prefixes("10.244.1.0/24", "fd00:1::/64")},
		},
		{
			"one pod CIDR",
			corev1.Node{ObjectMeta: meta, Spec: corev1.NodeSpec{PodCIDR: "10.244.1.0/24"}},
			model.Node{Name: "n1", UID: "u", PodCIDRs: prefixes("10.244.1.0/24")},
		},
		{
			"being deleted",
			corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", DeletionTimestamp: ptr(metav1.NewTime(time.Unix(1, 0)))}},
			model.Node{Name: "n1", UID: "u", Leaving: true},
		},
		{
			"about to be deleted",
			corev1.Node{ObjectMeta: meta, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a"}, {Key: "ToBeDeletedByClusterAutoscaler"}}}},
			model.Node{Name: "n1", UID: "u", Leaving: true},
		},
		{
			"awaiting its agent",
			corev1.Node{ObjectMeta: meta, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "a"}, {Key: "fairlead.io/agent-not-ready"}}}},
			model.Node{Name: "n1", UID: "u", Awaiting: true},
		},
		{
			"with a network for pods",
			corev1.Node{ObjectMeta: meta, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue}, {Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse},
			}}},
			model.Node{Name: "n1", UID: "u", Network: true},
		},
		{
			"without a network for pods",
			corev1.Node{ObjectMeta: meta, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionFalse}, {Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue},
			}}},
			model.Node{Name: "n1", UID: "u"},
		},
		{
			"tainted otherwise, and cordoned",
			corev1.Node{ObjectMeta: meta, Spec: corev1.NodeSpec{
				Taints: []corev1.Taint{{Key: "node.kubernetes.io/not-ready"}}, Unschedulable: true,
			}},
			model.Node{Name: "n1", UID: "u"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(&test.want, Node(&test.in), comparers); diff != "" {
				t.Errorf("translation differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNamespace(t *testing.T) {
	in := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:        "shop",
		Labels:      map[string]string{"team": "a"},
		Annotations: map[string]string{"fairlead.io/x": "1", "fairlead.iox/y": "2", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
	}}
	got := Namespace(in)
	want := &model.Namespace{
		Name:        "shop",
		Labels:      map[string]string{"team": "a"},
		Annotations: map[string]string{"fairlead.io/x": "1"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("translation differs (-want +got):\n%s", diff)
	}
	in.Labels["team"] = "b"
	if got.Labels["team"] != "a" {
		t.Error("the labels are the object's own map")
	}
}
