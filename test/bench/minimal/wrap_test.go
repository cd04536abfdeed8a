package minimal

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/rig"
)

// wrapOf returns a frame with an IP header around it and a decremented TTL.
func wrapOf(frame []byte, node, backend netip.Addr, mac net.HardwareAddr) []byte {
	inner := append([]byte{}, frame[14:]...)
	var ip []byte
	if node.Is4() {
		inner[8]--
		binary.BigEndian.PutUint16(inner[10:], binary.BigEndian.Uint16(inner[10:])+0x100)
		ip = append([]byte{0x45, 0}, binary.BigEndian.AppendUint16(nil, uint16(20+len(inner)))...)
		ip = append(ip, 0, 0, 0, 0, 64, 4, 0, 0)
		ip = append(append(ip, node.AsSlice()...), backend.AsSlice()...)
		sum := uint32(0)
		for at := 0; at < 20; at += 2 {
			sum += uint32(binary.BigEndian.Uint16(ip[at:]))
		}
		binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	} else {
		inner[7]--
		ip = append([]byte{0x60, 0, 0, 0}, binary.BigEndian.AppendUint16(nil, uint16(len(inner)))...)
		ip = append(append(append(ip, 41, 64), node.AsSlice()...), backend.AsSlice()...)
	}
	return append(append(append(append(append([]byte{}, mac...), mac...), frame[12:14]...), ip...), inner...)
}

// Every packet of a flow gets a header around it, and is unchanged except for its TTL.
func TestWraps(t *testing.T) {
	rig.Root(t)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 3}
	for _, hook := range []Hook{TC, XDP} {
		for _, addrs := range [][4]string{
			{"192.0.2.1:80", "10.1.0.2:8080", "10.1.0.1", "198.51.100.1"}, {"[2001:db8::1]:80", "[fd00:1::2]:8080", "fd00:1::1", "2001:db8:1::1"},
		} {
			pair := Pair{netip.MustParseAddrPort(addrs[0]), netip.MustParseAddrPort(addrs[1])}
			node, client := netip.MustParseAddr(addrs[2]), netip.MustParseAddr(addrs[3])
			hop := Hop{Ifindex: 1, Local: mac, Remote: mac}
			programs, err := NodePort{
				Hook: hook, Pairs: []Pair{pair}, Flows: 16, Wraps: true, Front: hop, Back: hop,
				Clients: []netip.Addr{client, client}, Nodes: []netip.Addr{node, node},
			}.Load()
			if err != nil {
				t.Fatal(err)
			}
			closeLater(t, programs)
			frame, err := frames.Shape{Kind: frames.UDP, Flows: 1, Source: client, To: pair.Frontend, Local: mac, Remote: make(net.HardwareAddr, 6)}.Packet()
			if err != nil {
				t.Fatal(err)
			}
			for _, which := range []string{"the first", "the second"} {
				options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
				if _, err := programs.In.Run(&options); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(wrapOf(frame, node, pair.Backend.Addr(), mac), options.DataOut); diff != "" {
					t.Errorf("%s, %s, %s packet (-want +have):\n%s", hook, pair.Frontend, which, diff)
				}
			}
		}
	}
}
