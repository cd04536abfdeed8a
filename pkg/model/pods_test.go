package model

import "testing"

// PodsChanged fires on every change of a pod or a namespace, and on nothing else.
func TestPodsChanged(t *testing.T) {
	s := NewStore("node")
	name := Name{"ns", "a"}
	for _, step := range []struct {
		name string
		do   func()
		want bool
	}{
		{"a Service", func() { s.SetService(service("web", "10.96.0.1")) }, false},
		{"a new Pod", func() { s.SetPod(&Pod{Name: name}) }, true},
		{"the same Pod", func() { s.SetPod(&Pod{Name: name}) }, false},
		{"a changed Pod", func() { s.SetPod(&Pod{Name: name, SocketLB: SocketLBOff}) }, true},
		{"a deleted Pod", func() { s.DeletePod(name) }, true},
		{"a new Namespace", func() { s.SetNamespace(&Namespace{Name: "ns"}) }, true},
		{"the same Namespaces", func() { s.ReplaceNamespaces([]*Namespace{{Name: "ns"}}) }, false},
		{"a changed Namespace", func() { s.ReplaceNamespaces([]*Namespace{{Name: "ns", SocketLB: SocketLBOff}}) }, true},
		{"no Namespace", func() { s.ReplaceNamespaces(nil) }, true},
		{"another Namespace", func() { s.SetNamespace(&Namespace{Name: "b"}) }, true},
		{"a deleted Namespace", func() { s.DeleteNamespace("b") }, true},
	} {
		step.do()
		changed := false
		select {
		case <-s.PodsChanged():
			changed = true
		default:
		}
		if changed != step.want {
			t.Errorf("%s: changed is %t, want the opposite", step.name, changed)
		}
	}
	if len(s.Pods()) != 0 || len(s.Namespaces()) != 0 {
		t.Errorf("left: %v, %v", s.Pods(), s.Namespaces())
	}
}

func TestSelfChanged(t *testing.T) {
	s := NewStore("node-a")
	changed := func() bool {
		select {
		case <-s.SelfChanged():
			return true
		default:
			return false
		}
	}
	for _, step := range []struct {
		name string
		do   func()
		want bool
	}{
		{"nothing", func() {}, false},
		{"another node", func() { s.SetNode(&Node{Name: "node-b"}) }, false},
		{"this node comes", func() { s.SetNode(&Node{Name: "node-a"}) }, true},
		{"the same again", func() { s.SetNode(&Node{Name: "node-a"}) }, false},
		{"it changes", func() { s.ReplaceNodes([]*Node{{Name: "node-a", Zone: "z"}}) }, true},
		{"it goes", func() { s.DeleteNode("node-a") }, true},
	} {
		if step.do(); changed() != step.want {
			t.Errorf("%s: changed is not %v", step.name, step.want)
		}
	}
}

// Pod and namespace together decide whether a pod may send from foreign addresses, and
// TraitsChanged fires on each change of that decision.
func TestUnchecked(t *testing.T) {
	s := NewStore("node")
	name := Name{"shop", "a"}
	pod := func(asks bool) *Pod { return &Pod{Name: name, UID: "api", LocalUID: "local", Unchecked: asks} }
	for _, step := range []struct {
		name    string
		do      func()
		changed bool
		due     bool
		want    bool
	}{
		{"a pod that asks", func() { s.SetPod(pod(true)) }, true, true, false},
		{"a namespace", func() { s.SetNamespace(&Namespace{Name: "shop"}) }, false, false, false},
		{"another with the label", func() { s.SetNamespace(&Namespace{Name: "other", MayUncheck: true}) }, false, false, false},
		{"its own with the label", func() { s.SetNamespace(&Namespace{Name: "shop", MayUncheck: true}) }, true, true, true},
		{"other labels", func() {
			s.SetNamespace(&Namespace{Name: "shop", MayUncheck: true, Labels: map[string]string{"a": "b"}})
		}, false, false, true},
		{"a pod that does not ask", func() { s.SetPod(pod(false)) }, true, true, false},
		{"a namespace that no pod asks in", func() { s.SetNamespace(&Namespace{Name: "shop"}) }, false, false, false},
		{"all at once", func() { s.SetNamespace(&Namespace{Name: "shop", MayUncheck: true}); s.SetPod(pod(true)) }, true, true, true},
		{"no namespace", func() { s.DeleteNamespace("shop") }, true, true, false},
		{"again", func() { s.SetNamespace(&Namespace{Name: "shop", MayUncheck: true}) }, true, true, true},
		{"none at all", func() { s.ReplaceNamespaces(nil) }, true, true, false},
		{"all again", func() { s.ReplaceNamespaces([]*Namespace{{Name: "shop", MayUncheck: true}}) }, true, true, true},
		{"no pod", func() { s.DeletePod(name) }, true, true, false},
	} {
		step.do()
		changed := false
		select {
		case <-s.TraitsChanged():
			changed = true
		default:
		}
		if due := len(s.TakeDirty()) > 0; changed != step.changed || due != step.due {
			t.Errorf("%s: changed is %t, due is %t; at least one is wrong", step.name, changed, due)
		}
		for uid, known := range map[string]bool{"": true, "api": true, "local": true, "before": false} {
			if got := s.Unchecked(name, uid); got != (step.want && known) {
				t.Errorf("%s: with UID %q unchecked is %t", step.name, uid, got)
			}
		}
	}
	s.ReplaceServices(nil)
	s.ReplaceSlices(nil)
	s.ReplaceNodes(nil)
	s.ReplacePods(nil)
	select {
	case <-s.TraitsChanged():
	default:
		t.Error("TraitsChanged did not fire when the store became synced")
	}
}

