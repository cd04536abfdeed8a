package hostile

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

const tunnelPort = 8472

// inTunnel returns what the tunnel of a node takes for a datagram from one address to another: the
// network's number and a node's MAC address in it are no secrets.
func inTunnel(node string, from, to netip.AddrPort, payload string) string {
	sum := sha256.Sum256([]byte(node))
	packet := []byte{8, 0, 0, 0, 0, 0, 1, 0} // VXLAN, network 1
	packet = append(packet, 2)
	packet = append(packet, sum[:5]...)
	packet = append(packet, 2, 0, 0, 0, 0, 99)
	packet = append(packet, etherType(from.Addr())...)
	return string(append(packet, datagram(from, to, []byte(payload))...))
}

// TestTunnel is the attack of a pod, and of a host outside, that send to the tunnel of a node what
// only nodes may: packets from another's address inside. None of them arrives, neither at pods of
// the other node or of the attacker's own nor at processes of a node; what the attacker sends
// honestly does, its own tunnel to a pod included.
func TestTunnel(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=vxlan")
	near, far := w.nodes[0], w.nodes[1]
	attacker, neighbor, victim := near.pod("attacker"), near.pod("neighbor"), far.pod("victim")
	// An address of the far node that its Node object does not list.
	unlisted := netip.MustParseAddr("198.51.100.77")
	must(t, far.ns.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		addr, _ := netlink.ParseAddr("198.51.100.77/24")
		return netlink.AddrAdd(device, addr)
	}))
	far.knows(unlisted)
	for i, is4 := range []bool{true, false} {
		nodeAddr := func(i int) netip.Addr {
			return netip.MustParseAddr(map[bool]string{true: fmt.Sprintf("198.51.100.%d", i), false: fmt.Sprintf("2001:db8:1::%x", i)}[is4])
		}
		atVictim, atNeighbor, atNode := listen(t, victim.Netns, 400+i), listen(t, neighbor.Netns, 400+i), listen(t, far.ns, 400+i)
		port := uint16(400 + i)
		forged := netip.AddrPortFrom(netip.MustParseAddr(map[bool]string{true: "10.1.1.250", false: "fd00:1:1::250"}[is4]), 99)
		toVictim := inTunnel("n2", forged, netip.AddrPortFrom(victim.addr[is4], port), "forged")
		toNeighbor := inTunnel("n1", netip.AddrPortFrom(victim.addr[is4], 99), netip.AddrPortFrom(neighbor.addr[is4], port), "forged")
		toNode := inTunnel("n2", forged, netip.AddrPortFrom(nodeAddr(2), port), "forged")
		from := netip.AddrPortFrom(attacker.addr[is4], 0)
		at := func(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, tunnelPort) }

		before := near.drops("pod", "tunnel-port")
		send(t, attacker.Netns, from, at(nodeAddr(2)), toVictim)
		send(t, attacker.Netns, from, at(nodeAddr(2)), toNode)
		send(t, attacker.Netns, from, at(nodeAddr(1)), toNeighbor)
		if after := near.drops("pod", "tunnel-port"); after != before+3 {
			t.Errorf("IPv4 %t: %d of 3 packets to tunnels of nodes dropped", is4, after-before)
		}
		before = near.drops("tc", "tunnel-source") + far.drops("tc", "tunnel-source") + far.drops("tc", "tunnel-port")
		send(t, w.outside, netip.AddrPortFrom(nodeAddr(200), 0), at(nodeAddr(2)), toVictim)
		send(t, w.outside, netip.AddrPortFrom(nodeAddr(200), 61234), at(nodeAddr(2)), toNode)
		send(t, w.outside, netip.AddrPortFrom(nodeAddr(200), 61235), at(nodeAddr(2)), toVictim)
		want := before + 3
		if is4 {
			send(t, attacker.Netns, from, at(unlisted), toVictim) // comes from the attacker's node
			want++
		}
		send(t, attacker.Netns, from, netip.AddrPortFrom(victim.addr[is4], port), "honest")
		send(t, attacker.Netns, from, netip.AddrPortFrom(neighbor.addr[is4], port), "honest")
		send(t, attacker.Netns, from, netip.AddrPortFrom(nodeAddr(2), port), "honest")
		hear(t, atVictim, "honest", "forged")
		hear(t, atNeighbor, "honest", "forged")
		hear(t, atNode, "honest", "forged")
		if after := near.drops("tc", "tunnel-source") + far.drops("tc", "tunnel-source") + far.drops("tc", "tunnel-port"); after != want {
			t.Errorf("IPv4 %t: %d of %d packets from no node's tunnel dropped", is4, after-before, want-before)
		}
	}
	tunnel := listen(t, victim.Netns, tunnelPort)
	send(t, attacker.Netns, netip.AddrPortFrom(attacker.addr[true], 0), netip.AddrPortFrom(victim.addr[true], tunnelPort), "a tunnel of our own")
	if from := hear(t, tunnel, "a tunnel of our own"); from.Addr() != attacker.addr[true] {
		t.Errorf("a pod's own tunnel comes from %s", from)
	}
}

