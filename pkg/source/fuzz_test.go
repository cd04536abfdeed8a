package source

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"fairlead.io/fairlead/pkg/model"
)

// read translates an object of each kind that has the metadata, and returns the problems of each.
func read(meta metav1.ObjectMeta) (objects []any, problems map[string][]model.Problem) {
	service := Service(&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}})
	pod := Pod(&corev1.Pod{ObjectMeta: meta})
	namespace := Namespace(&corev1.Namespace{ObjectMeta: meta})
	node := Node(&corev1.Node{ObjectMeta: meta})
	slice := Slice(&discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}}})
	problems = map[string][]model.Problem{"Pod": pod.Problems, "Namespace": namespace.Problems, "Node": node.Problems}
	objects = []any{pod, namespace, node}
	if service != nil {
		objects, problems["Service"] = append(objects, service), service.Problems
	}
	if slice != nil {
		objects, problems["EndpointSlice"] = append(objects, slice), slice.Problems
	}
	return objects, problems
}

// Whatever an annotation or a label says, what is wrong with it is said in a few printable lines
// that name it, it does not get past bounds, and it is read the same each time.
func FuzzAnnotations(f *testing.F) {
	names := []string{
		annotationAlgorithm, annotationDSR, annotationWeight, annotationSocketLB, annotationAccelerate, annotationSourceCheck, annotationProxy,
		annotationClass, annotationShare, annotationBBR, annotationEgress, annotationIngress, annotationSourceRanges, "fairlead.io/typo", labelProxyName,
	}
	for i := range names {
		for _, value := range []string{"", "on", "true", "1000", "10M", "1e400", "-1", "0x1", "maglev", "\x1b[2J\xff", strings.Repeat("9", 300), "NaN", "1P", "10.0.0.0/8,x"} {
			f.Add(uint8(i), value)
		}
	}
	f.Fuzz(func(t *testing.T, index uint8, value string) {
		name := annotationPrefix + value
		if int(index) < len(names) {
			name = names[index]
		}
		meta := metav1.ObjectMeta{Name: "web", Namespace: "shop", Annotations: map[string]string{name: value}, Labels: map[string]string{name: value, discoveryv1.LabelServiceName: "web"}}
		objects, problems := read(meta)
		for kind, list := range problems {
			if len(list) > maxProblems+1 {
				t.Errorf("%s: %d problems", kind, len(list))
			}
			for _, p := range list {
				if len(p.Message) > 1000 || !utf8.ValidString(p.Message) || strings.ContainsFunc(p.Message, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("%s: %q", kind, p.Message)
				}
				if p.Reason == "" || !strings.Contains(p.Message, name) && len(name) < 64 && fmt.Sprintf("%q", name) == `"`+name+`"` {
					t.Errorf("%s: %s %q does not name %q", kind, p.Reason, p.Message, name)
				}
			}
		}
		for _, object := range objects {
			if slice, ok := object.(*model.Slice); ok && slice.Weight > maxWeight {
				t.Errorf("weight %d", slice.Weight)
			}
		}
		if again, _ := read(meta); !reflect.DeepEqual(objects, again) {
			t.Errorf("read again: %+v, then %+v", objects, again)
		}
	})
}

// Whatever a selector says, it selects what Kubernetes' own parser selects by it, or neither takes it.
func FuzzSelector(f *testing.F) {
	for _, seed := range []string{"", "app=web", "app in (web, api),!old", "a!=b", "a notin (b)", ",", "a in (", "\x00", "a==b,a=c", "app>1,app<3"} {
		f.Add(seed, "app", "web")
		f.Add(seed, "app", "2")
		f.Add(seed, "a", "b")
	}
	f.Fuzz(func(t *testing.T, text, key, value string) {
		ours, err := ParseSelector(text)
		theirs, theirErr := labels.Parse(text)
		if (err == nil) != (theirErr == nil) {
			t.Fatalf("%q: %v, Kubernetes says %v", text, err, theirErr)
		}
		if err != nil {
			return
		}
		for _, set := range []map[string]string{nil, {key: value}, {key: value, "app": "web"}} {
			if have, want := ours.Selects(set), theirs.Matches(labels.Set(set)); have != want {
				t.Errorf("%q and %v: %t, Kubernetes says %t", text, set, have, want)
			}
		}
	})
}