// TraitsChanged fires whenever a pod asks for another proxy and whenever a pod arrives. A new pod
// of the same name as a deleted one stays unknown until it arrives itself.
func TestProxyOfPod(t *testing.T) {
	s := NewStore("node")
	name := Name{"shop", "a"}
	for _, step := range []struct {
		name    string
		do      func()
		changed bool
		want    string
		known   bool
	}{
		{"no pod", func() {}, false, "", false},
		{"a pod", func() { s.SetPod(&Pod{Name: name, UID: "api", LocalUID: "local"}) }, true, "", true},
		{"it changes otherwise", func() { s.SetPod(&Pod{Name: name, UID: "api", LocalUID: "local", Created: 1}) }, false, "", true},
		{"it asks", func() { s.SetPod(&Pod{Name: name, UID: "api", LocalUID: "local", Proxy: "envoy"}) }, true, "envoy", true},
		{"it asks for another", func() { s.SetPod(&Pod{Name: name, UID: "api", LocalUID: "local", Proxy: "audit"}) }, true, "audit", true},
		{"it does not", func() { s.SetPod(&Pod{Name: name, UID: "api", LocalUID: "local"}) }, true, "", true},
		{"it asks again", func() { s.SetPod(&Pod{Name: name, UID: "api", LocalUID: "local", Proxy: "envoy"}) }, true, "envoy", true},
		{"it goes", func() { s.DeletePod(name) }, true, "", false},
	} {
		step.do()
		changed := false
		select {
		case <-s.TraitsChanged():
			changed = true
		default:
		}
		if changed != step.changed {
			t.Errorf("%s: changed is %t, want the opposite", step.name, changed)
		}
		for uid, is := range map[string]bool{"": true, "api": true, "local": true, "before": false} {
			want, known := step.want, step.known && is
			if !is {
				want = ""
			}
			if got, ok := s.Proxy(name, uid); got != want || ok != known {
				t.Errorf("%s: with UID %q the proxy is %q, known is %t", step.name, uid, got, ok)
			}
		}
	}
}

// TraitsChanged fires when a rate shared by pods changes: of a namespace, or of this node, but not
// of another node.
func TestShares(t *testing.T) {
	s := NewStore("node")
	for _, step := range []struct {
		name string
		do   func()
		want bool
	}{
		{"a pod", func() { s.SetPod(&Pod{Name: Name{"shop", "a"}}) }, true},
		{"a namespace", func() { s.SetNamespace(&Namespace{Name: "shop"}) }, false},
		{"it shares", func() { s.SetNamespace(&Namespace{Name: "shop", Egress: 1e6}) }, true},
		{"it changes otherwise", func() { s.SetNamespace(&Namespace{Name: "shop", Egress: 1e6, SocketLB: SocketLBOff}) }, false},
		{"it goes", func() { s.DeleteNamespace("shop") }, true},
		{"it comes sharing", func() { s.SetNamespace(&Namespace{Name: "shop", Egress: 1e6}) }, true},
		{"this node", func() { s.SetNode(&Node{Name: "node"}) }, false},
		{"this node shares", func() { s.SetNode(&Node{Name: "node", Egress: 1e6}) }, true},
		{"another node shares", func() { s.SetNode(&Node{Name: "other", Egress: 1e6}) }, false},
		{"this node goes", func() { s.DeleteNode("node") }, true},
		{"the pod is of another class", func() { s.SetPod(&Pod{Name: Name{"shop", "a"}, Class: Guaranteed}) }, true},
	} {
		step.do()
		changed := false
		select {
		case <-s.TraitsChanged():
			changed = true
		default:
		}
		if changed != step.want {
			t.Errorf("%s: changed is %t, want the opposite", step.name, changed)
		}
	}
}
