package hostile

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestTunnelOfPages is what the fence around the tunnel must read: packets of which the kernel has
// only the link's header at hand, and all else in pages of memory. They are judged as others are.
func TestTunnelOfPages(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=vxlan")
	near, far := w.nodes[0], w.nodes[1]
	victim := far.pod("victim")
	for i, is4 := range []bool{true, false} {
		port := uint16(400 + i)
		there, to := listen(t, victim.Netns, int(port)), netip.AddrPortFrom(victim.addr[is4], port)
		sources := map[bool][2]string{true: {"10.1.2.250", "10.1.1.250"}, false: {"fd00:1:2::250", "fd00:1:1::250"}}[is4]
		before := far.drops("tc", "tunnel-source")
		for j, payload := range []string{"forged", "honest"} {
			inner := inTunnel("n2", netip.AddrPortFrom(netip.MustParseAddr(sources[j]), 99), to, payload)
			w.pages(t, near, far, 61001, tunnelPort, inner)
		}
		hear(t, there, "honest", "forged")
		if after := far.drops("tc", "tunnel-source"); after != before+1 {
			t.Errorf("IPv4 %t: %d of 1 packet dropped", is4, after-before)
		}
	}
}

// pages sends a datagram from one node to the other by a ring of packets, which the kernel does not
// copy.
func (w *nodesOnLAN) pages(t *testing.T, from, to *node, sport, dport uint16, payload string) {
	t.Helper()
	device := func(n *node) (index int, mac net.HardwareAddr, ip net.IP) {
		must(t, n.ns.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
			index, mac, ip = link.Attrs().Index, link.Attrs().HardwareAddr, addrs[0].IP.To4()
			return err
		}))
		return index, mac, ip
	}
	index, source, sender := device(from)
	_, dest, receiver := device(to)
	ip := []byte{0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(payload)))
	ip = append(append(ip, sender...), receiver...)
	binary.BigEndian.PutUint16(ip[10:], ^sum16(ip))
	frame := append(append(append(net.HardwareAddr{}, dest...), source...), 8, 0)
	frame = binary.BigEndian.AppendUint16(append(frame, ip...), sport)
	frame = binary.BigEndian.AppendUint16(frame, dport)
	frame = binary.BigEndian.AppendUint16(frame, uint16(8+len(payload)))
	frame = append(append(frame, 0, 0), payload...)
	must(t, from.ns.Do(func() error {
		socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(socket)
		const size, header = 4096, 32 // of the ring, and of what is before a frame in it
		if err := unix.SetsockoptTpacketReq(socket, unix.SOL_PACKET, unix.PACKET_TX_RING, &unix.TpacketReq{Block_size: size, Block_nr: 1, Frame_size: size, Frame_nr: 1}); err != nil {
			return err
		}
		ring, err := unix.Mmap(socket, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		defer unix.Munmap(ring)
		copy(ring[header:], frame)
		binary.NativeEndian.PutUint32(ring[8:], uint32(len(frame)))
		binary.NativeEndian.PutUint64(ring, unix.TP_STATUS_SEND_REQUEST)
		return unix.Sendto(socket, nil, 0, &unix.SockaddrLinklayer{Ifindex: index, Protocol: 8})
	}))
}
