package model

import (
	"reflect"
	"testing"
)

// TestShare checks that pods share labels and ports only if they are equal.
func TestShare(t *testing.T) {
	pod := func(app string, port uint16) *PolicyPod {
		return &PolicyPod{Name: Name{Namespace: "n", Name: app}, Labels: map[string]string{"app": app}, Ports: []NamedPort{{Name: "http", Port: port}}}
	}
	first, same, other := pod("web", 80), pod("web", 80), pod("db", 81)
	same.Share(first)
	other.Share(first)
	if reflect.ValueOf(same.Labels).Pointer() != reflect.ValueOf(first.Labels).Pointer() || &same.Ports[0] != &first.Ports[0] {
		t.Error("pods that look the same share nothing")
	}
	if !reflect.DeepEqual(same, pod("web", 80)) || !reflect.DeepEqual(other, pod("db", 81)) {
		t.Errorf("pods have changed: %+v, %+v", same, other)
	}
}
