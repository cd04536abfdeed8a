package podnet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/test/rig"
)

// TestNetkit checks that pods with a netkit device reach everything, and are held to their
// addresses, as those with a veth are, whether their packets bypass the stack or not.
func TestNetkit(t *testing.T) {
	rig.Root(t)
	needNetkit(t)
	for _, bypass := range []bool{true, false} {
		t.Run(map[bool]string{true: "past the stack", false: "by the stack"}[bypass], func(t *testing.T) {
			w := newOneNodeOf(t, bypass, func(s *agentConfig) { s.Kind = cni.Netkit })
			for _, p := range w.pods {
				w.requireKind("netkit", w.ns, p.device())
				w.requireKind("netkit", p.Netns, "eth0")
				w.must(w.check(p))
			}
			for _, is4 := range []bool{true, false} {
				before := w.forwarded(is4)
				w.talk(t, is4)
				w.dialServices(t, is4)
				if after := w.forwarded(is4); (after == before) != bypass {
					t.Errorf("IPv4 %t: the stack has forwarded %s packets, before %s", is4, after, before)
				}
			}
			w.steal(t)
			w.kill()
			if said := fmt.Sprint(w.agent.Wait()); strings.Contains(said, "attaching it again") {
				t.Errorf("programs are attached again that were not away: %s", said)
			}
			w.start()
			w.must(w.del(w.pods[0]))
			w.must(w.del(w.pods[1]))
		})
	}
}

// TestHasNetkit checks that asking whether the kernel has netkit makes no device.
func TestHasNetkit(t *testing.T) {
	rig.Root(t)
	ns := rig.NewNetns(t, "trial")
	if err := ns.Do(func() error {
		can := netlink.LinkAdd(&netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Name: "one"}}) == nil
		before, err := netlink.LinkList()
		if err != nil {
			return err
		}
		if said := podnet.HasNetkit(); (said == nil) != can {
			t.Errorf("it can make one: %t; it says %v", can, said)
		}
		after, err := netlink.LinkList()
		if len(after) != len(before) {
			t.Errorf("there were %d devices, and are %d", len(before), len(after))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// needNetkit ends the test on a kernel without netkit.
func needNetkit(t *testing.T) {
	t.Helper()
	if err := rig.NewNetns(t, "trial").Do(func() error {
		return netlink.LinkAdd(&netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Name: "one"}})
	}); err != nil {
		rig.Lacking(t, "netkit", fmt.Sprintf("this kernel has no netkit: %v", err))
	}
}

func (w *oneNode) requireKind(want string, ns *rig.Netns, name string) {
	w.t.Helper()
	w.must(ns.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err == nil && link.Type() != want {
			w.t.Errorf("%s of %s is a %s", name, ns, link.Type())
		}
		return err
	}))
}

// dialServices has a pod dial services with backends of all kinds, which are chosen by its packets.
func (w *oneNode) dialServices(t *testing.T, is4 bool) {
	t.Helper()
	a, b := w.pods[0], w.pods[1]
	for i, to := range []struct{ backend, seen netip.Addr }{
		{b.addr[is4], a.addr[is4]}, {nodeAddrs[is4], a.addr[is4]}, {outsiders[is4], nodeOutsideAddrs[is4]}, {a.addr[is4], nodeOutsideAddrs[is4]},
	} {
		at := clusterIP(is4, 10+i)
		w.serve(t, at, to.backend)
		for _, protocol := range []string{"tcp", "udp"} {
			if seen := talk(t, a.Netns, protocol, at); seen != to.seen.String() {
				t.Errorf("service of %s by %s: came from %s, want %s", to.backend, protocol, seen, to.seen)
			}
		}
	}
	w.serve(t, clusterIP(is4, 20), netip.Addr{})
	if seen := talk(t, a.Netns, "tcp-refused", clusterIP(is4, 20)); seen != "refused" {
		t.Errorf("without backends, IPv4 %t: %s", is4, seen)
	}
}
