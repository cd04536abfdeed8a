package source

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.io/fairlead/pkg/model"
)

// podsWith returns a peer that selects pods by their label app.
func podsWith(app string) AccelerationPeer {
	return AccelerationPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}
}

func webToDB(changes ...func(*SocketAcceleration)) *SocketAcceleration {
	a := &SocketAcceleration{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "u", CreationTimestamp: metav1.NewTime(time.Unix(7, 0))},
		Spec:       SocketAccelerationSpec{From: []AccelerationPeer{podsWith("web")}, To: []AccelerationPeer{podsWith("db")}},
	}
	for _, change := range changes {
		change(a)
	}
	return a
}

func TestAcceleration(t *testing.T) {
	labeled := func(app string) model.Peer {
		return model.Peer{Pods: model.Selector{{Label: "app", Operator: model.In, Values: []string{app}}}}
	}
	node, web, db := model.Peer{Node: true}, []model.Peer{labeled("web")}, []model.Peer{labeled("db")}
	bad := AccelerationPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}}
	for _, tt := range []struct {
		name     string
		change   func(*SocketAcceleration)
		from, to []model.Peer
		ports    []uint16
		problems []string // a prefix of each
	}{
		{"two ends", func(*SocketAcceleration) {}, web, db, nil, nil},
		{"all pods, and the node", func(a *SocketAcceleration) {
			a.Spec.From, a.Spec.To = []AccelerationPeer{{PodSelector: &metav1.LabelSelector{}}}, append(a.Spec.To, AccelerationPeer{Node: true})
		}, []model.Peer{{}}, append(slices.Clone(db), node), nil, nil},
		{"ports, each once", func(a *SocketAcceleration) { a.Spec.Ports = []int32{15006, 15001, 15006} }, web, db, []uint16{15001, 15006}, nil},
		{"a bad port beside a good one", func(a *SocketAcceleration) { a.Spec.Ports = []int32{0, 80, 65536} }, web, db, []uint16{80},
			[]string{"InvalidPort: port 0 of", "InvalidPort: port 65536 of"}},
		{"only bad ports are not any port", func(a *SocketAcceleration) { a.Spec.Ports = []int32{-1} }, web, nil, nil, []string{"InvalidPort: port -1 of"}},
		{"nobody", func(a *SocketAcceleration) { a.Spec = SocketAccelerationSpec{} }, []model.Peer{}, []model.Peer{}, nil, []string{"NoPeer: spec.from is empty", "NoPeer: spec.to is empty"}},
		{"a peer that says nothing, or too much", func(a *SocketAcceleration) {
			a.Spec.From = append(a.Spec.From, AccelerationPeer{}, AccelerationPeer{Node: true, PodSelector: &metav1.LabelSelector{}})
		}, web, db, nil, []string{"InvalidPeer: spec.from[1] is ignored", "InvalidPeer: spec.from[2] is ignored"}},
		{"a bad selector tells nobody", func(a *SocketAcceleration) { a.Spec.To = append(a.Spec.To, bad) }, web, db, nil,
			[]string{"InvalidSelector: spec.to[1].podSelector is ignored, so it selects no pod"}},
		{"the node with itself", func(a *SocketAcceleration) {
			a.Spec.From, a.Spec.To = append(a.Spec.From, AccelerationPeer{Node: true}), append(a.Spec.To, AccelerationPeer{Node: true})
		}, append(slices.Clone(web), node), db, nil, []string{"InvalidPeer: node: true in spec.to is ignored"}},
		{"too many of everything", func(a *SocketAcceleration) {
			a.Spec.From = slices.Repeat(a.Spec.From, 9)
			for i := range int32(18) {
				a.Spec.Ports = append(a.Spec.Ports, 100+i)
			}
		}, slices.Repeat(web, 8), db, []uint16{100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115},
			[]string{"TooManyPeers: spec.from has 9 peers and the last 1 are ignored", "TooManyPorts: spec.ports has 18 ports and the last 2 are ignored"}},
	} {
		got := Acceleration(webToDB(tt.change))
		var problems []string
		for i, p := range got.Problems {
			text := p.Reason + ": " + p.Message
			if i < len(tt.problems) && strings.HasPrefix(text, tt.problems[i]) {
				text = tt.problems[i]
			}
			problems = append(problems, text)
		}
		if diff := cmp.Diff(tt.problems, problems); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", tt.name, diff)
		}
		got.Problems = nil
		want := &model.Acceleration{Name: model.Name{Namespace: "shop", Name: "a"}, UID: "u", Created: 7, From: tt.from, To: tt.to, Ports: tt.ports}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// TestAccelerationCopies checks that a copy is complete, and shares nothing that could be changed.
