package hostile

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// frame sends a frame by a namespace's eth0. Without a destination it goes to all.
func frame(t *testing.T, from, to *rig.Netns, rest []byte) {
	t.Helper()
	dest := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	if to != nil {
		must(t, to.Do(func() error {
			link, err := net.InterfaceByName("eth0")
			if err == nil {
				dest = link.HardwareAddr
			}
			return err
		}))
	}
	must(t, from.Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		bytes := append(append(slices.Clone(dest), link.HardwareAddr...), rest...)
		return unix.Sendto(fd, bytes, 0, &unix.SockaddrLinklayer{Ifindex: link.Index})
	}))
}

// tagged returns what follows the MAC addresses of a frame with that many priority tags.
func tagged(tags int, to netip.Addr, packet []byte) []byte {
	return append(append(bytes.Repeat([]byte{0x81, 0, 0, 0}, tags), etherType(to)...), packet...)
}

// TestPriorityTags is the attack of a host on the nodes' link that hides a packet from the address
// of a pod behind priority tags (VLAN 0): to another pod, and to a process of the node, as a frame to
// all. The kernel takes them all off before it delivers the packet. With one it is dropped for its
// source, with more for these; an honest packet with one arrives.
func TestPriorityTags(t *testing.T) {
	w := newNodesOnLAN(t, 1)
	near := w.nodes[0]
	victim, posed := near.pod("victim"), near.pod("beside")
	for i, is4 := range []bool{true, false} {
		port := uint16(400 + i)
		own := netip.MustParseAddr(map[bool]string{true: "198.51.100.200", false: "2001:db8:1::c8"}[is4])
		node := netip.MustParseAddr(map[bool]string{true: "198.51.100.1", false: "2001:db8:1::1"}[is4])
		atPod, atNode := listen(t, victim.Netns, int(port)), listen(t, near.ns, int(port))
		toPod, toNode := netip.AddrPortFrom(victim.addr[is4], port), netip.AddrPortFrom(node, port)
		forged := netip.AddrPortFrom(posed.addr[is4], 99)
		for tags := 1; tags < 5; tags++ {
			reason := map[bool]string{true: "pod-source", false: "protocol"}[tags == 1]
			before := near.drops("tc", reason)
			frame(t, w.outside, near.ns, tagged(tags, node, datagram(forged, toPod, []byte("forged"))))
			frame(t, w.outside, nil, tagged(tags, node, datagram(forged, toNode, []byte("forged"))))
			frame(t, w.outside, near.ns, tagged(1, node, datagram(netip.AddrPortFrom(own, 99), toPod, []byte("honest"))))
			frame(t, w.outside, nil, tagged(1, node, datagram(netip.AddrPortFrom(own, 99), toNode, []byte("honest"))))
			hear(t, atPod, "honest", "forged")
			hear(t, atNode, "honest", "forged")
			if after := near.drops("tc", reason); after != before+2 {
				t.Errorf("%d tags, IPv4 %t: %d of 2 packets dropped", tags, is4, after-before)
			}
		}
	}
}
