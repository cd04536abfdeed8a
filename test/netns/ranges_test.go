package netns

import (
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// A process of the node is let in by source ranges that contain the node's address, also where the
// load balancer's address is on a device of the node. Everybody else is left to the packets, which
// have a source.
func TestSourceRangesOfSockets(t *testing.T) {
	rig.Root(t)
	host := rig.NewNetns(t, "node")
	n := newNodeIn(t, host)
	held4, held6 := netip.MustParseAddrPort("127.66.0.9:80"), netip.MustParseAddrPort("[::1]:81")
	within4, within6 := netip.MustParseAddrPort("203.0.113.50:80"), netip.MustParseAddrPort("[2001:db8:5::50]:80")
	without4, without6 := netip.MustParseAddrPort("203.0.113.51:80"), netip.MustParseAddrPort("[2001:db8:5::51]:80")
	for _, s := range []struct {
		at netip.AddrPort
		of string
	}{
		{held4, "192.0.2.0/24"}, {held6, "2001:db8::/64"}, {within4, "192.0.2.1/32"}, {within6, "2001:db8::1/128"},
		{without4, "192.0.2.2/32"}, {without6, "2001:db8::2/128"},
	} {
		backends := back4[:1]
		if s.at.Addr().Is6() {
			backends = []netip.AddrPort{back6}
		}
		index := n.add(service{vip: s.at, kind: maps.LoadBalancer, flags: maps.SourceRanges, backends: backends})
		if err := n.Tables().Ranges.Insert([]maps.Range{{Service: index, Prefix: netip.MustParsePrefix(s.of)}}); err != nil {
			t.Fatal(err)
		}
	}
	inPod, inNode := newPod(t, n.cgroup), &pod{t: t, process: rig.NewChild(t, n.cgroup, host, "pod")}
	inPod.listen(back6, back4[0])
	inNode.listen(back6, back4[0])
	left := func(name string, p *pod, to netip.AddrPort, want syscall.Errno) {
		t.Helper()
		if a := p.do(order{Dial: to}); a.Errno != want {
			t.Errorf("%s to %s: server %s, error %v, want %v", name, to, a.Server, a.Errno, want)
		}
	}
	for _, at := range []netip.AddrPort{within4, within6} {
		left("a node whose address is not known", inNode, at, unix.ENETUNREACH)
	}
	addrs := map[netip.Addr]maps.NodeAddr{nodeAddr4: {Ifindex: 1}, nodeAddr6: {Ifindex: 1}}
	if _, err := n.Maps().SetNodeAddrs(addrs); err != nil {
		t.Fatal(err)
	}
	for addr := range addrs {
		if err := n.Maps().SetSnatAddr(addr); err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range map[netip.AddrPort]netip.AddrPort{held4: back4[0], held6: back6, within4: back4[0], within6: back6} {
		if a := inNode.do(order{Dial: at}); a.Server != want || a.Peer != at {
			t.Errorf("node to %s: server %s, peer %s, error %v, want %s", at, a.Server, a.Peer, a.Errno, want)
		}
	}
	for _, at := range []netip.AddrPort{without4, without6} {
		left("node outside of the ranges", inNode, at, unix.ENETUNREACH)
	}
	for _, at := range []netip.AddrPort{within4, within6, without4, without6} {
		left("pod", inPod, at, unix.ENETUNREACH)
	}
	if _, err := n.Maps().SetNodeAddrs(nil); err != nil {
		t.Fatal(err)
	}
	for _, at := range []netip.AddrPort{within4, within6} {
		left("a node that has lost its address", inNode, at, unix.ENETUNREACH)
	}
}
