package bpf

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// option4 and option6 return what is added to a packet to a backend, for a client that dialed an
// address and port.
func option4(dialed netip.AddrPort) []byte {
	return append([]byte{158, 8, byte(dialed.Port() >> 8), byte(dialed.Port())}, dialed.Addr().AsSlice()...)
}

func option6(next byte, dialed netip.AddrPort) []byte {
	return append([]byte{next, 2, 1, 0, 0x5e, 18, byte(dialed.Port() >> 8), byte(dialed.Port())}, dialed.Addr().AsSlice()...)
}

// withOption returns a frame as a node sends it to a backend and its port, with the dialed
// destination in an option.
func withOption(_, backend string, frame []byte) []byte {
	to := netip.MustParseAddrPort(backend)
	if frame[12] == 0x86 {
		return withOption6(to, frame)
	}
	header := append([]byte{}, frame[14:14+int(frame[14]&15)*4]...)
	payload := append([]byte{}, frame[14+len(header):]...)
	dialed, _ := netip.AddrFromSlice(append([]byte{}, header[16:20]...))
	port := binary.BigEndian.Uint16(payload[2:]) // of the first fragment; packet puts it into every one
	if binary.BigEndian.Uint16(header[6:])&0x1fff == 0 {
		port = redirected(payload, header[9], append(append([]byte{}, header[12:16]...), to.Addr().AsSlice()...), to.Port())
	}
	copy(header[16:], to.Addr().AsSlice())
	header = append(header[:20:20], append(option4(netip.AddrPortFrom(dialed, port)), header[20:]...)...)
	header[0] += 2
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(payload)))
	header[10], header[11] = 0, 0
	binary.BigEndian.PutUint16(header[10:], sum16(header))
	return append(append(append([]byte{}, frame[:14]...), header...), payload...)
}

func withOption6(to netip.AddrPort, frame []byte) []byte {
	header, payload := append([]byte{}, frame[14:54]...), append([]byte{}, frame[54:]...)
	dialed, _ := netip.AddrFromSlice(append([]byte{}, header[24:40]...))
	ends := append(append([]byte{}, header[8:24]...), to.Addr().AsSlice()...)
	var port uint16
	switch next := header[6]; {
	case next != 44 && next != 60:
		port = redirected(payload, next, ends, to.Port())
	case next == 60 || binary.BigEndian.Uint16(payload[2:])&0xfff8 == 0:
		at := 8 * (1 + int(payload[1]))
		if next == 44 {
			at = 8
		}
		port = redirected(payload[at:], payload[0], ends, to.Port())
	default:
		port = binary.BigEndian.Uint16(payload[10:])
	}
	copy(header[24:], to.Addr().AsSlice())
	option := option6(header[6], netip.AddrPortFrom(dialed, port))
	header[6] = 60
	binary.BigEndian.PutUint16(header[4:], uint16(len(option)+len(payload)))
	return append(append(append(append([]byte{}, frame[:14]...), header...), option...), payload...)
}

// redirected gives what follows the IP headers another port, and a checksum for that and for both
// addresses. It returns the old port.
func redirected(l4 []byte, proto byte, ends []byte, port uint16) uint16 {
	at, before := map[byte]int{tcp: 16, udp: 6, 58: 2}[proto], uint16(0)
	if proto == tcp || proto == udp || proto == sctp {
		before = binary.BigEndian.Uint16(l4[2:])
		binary.BigEndian.PutUint16(l4[2:], port)
	}
	switch {
	case proto == sctp && binary.LittleEndian.Uint32(l4[8:]) != 0:
		clear(l4[8:12])
		binary.LittleEndian.PutUint32(l4[8:], crc32.Checksum(l4, crc32.MakeTable(crc32.Castagnoli)))
	case at != 0 && (proto != udp || l4[6]|l4[7] != 0):
		l4[at], l4[at+1] = 0, 0
		sum := sum16(ends, []byte{0, proto, byte(len(l4) >> 8), byte(len(l4))}, l4)
		if sum == 0 && proto == udp {
			sum = 0xffff
		}
		binary.BigEndian.PutUint16(l4[at:], sum)
	}
	return before
}

