package model

import "testing"

// AcceleratedChanged fires on every change of a pod, a namespace, a policy or the node's rate, and on
// nothing else.
func TestAcceleratedChanged(t *testing.T) {
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
		{"other labels", func() { s.SetPod(&Pod{Name: name, Labels: map[string]string{"app": "web"}}) }, true},
		{"a new Namespace", func() { s.SetNamespace(&Namespace{Name: "ns"}) }, true},
		{"its annotation changes", func() { s.SetNamespace(&Namespace{Name: "ns", Accelerate: Yes}) }, true},
		{"a new policy", func() { s.SetAcceleration(&Acceleration{Name: name}) }, true},
		{"the same policy", func() { s.SetAcceleration(&Acceleration{Name: name}) }, false},
		{"a changed policy", func() { s.SetAcceleration(&Acceleration{Name: name, Ports: []uint16{80}}) }, true},
		{"the first complete list", func() { s.ReplaceAccelerations([]*Acceleration{{Name: name, Ports: []uint16{80}}}) }, true},
		{"the same again", func() { s.ReplaceAccelerations([]*Acceleration{{Name: name, Ports: []uint16{80}}}) }, false},
		{"no policy", func() { s.ReplaceAccelerations(nil) }, true},
		{"a policy", func() { s.SetAcceleration(&Acceleration{Name: name}) }, true},
		{"it is deleted", func() { s.DeleteAcceleration(name) }, true},
		{"it is deleted again", func() { s.DeleteAcceleration(name) }, false},
		{"a deleted Pod", func() { s.DeletePod(name) }, true},
		{"another node's rate", func() { s.SetNode(&Node{Name: "other", Egress: 1000}) }, false},
		{"this node's rate", func() { s.SetNode(&Node{Name: "node", Egress: 1000}) }, true},
		{"no rate", func() { s.SetNode(&Node{Name: "node"}) }, true},
	} {
		step.do()
		changed := false
		select {
		case <-s.AcceleratedChanged():
			changed = true
		default:
		}
		if changed != step.want {
			t.Errorf("%s: changed is %t, want the opposite", step.name, changed)
		}
	}
}

// Accelerations says that the list is incomplete until all policies have been delivered, so that
// nobody acts on a missing one. The Store as a whole does not wait for them.
func TestAccelerations(t *testing.T) {
	s := NewStore("node")
	a, b := &Acceleration{Name: Name{"ns", "a"}}, &Acceleration{Name: Name{"ms", "b"}}
	s.SetAcceleration(a)
	s.SetAcceleration(b)
	if list, all := s.Accelerations(); all || len(list) != 2 || list[0] != b || list[1] != a {
		t.Errorf("before the list is complete: %v, %t", list, all)
	}
	s.ReplaceServices(nil)
	s.ReplaceSlices(nil)
	s.ReplaceNodes(nil)
	s.ReplaceNamespaces(nil)
	s.ReplacePods(nil)
	<-s.Synced()
	s.ReplaceAccelerations([]*Acceleration{a})
	if list, all := s.Accelerations(); !all || len(list) != 1 {
		t.Errorf("afterwards: %v, %t", list, all)
	}
}

func TestCompareAge(t *testing.T) {
	ordered := []*Acceleration{
		{Created: 1, UID: "b"}, {Created: 2, UID: "a"}, {Created: 2, UID: "b", Name: Name{"a", "z"}}, {Created: 2, UID: "b", Name: Name{"b", "a"}},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			if got := a.CompareAge(b); got < 0 != (i < j) || got == 0 != (i == j) {
				t.Errorf("%+v to %+v: %d", a, b, got)
			}
		}
	}
}
