package netns

import (
	"net/netip"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// optOut marks the pods with the given keys, and no others, as opted out.
func (n *node) optOut(keys ...maps.OptoutKey) {
	n.t.Helper()
	want := map[maps.OptoutKey]maps.Optout{}
	for _, key := range keys {
		want[key] = maps.MakeOptout("shop/web", nil, maps.OptoutByPod)
	}
	if _, err := n.SetOptouts(want, true); err != nil {
		n.t.Fatal(err)
	}
}

func byNetns(t *testing.T, ns *rig.Netns) maps.OptoutKey {
	t.Helper()
	return maps.OptoutKey{Id: netnsCookie(t, ns), Kind: maps.OptoutNetns}
}

func byCgroup(t *testing.T, cgroup *rig.Cgroup) maps.OptoutKey {
	t.Helper()
	info, err := os.Stat(cgroup.Path())
	if err != nil {
		t.Fatal(err)
	}
	return maps.OptoutKey{Id: info.Sys().(*syscall.Stat_t).Ino, Kind: maps.OptoutCgroup}
}

// untouched returns servers that listen on the addresses of the services themselves.
func untouched(t *testing.T, ns *rig.Netns) []netip.AddrPort {
	t.Helper()
	rig.Address(t, ns, "lo", vip6.Addr().String()+"/128")
	return []netip.AddrPort{vip4, vip6}
}

// podCgroups makes the directories that a kubelet and a runtime make for a pod.
func podCgroups(t *testing.T, top *rig.Cgroup, names ...string) (pod, container *rig.Cgroup) {
	t.Helper()
	pod = top
	for _, name := range names {
		pod = rig.NewCgroupIn(t, pod, name)
	}
	return pod, rig.NewCgroupIn(t, pod, "container")
}

// One of two pods opts out, by each kind of key that identifies it, and back in: from the next call
// on its sockets are left alone, and then balanced again. The other pod's sockets are balanced all
// the time.
func TestOptOut(t *testing.T) {
	for _, test := range []struct {
		name string
		key  func(*testing.T, *rig.Netns, *rig.Cgroup) maps.OptoutKey
		path []string // of the pod's cgroup
	}{
		{"by network namespace", func(t *testing.T, ns *rig.Netns, _ *rig.Cgroup) maps.OptoutKey { return byNetns(t, ns) },
			[]string{"pod1"}},
		{"by cgroup, guaranteed", func(t *testing.T, _ *rig.Netns, pod *rig.Cgroup) maps.OptoutKey { return byCgroup(t, pod) },
			[]string{"kubepods", "pod1"}},
		{"by cgroup, burstable", func(t *testing.T, _ *rig.Netns, pod *rig.Cgroup) maps.OptoutKey { return byCgroup(t, pod) },
			[]string{"kubepods.slice", "kubepods-burstable.slice", "kubepods-burstable-pod1.slice"}},
		{"by cgroup, of a nested node", func(t *testing.T, _ *rig.Netns, pod *rig.Cgroup) maps.OptoutKey { return byCgroup(t, pod) },
			[]string{"system", "node", "kubelet.slice", "kubepods", "besteffort", "pod1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			n.add(service{vip: vip4, backends: back4[:1]})
			n.add(service{vip: vip6, backends: []netip.AddrPort{back6}})
			cgroup, container := podCgroups(t, n.cgroup, test.path...)
			ns := rig.NewNetns(t, "pod")
			p := &pod{t: t, process: rig.NewChild(t, container, ns, "pod")}
			p.listen(untouched(t, ns)...)
			other := newPod(t, n.cgroup)
			for _, p := range []*pod{p, other} {
				p.listen(back4[0], back6)
			}
			check := func(when string, p *pod, balanced bool) {
				t.Helper()
				for vip, want := range map[netip.AddrPort]netip.AddrPort{vip4: back4[0], vip6: back6} {
					if !balanced {
						want = vip
					}
					if a := p.do(order{Dial: vip}); a.Server != want || a.Peer != vip {
						t.Errorf("%s: %s was answered by %s as %s (%v), want by %s", when, vip, a.Server, a.Peer, a.Errno, want)
					}
				}
				if a := p.do(order{Dial: vip4, Dual: true}); balanced != (a.Server == back4[0]) {
					t.Errorf("%s: with an IPv6 socket %s was answered by %s (%v)", when, vip4, a.Server, a.Errno)
				}
			}
			check("before", p, true)
			n.optOut(test.key(t, ns, cgroup))
			check("opted out", p, false)
			check("the other", other, true)
			n.optOut()
			check("opted in", p, true)
		})
	}
}

// What the programs remember of a socket from before its pod opted out must not change the sender
// of its replies.
func TestOptOutOfDatagrams(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, proto: model.UDP, backends: back4[:1]})
	n.add(service{vip: vip6, proto: model.UDP, backends: []netip.AddrPort{back6}})
	ns := rig.NewNetns(t, "pod")
	p := newProgram(t, n.cgroup, ns)
	p.serve(back4[0], back6)
	p.serve(untouched(t, ns)...)
	for _, family := range []struct {
		name    string
		vip     netip.AddrPort
		backend netip.AddrPort
	}{{"IPv4", vip4, back4[0]}, {"IPv6", vip6, back6}} {
		t.Run(family.name, func(t *testing.T) {
			p.t, n.t = t, t
			vip, backend := family.vip, family.backend
			expect := func(when string, socket int, to, server, from netip.AddrPort) {
				t.Helper()
				if s, f := p.ask(socket, to); s != server.String() || f != from {
					t.Errorf("%s: %s answered as %s, want %s as %s", when, s, f, server, from)
				}
			}
			loose, fixed := p.udp(vip, false), p.udp(vip, false)
			p.must(op{Call: "connect", Socket: fixed, Addr: vip})
			none := netip.AddrPort{}
			expect("before", loose, vip, backend, vip)
			expect("before, connected", fixed, none, backend, vip)
			n.optOut(byNetns(t, ns))
			expect("connected before", fixed, none, backend, vip)
			expect("opted out", loose, vip, vip, vip)
			expect("opted out, to the backend", loose, backend, backend, backend)
			p.must(op{Call: "connect", Socket: fixed, Addr: vip})
			if peer := p.must(op{Call: "peer", Socket: fixed}).Addr; peer != vip {
				t.Errorf("opted out: the peer is %s", peer)
			}
			expect("opted out, connected", fixed, none, vip, vip)
			p.must(op{Call: "connect", Socket: fixed, Addr: backend})
			expect("opted out, connected to the backend", fixed, none, backend, backend)
			n.optOut()
			expect("opted in", loose, vip, backend, vip)
			p.must(op{Call: "connect", Socket: fixed, Addr: vip})
			expect("opted in, connected", fixed, none, backend, vip)
		})
	}
}