func TestAccelerationCopies(t *testing.T) {
	list := &SocketAccelerationList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []SocketAcceleration{
		*webToDB(func(a *SocketAcceleration) {
			a.Spec.From, a.Spec.Ports, a.Labels = append(a.Spec.From, AccelerationPeer{Node: true}), []int32{80}, map[string]string{"a": "b"}
		}), *webToDB(),
	}}
	copied, ok := list.DeepCopyObject().(*SocketAccelerationList)
	one, isOne := list.Items[0].DeepCopyObject().(*SocketAcceleration)
	if !ok || !isOne || !reflect.DeepEqual(list, copied) || !reflect.DeepEqual(list.Items[0], *one) {
		t.Fatalf("copies: %+v, %+v", copied, one)
	}
	for _, other := range []*SocketAcceleration{&copied.Items[0], one} {
		other.Spec.From[0].PodSelector.MatchLabels["app"] = "x"
		other.Spec.To[0] = AccelerationPeer{}
		other.Spec.Ports[0], other.Labels["a"] = 1, "x"
	}
	if item := &list.Items[0]; item.Spec.From[0].PodSelector.MatchLabels["app"] != "web" || item.Spec.To[0].PodSelector == nil || item.Spec.Ports[0] != 80 || item.Labels["a"] != "b" {
		t.Errorf("a change to a copy changed the original: %+v", item)
	}
}

func TestAccelerateAnnotation(t *testing.T) {
	for _, tt := range []struct {
		text    string
		want    model.Choice
		problem bool
	}{{"true", model.Yes, false}, {"false", model.No, false}, {"on", model.Unsaid, true}, {"", model.Unsaid, true}, {"True", model.Unsaid, true}, {strings.Repeat("x", 300000), model.Unsaid, true}} {
		meta := metav1.ObjectMeta{Name: "a", Annotations: map[string]string{annotationAccelerate: tt.text}}
		pod, namespace := Pod(&corev1.Pod{ObjectMeta: meta}), Namespace(&corev1.Namespace{ObjectMeta: meta})
		if pod.Accelerate != tt.want || namespace.Accelerate != tt.want {
			t.Errorf("%.20q: %v, %v", tt.text, pod.Accelerate, namespace.Accelerate)
		}
		for _, problems := range [][]model.Problem{pod.Problems, namespace.Problems} {
			if (len(problems) == 1) != tt.problem || tt.problem && (problems[0].Reason != "InvalidAccelerate" || len(problems[0].Message) > 300) {
				t.Errorf("%.20q: %v", tt.text, problems)
			}
		}
	}
	if pod := Pod(&corev1.Pod{}); pod.Accelerate != model.Unsaid || pod.Labels != nil || pod.Problems != nil {
		t.Errorf("without the annotation: %+v", pod)
	}
	service := Service(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationAccelerate: "true"}}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"}, Ports: []corev1.ServicePort{{Port: 80}}}})
	if service == nil || len(service.Problems) != 1 || !strings.Contains(service.Problems[0].Message, "move it to a Pod or a Namespace") {
		t.Errorf("on a Service: %+v", service)
	}
}

// TestPodLabels checks that a translated Pod's labels are its own copy, and do not change with the
// object.
func TestPodLabels(t *testing.T) {
	in := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "web"}}}
	out := Pod(in)
	in.Labels["app"] = "db"
	if diff := cmp.Diff(map[string]string{"app": "web"}, out.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}