// TestTunnelOfAnotherNode is the attack of a node that was taken over: it sends through the tunnel,
// as it may, from addresses that are not its pods'.
func TestTunnelOfAnotherNode(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=vxlan")
	rogue, far := w.nodes[0], w.nodes[1]
	victim := far.pod("victim")
	there := listen(t, victim.Netns, 400)
	to := netip.AddrPortFrom(victim.addr[true], 400)
	for i, source := range []string{"10.1.2.250", "198.51.100.2", "127.0.0.1", "169.254.1.1", "224.0.0.1"} {
		before := far.drops("tc", "tunnel-source")
		send(t, rogue.ns, netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), uint16(61001+i)), netip.MustParseAddrPort("198.51.100.2:8472"),
			inTunnel("n2", netip.AddrPortFrom(netip.MustParseAddr(source), 99), to, "forged"))
		send(t, rogue.ns, netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), uint16(61011+i)), netip.MustParseAddrPort("198.51.100.2:8472"),
			inTunnel("n2", netip.MustParseAddrPort("10.1.1.250:99"), to, "from its pod"))
		hear(t, there, "from its pod", "forged")
		if after := far.drops("tc", "tunnel-source"); after != before+1 {
			t.Errorf("from %s: %d of 1 packet dropped", source, after-before)
		}
	}
	send(t, rogue.ns, netip.MustParseAddrPort("198.51.100.1:61021"), netip.MustParseAddrPort("198.51.100.2:8472"),
		inTunnel("n2", netip.MustParseAddrPort("203.0.113.7:99"), to, "from a client outside"))
	hear(t, there, "from a client outside")
}

// TestTunnelFromTheStart is the same attack on a node whose agent starts for the first time, with a
// route to anywhere, so that the kernel takes packets from any source. Nothing comes out of the
// tunnel before the programs check it.
func TestTunnelFromTheStart(t *testing.T) {
	w := newNodesOnLAN(t, 3, "--routing=vxlan")
	rogue, far := w.nodes[0], w.nodes[1]
	rig.Route(t, far.ns, "0.0.0.0/0", "198.51.100.200")
	far.agent.Kill()
	far.run("cleanup")
	there := listen(t, far.ns, 400)
	to := netip.MustParseAddrPort("198.51.100.2:400")
	from, at := netip.MustParseAddrPort("198.51.100.1:61001"), netip.MustParseAddrPort("198.51.100.2:8472")
	forged := inTunnel("n2", netip.MustParseAddrPort("10.1.3.250:99"), to, "forged") // from a pod of the third node
	var flood *net.UDPConn
	must(t, rogue.ns.Do(func() (err error) {
		flood, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(at))
		return err
	}))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			_, _ = flood.Write([]byte(forged)) // refused until the tunnel is there
		}
	}()
	far.start()
	before := far.drops("tc", "tunnel-source")
	for deadline := time.Now().Add(patience); far.drops("tc", "tunnel-source") == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the forged packets do not get to the tunnel")
		}
	}
	stop()
	<-ended
	must(t, flood.Close())
	send(t, rogue.ns, from, at, inTunnel("n2", netip.MustParseAddrPort("10.1.1.250:99"), to, "from its pod"))
	hear(t, there, "from its pod", "forged")
}

// knows waits until the programs of a node know an address of its own.
func (n *node) knows(addr netip.Addr) {
	n.t.Helper()
	m, err := maps.Open(datapath.MapsDir(n.bpffs), true)
	must(n.t, err)
	defer m.Close()
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		list, err := maps.NodeAddrList(m.NodeAddrs)
		must(n.t, err)
		if slices.Contains(list, addr) {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s does not know its address %s", n.name, addr)
		}
	}
}