// A pod that has opted out is not refused where a service has no backend: the packet programs do
// that.
func TestOptOutWithoutBackends(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4})
	ns := rig.NewNetns(t, "pod")
	p := &pod{t: t, process: rig.NewChild(t, n.cgroup, ns, "pod")}
	p.listen(vip4)
	if a := p.do(order{Dial: vip4}); a.Errno != unix.ECONNREFUSED {
		t.Errorf("before: answered by %s (%v)", a.Server, a.Errno)
	}
	n.optOut(byNetns(t, ns))
	if a := p.do(order{Dial: vip4}); a.Server != vip4 {
		t.Errorf("opted out: answered by %s (%v)", a.Server, a.Errno)
	}
}

// A process of the node may not bind a NodePort, even if it has opted out.
func TestOptOutLeavesTheBindGuard(t *testing.T) {
	host := rig.NewNetns(t, "node")
	n := newNodeIn(t, host)
	n.add(service{vip: netip.MustParseAddrPort("0.0.0.0:30080"), kind: maps.NodePort, backends: back4[:1]})
	p := newProgram(t, n.cgroup, host)
	n.optOut(byCgroup(t, n.cgroup), byNetns(t, host))
	socket := p.udp(vip4, false)
	p.must(op{Call: "close", Socket: socket})
	p.must(op{Call: "open", Socket: socket, Addr: vip4, TCP: true})
	if out := p.do(op{Call: "bind", Socket: socket, Addr: netip.MustParseAddrPort("0.0.0.0:30080")}); out.Errno != unix.EADDRINUSE {
		t.Errorf("bind: %v", out.Errno)
	}
}
