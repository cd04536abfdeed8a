package netns

import (
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

var (
	nodeAddr4 = netip.MustParseAddr("192.0.2.1")
	nodeAddr6 = netip.MustParseAddr("2001:db8::1")
	nodePort4 = netip.MustParseAddrPort("0.0.0.0:30080")
	nodePort6 = netip.MustParseAddrPort("[::]:30080")
	hostPort4 = netip.MustParseAddrPort("0.0.0.0:9000")
	hostOwn4  = netip.MustParseAddrPort("127.0.0.7:9001") // a HostPort with its own address
)

// newPorts returns a node with node ports and host ports, and a pod and a process of the node
// itself, both of which serve the backends.
func newPorts(t *testing.T) (n *node, inPod, inNode *pod) {
	t.Helper()
	rig.Root(t)
	host := rig.NewNetns(t, "node")
	n = newNodeIn(t, host)
	n.add(service{vip: nodePort4, kind: maps.NodePort, backends: back4[:1]})
	n.add(service{vip: nodePort6, kind: maps.NodePort, backends: []netip.AddrPort{back6}})
	n.add(service{vip: hostPort4, kind: maps.HostPort, backends: back4[1:2]})
	n.add(service{vip: hostOwn4, kind: maps.HostPort, backends: back4[2:3]})
	if _, err := n.Maps().SetNodeAddrs(map[netip.Addr]maps.NodeAddr{nodeAddr4: {Ifindex: 1}, nodeAddr6: {Ifindex: 1}}); err != nil {
		t.Fatal(err)
	}
	inPod = newPod(t, n.cgroup)
	inNode = &pod{t: t, process: rig.NewChild(t, n.cgroup, host, "pod")}
	for _, p := range []*pod{inPod, inNode} {
		p.listen(append([]netip.AddrPort{back6}, back4...)...)
	}
	return n, inPod, inNode
}

func TestNodePort(t *testing.T) {
	_, inPod, inNode := newPorts(t)
	at := func(addr string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), port)
	}
	none := netip.AddrPort{}
	for _, test := range []struct {
		name  string
		pod   *pod
		to    netip.AddrPort
		want  netip.AddrPort
		errno syscall.Errno
	}{
		{"pod to its node", inPod, at("192.0.2.1", 30080), back4[0], 0},
		{"pod to its node by IPv6", inPod, at("2001:db8::1", 30080), back6, 0},
		{"pod to another node", inPod, at("192.0.2.2", 30080), none, unix.ENETUNREACH},
		{"pod to its own loopback", inPod, at("127.0.0.9", 30080), none, unix.ECONNREFUSED},
		{"pod to its own loopback by IPv6", inPod, at("::1", 30080), none, unix.ECONNREFUSED},
		{"pod to no address", inPod, at("0.0.0.0", 30080), none, unix.ECONNREFUSED},
		{"pod to no address of IPv6", inPod, at("::", 30080), none, unix.ECONNREFUSED},
		{"pod to another port", inPod, at("192.0.2.1", 30081), none, unix.ENETUNREACH},
		{"pod to a host port", inPod, at("192.0.2.1", 9000), back4[1], 0},
		{"pod to a host port of loopback", inPod, hostOwn4, none, unix.ECONNREFUSED},
		{"node to itself", inNode, at("192.0.2.1", 30080), back4[0], 0},
		{"node to loopback", inNode, at("127.0.0.9", 30080), back4[0], 0},
		{"node to loopback by IPv6", inNode, at("::1", 30080), back6, 0},
		{"node to no address", inNode, at("0.0.0.0", 30080), back4[0], 0},
		{"node to another node", inNode, at("192.0.2.2", 30080), none, unix.ENETUNREACH},
		{"node to a host port of loopback", inNode, hostOwn4, back4[2], 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.pod.t = t
			a := test.pod.do(order{Dial: test.to})
			if a.Server != test.want || a.Errno != test.errno {
				t.Errorf("server %s, error %v; want %s, %v", a.Server, a.Errno, test.want, test.errno)
			}
			if test.errno == 0 && test.to.Addr().IsUnspecified() == false && a.Peer != test.to {
				t.Errorf("the peer is %s, want %s", a.Peer, test.to)
			}
		})
	}
}

// The node's own processes cannot bind a node port; it becomes free when the frontend is removed.
// Pods may bind any port.
func TestBindGuard(t *testing.T) {
	rig.Root(t)
	host := rig.NewNetns(t, "node")
	n := newNodeIn(t, host)
	n.add(service{vip: nodePort4, kind: maps.NodePort, backends: back4[:1]})
	n.add(service{vip: hostPort4, kind: maps.HostPort, backends: back4[1:2]})
	if _, err := n.Maps().SetNodeAddrs(map[netip.Addr]maps.NodeAddr{netip.MustParseAddr("127.0.0.1"): {Ifindex: 1}}); err != nil {
		t.Fatal(err)
	}
	inNode, inPod := newProgram(t, n.cgroup, host), newProgram(t, n.cgroup, rig.NewNetns(t, "pod"))
	bind := func(p *program, at string, tcp bool) syscall.Errno {
		t.Helper()
		p.sockets++
		addr := netip.MustParseAddrPort(at)
		p.must(op{Call: "open", Socket: p.sockets, Addr: addr, TCP: tcp})
		errno := p.do(op{Call: "bind", Socket: p.sockets, Addr: addr}).Errno
		p.must(op{Call: "close", Socket: p.sockets})
		return errno
	}
	for _, test := range []struct {
		name string
		p    *program
		at   string
		tcp  bool
		want syscall.Errno
	}{
		{"every address", inNode, "0.0.0.0:30080", true, unix.EADDRINUSE},
		{"every address of both families", inNode, "[::]:30080", true, unix.EADDRINUSE},
		{"loopback", inNode, "127.0.0.1:30080", true, unix.EADDRINUSE},
		{"another protocol", inNode, "0.0.0.0:30080", false, 0},
		{"another port", inNode, "0.0.0.0:30081", true, 0},
		{"any port", inNode, "0.0.0.0:0", true, 0},
		{"a host port", inNode, "0.0.0.0:9000", true, 0},
		{"a pod", inPod, "0.0.0.0:30080", true, 0},
		{"a pod by IPv6", inPod, "[::]:30080", true, 0},
	} {
		if got := bind(test.p, test.at, test.tcp); got != test.want {
			t.Errorf("%s: bind %s: %v, want %v", test.name, test.at, got, test.want)
		}
	}
	key := maps.KeyOf(nodePort4.Addr(), nodePort4.Port(), model.TCP)
	if err := n.Tables().Svcs.Delete([]maps.SvcKey{key}); err != nil {
		t.Fatal(err)
	}
	if got := bind(inNode, "0.0.0.0:30080", true); got != 0 {
		t.Errorf("bind the port of a deleted Service: %v", got)
	}
}
