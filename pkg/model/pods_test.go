package model

import "testing"

// Whoever follows pods hears of every change of one and of a namespace, and of nothing else.
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
			t.Errorf("%s: changed is %t", step.name, changed)
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