// A packet's own options stay behind the option, and a client whose first packet has no room for
// the option gets SNAT; a later packet without room is dropped.
func TestOptionBesideOthers(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		m := wrapping{"opt", uint8(bpf.MapsDsrModeDSR_OPT), withOption}
		outside, inside := front(t, s, f, m, tcp)
		p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: syn}
		more := []packet{p}
		if f.any == "0.0.0.0" {
			for words := 1; words <= 8; words++ {
				own := p
				own.options = words
				more = append(more, own)
			}
		} else {
			own := p
			own.extension = []byte{0, 0, 1, 4, 0, 0, 0, 0}
			more = append(more, own)
		}
		for _, p := range more {
			p.flags, p.payload = ack, 100
			outside.send(t, p)
			inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
			s.expectRows(t, 0, 1)
		}
		full := p
		full.options, full.extension = 9, []byte{0, 0, 1, 4, 0, 0, 0, 0}
		frame := full.bytes()
		if f.any != "0.0.0.0" {
			frame[20] = 0 // hop-by-hop
		}
		copy(frame, outside.macs(true))
		before := s.countedAt(t, "tc", "too-big") + s.countedAt(t, "xdp", "too-big")
		if _, err := outside.socket.Write(frame); err != nil {
			t.Fatal(err)
		}
		outside.send(t, p)
		inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
		if n := s.countedAt(t, "tc", "too-big") + s.countedAt(t, "xdp", "too-big"); n != before+1 {
			t.Errorf("%d packets are counted as too big, want 1", n-before)
		}
		s.empty(t)
		outside.send(t, full)
		outside.send(t, p)
		if out := inside.next(t, readTimeout); out == nil {
			t.Error("a flow that has no room for the option does not get to its backend")
		}
		s.expectRows(t, 0, 2)
	})
}

// The backend's node finds the option and leaves the packet's own options in place.
func TestOptionTakenOut(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.sumUp(t, true)
		w.service(t, f.any+":30080", udp, maps.NodePort, f.pod+":9999", false)
		w.hosts(t, f.pod+":80")
		own := []packet{{options: 1}, {options: 8}, {noSum: true}, {payload: 1400}}
		if f.any != "0.0.0.0" {
			own = []packet{{extension: []byte{0, 0, 1, 4, 0, 0, 0, 0}}, {noSum: true}, {payload: 1400}}
		}
		for _, p := range own {
			p.from, p.to, p.proto = f.client+":4000", f.vip+":30080", udp
			to := p
			to.to = f.pod + ":80"
			w.unwrapped(t, "a packet", withOption(f.snat, f.pod+":80", p.bytes()), to, "")
		}
	})
}

// XDP leaves every packet with the option to tc, even if it seems to belong to a flow that XDP
// knows: it may be for a backend here, and only tc removes the option.
func TestOptionIsLeftToTC(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", udp, maps.NodePort, f.pod+":80", true)
		p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: udp}
		if _, out := w.run(t, w.in, p.bytes()); bytes.Equal(out, p.bytes()) {
			t.Error("the flow is not translated")
		}
		p.to = f.vip + ":1"
		frame := withOption("", f.node+":30080", p.bytes())
		if _, out := w.run(t, w.in, frame); bytes.Equal(out, frame) != (w.name == "xdp") {
			t.Errorf("%x comes out of %s as %x", frame, w.name, out)
		}
	})
}

