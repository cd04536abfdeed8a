package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// A pod becomes due when an attachment comes, changes or goes, and not when the same one is set
// again.
func TestAttachments(t *testing.T) {
	s := NewStore("node")
	pod := Name{"shop", "a"}
	ports := func(n uint16) []HostPort { return []HostPort{{Port: n, Protocol: TCP}} }
	for _, step := range []struct {
		name string
		do   func()
		due  bool
		have []string // devices
	}{
		{"without ports", func() { s.SetAttachment(&Attachment{Pod: pod, Device: "fl0"}) }, false, nil},
		{"one", func() { s.SetAttachment(&Attachment{Pod: pod, Device: "fl1", Created: 2, HostPorts: ports(1)}) }, true, []string{"fl1"}},
		{"again", func() { s.SetAttachment(&Attachment{Pod: pod, Device: "fl1", Created: 2, HostPorts: ports(1)}) }, false, []string{"fl1"}},
		{"an older", func() { s.SetAttachment(&Attachment{Pod: pod, Device: "fl2", Created: 1, HostPorts: ports(2)}) }, true, []string{"fl2", "fl1"}},
		{"changed", func() { s.SetAttachment(&Attachment{Pod: pod, Device: "fl2", Created: 3, HostPorts: ports(2)}) }, true, []string{"fl1", "fl2"}},
		{"another's", func() { s.DeleteAttachment(Name{"shop", "b"}, "fl1") }, false, []string{"fl1", "fl2"}},
		{"gone", func() { s.DeleteAttachment(pod, "fl1") }, true, []string{"fl2"}},
		{"gone twice", func() { s.DeleteAttachment(pod, "fl1") }, false, []string{"fl2"}},
		{"lost", func() { s.SetAttachment(&Attachment{Pod: pod, Device: "fl2", Created: 3, Lost: true}) }, true, []string{"fl2"}},
		{"no ports any more", func() { s.SetAttachment(&Attachment{Pod: pod, Device: "fl2"}) }, true, nil},
	} {
		before := s.Attached(pod)
		devices := devicesOf(before)
		step.do()
		if due := len(s.TakeDirty()) > 0; due != step.due {
			t.Errorf("%s: due is %t, want the opposite", step.name, due)
		}
		if have := devicesOf(s.Attached(pod)); have != join(step.have) {
			t.Errorf("%s: attached is %q, want %q", step.name, have, join(step.have))
		}
		if devicesOf(before) != devices {
			t.Errorf("%s: a list that a reader holds has changed", step.name)
		}
		known := len(s.Keys()) > 0
		s.MarkAll()
		if all := len(s.TakeDirty()) > 0; all != (step.have != nil) || known != all {
			t.Errorf("%s: after MarkAll due is %t; known before is %t", step.name, all, known)
		}
	}
}

func devicesOf(list []*Attachment) string {
	var names []string
	for _, a := range list {
		names = append(names, a.Device)
	}
	return join(names)
}

func join(names []string) string { return strings.Join(names, " ") }

// A pod with a hostIP becomes due when an interface of the node gains or loses that address,
// whether the port came from the Pod or from the runtime.
func TestHostIPsComeAndGo(t *testing.T) {
	s := NewStore("node")
	addr, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	s.SetPod(&Pod{Name: Name{"shop", "a"}, HostPorts: []HostPort{{HostIP: addr, Port: 80}}})
	s.SetPod(&Pod{Name: Name{"shop", "b"}, HostPorts: []HostPort{{Port: 80}}})
	s.SetAttachment(&Attachment{Pod: Name{"shop", "c"}, Device: "fl1", HostPorts: []HostPort{{Port: 80}, {HostIP: addr, Port: 80}}})
	s.SetAttachment(&Attachment{Pod: Name{"shop", "d"}, Device: "fl2", HostPorts: []HostPort{{Port: 80}}})
	s.TakeDirty()
	for _, step := range []struct {
		local []netip.Addr
		want  string
	}{
		{[]netip.Addr{other}, "[]"}, {[]netip.Addr{other, addr}, "[pod:shop/a pod:shop/c]"}, {[]netip.Addr{addr}, "[]"}, {nil, "[pod:shop/a pod:shop/c]"},
	} {
		s.SetLocal(slices.Values(step.local))
		if got := fmt.Sprint(s.TakeDirty()); got != step.want {
			t.Errorf("with %v %s is due, want %s", step.local, got, step.want)
		}
	}
}
