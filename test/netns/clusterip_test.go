package netns

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// A socket that dials an address of Services where none has that port, or that none has, is refused
// at once, although somebody would answer here. So is a datagram of a socket that is not connected.
// UDP sockets may be connected to anything: that is how libraries learn their own address.
func TestNowhere(t *testing.T) {
	n := newNode(t)
	port4, nobody4 := netip.AddrPortFrom(vip4.Addr(), 81), netip.MustParseAddrPort("127.66.7.7:80")
	port6, nobody6 := netip.AddrPortFrom(vip6.Addr(), 81), netip.MustParseAddrPort("[fd00:96::99]:80")
	outOnly, beyond := netip.MustParseAddrPort("127.66.0.2:80"), netip.MustParseAddrPort("127.67.0.1:80")
	n.add(service{vip: vip4, backends: back4[:1]})
	n.add(service{vip: vip6, backends: []netip.AddrPort{back6}})
	n.add(service{vip: outOnly, kind: maps.ExternalOnly, backends: back4[:1]})
	n.add(service{vip: netip.AddrPortFrom(vip4.Addr(), 53), proto: model.UDP, backends: back4[:1]}) // attaches the hooks of datagrams
	ns := rig.NewNetns(t, "pod")
	for _, addr := range []netip.Addr{vip6.Addr(), nobody6.Addr()} {
		rig.Address(t, ns, "lo", addr.String()+"/128")
	}
	p := &pod{t: t, process: rig.NewChild(t, n.cgroup, ns, "pod")}
	p.listen(back4[0], back6, port4, nobody4, port6, nobody6, outOnly, beyond)
	sockets := newProgram(t, n.cgroup, ns)
	dials := func(when string, to netip.AddrPort, dual, refused bool) {
		t.Helper()
		a := p.do(order{Dial: to, Dual: dual})
		if got := a.Errno == unix.ECONNREFUSED; got != refused || !refused && a.Server != to {
			t.Errorf("%s, to %s: server %s, error %v, want refused: %t", when, to, a.Server, a.Errno, refused)
		}
		socket := sockets.udp(to, dual)
		if out := sockets.do(op{Call: "send", Socket: socket, Addr: to}); (out.Errno == unix.ECONNREFUSED) != refused || !refused && out.Errno != 0 {
			t.Errorf("%s, a datagram to %s: error %v, want refused: %t", when, to, out.Errno, refused)
		}
		if out := sockets.do(op{Call: "connect", Socket: socket, Addr: to}); out.Errno != 0 {
			t.Errorf("%s, connecting UDP to %s: %v", when, to, out.Errno)
		}
	}
	all := []netip.AddrPort{port4, nobody4, port6, nobody6}
	for _, to := range all {
		dials("no ranges", to, false, false)
	}
	rows := []maps.Range{
		{Service: maps.ClusterIPs, Prefix: netip.MustParsePrefix("127.66.0.0/16")}, {Service: maps.ClusterIPs, Prefix: netip.MustParsePrefix("fd00:96::/108")},
	}
	if err := n.Tables().Ranges.Insert(rows); err != nil {
		t.Fatal(err)
	}
	for _, to := range all {
		dials("ranges", to, false, true)
	}
	dials("an IPv6 socket", nobody4, true, true)
	dials("beyond", beyond, false, false)
	dials("only for clients outside", netip.AddrPortFrom(outOnly.Addr(), 82), false, true)
	if a := p.do(order{Dial: outOnly}); a.Server != outOnly {
		t.Errorf("the port for clients outside: server %s, error %v", a.Server, a.Errno)
	}
	if a := p.do(order{Dial: vip4}); a.Server != back4[0] {
		t.Errorf("the service: server %s, error %v", a.Server, a.Errno)
	}
	if count := n.count(bpf.MapsReasonREASON_NO_SERVICE); count != 12 {
		t.Errorf("%d refusals counted, want 12", count)
	}
	n.optOut(byNetns(t, ns))
	for _, to := range all {
		dials("opted out", to, false, false)
	}
	n.optOut()
	if _, err := n.Maps().SetNodeAddrs(map[netip.Addr]maps.NodeAddr{nobody4.Addr(): {Ifindex: 1}, nobody6.Addr(): {Ifindex: 1}}); err != nil {
		t.Fatal(err)
	}
	dials("an address of the node", nobody4, false, false)
	dials("an address of the node", nobody6, false, false)
	dials("no address of the node", port4, false, true)
}