// What only looks like the option is dropped if the packet is for a backend, and left alone
// otherwise. It leaves no trace.
func TestOptionHostile(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", true)
		w.hosts(t, f.pod+":8080")
		p := packet{from: f.client + ":4000", to: f.vip + ":30080", proto: tcp, flags: syn, options: 3}
		v4 := f.any == "0.0.0.0"
		if !v4 {
			p.extension = []byte{0, 0, 1, 4, 0, 0, 0, 0}
		}
		ours := withOption("", f.pod+":8080", p.bytes())
		for _, c := range []struct {
			name string
			at   [2]int // after the fixed IP header
			v4   []byte
			v6   []byte
			want string
		}{
			{"as it is", [2]int{}, []byte{158, 8}, []byte{60, 2}, ""},
			{"no length", [2]int{}, []byte{158, 0}, []byte{60, 0}, "stray"},
			{"too short", [2]int{}, []byte{158, 7}, []byte{60, 1}, "stray"},
			{"too long", [2]int{}, []byte{158, 255}, []byte{60, 3}, "stray"},
			{"another option", [2]int{}, []byte{159, 8}, []byte{60, 2, 1, 0, 0x1e}, "next"},
			{"padding before", [2]int{}, []byte{1, 158, 8}, []byte{60, 2, 1, 1}, "next"},
			{"no padding", [2]int{}, []byte{158, 9}, []byte{60, 2, 0x5e, 20}, "stray"},
			{"another length", [2]int{}, []byte{158, 4}, []byte{60, 2, 1, 0, 0x5e, 17}, "stray"},
			{"no frontend", [2]int{2, 2}, []byte{1, 1}, []byte{1, 0, 0x5e, 18, 1, 1}, "stray"},
			{"twice", [2]int{8, 24}, []byte{158, 8}, []byte{tcp, 0, 0x5e, 4}, "stray"},
		} {
			frame, change, at := append([]byte{}, ours...), c.v4, 14+20+c.at[0]
			if !v4 {
				change, at = c.v6, 14+40+c.at[1]
			}
			copy(frame[at:], change)
			to := p
			to.to = f.pod + ":8080"
			w.unwrapped(t, c.name, frame, to, c.want)
			if c.want != "" {
				w.expectRows(t, 0, 0)
			}
			w.empty(t)
		}
		mapped := append([]byte{}, ours...)
		if !v4 {
			copy(mapped[14+40+8:], netip.MustParseAddr("::ffff:192.0.2.1").AsSlice())
			w.unwrapped(t, "an address of IPv4 in IPv6", mapped, packet{}, "stray")
		}
		for n := w.shortest(f); n < len(ours)-5; n++ { // up to what TCP carries
			if verdict, out := w.run(t, w.in, ours[:n]); verdict == "pass" && w.name == "tc" && !bytes.Equal(out, ours[:n]) {
				t.Errorf("cut to %d bytes it goes on as %x", n, out)
			}
		}
		w.expectRows(t, 0, 0)
	})
}

// A client inside the cluster, which the backend's node could hardly answer, gets SNAT; others do
// not.
func TestOptionInside(t *testing.T) {
	eachRouterNode(t, func(t *testing.T, s *routerNode, f family) {
		m := wrapping{"opt", uint8(bpf.MapsDsrModeDSR_OPT), withOption}
		outside, inside := front(t, s, f, m, tcp)
		p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: syn}
		client := netip.MustParseAddr(host(f.client))
		prefix, err := client.Prefix(client.BitLen() - 4)
		if err != nil {
			t.Fatal(err)
		}
		rows := []maps.Range{{Service: maps.Inside, Prefix: prefix}}
		if err := s.tables.Ranges.Insert(rows); err != nil {
			t.Fatal(err)
		}
		outside.send(t, p)
		inside.want(t, packet{from: f.snat + ":0", to: f.pod + ":8080", proto: tcp, flags: syn, ttl: 63})
		s.expectRows(t, 0, 2)
		s.empty(t)
		if err := s.tables.Ranges.Delete(rows); err != nil {
			t.Fatal(err)
		}
		outside.send(t, p)
		inside.wantWrapped(t, m, f.snat, f.pod+":8080", withTTL(p, 63).bytes())
		s.expectRows(t, 0, 1)
	})
}
