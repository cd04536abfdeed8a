package bpf

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// resetOf returns the RST that answers a segment, with the sequence numbers of RFC 9293.
func resetOf(p packet, payload int) []byte {
	r := packet{from: p.to, to: p.from, proto: tcp, flags: rst, seq: p.ack}
	if p.flags&ack == 0 {
		r.flags, r.seq, r.ack = rst|ack, 0, p.seq+uint32(payload)
		for _, flag := range []byte{syn, fin} {
			if p.flags&flag != 0 {
				r.ack++
			}
		}
	}
	from, to := netip.MustParseAddrPort(r.from), netip.MustParseAddrPort(r.to)
	header := r.transport(from, to)[:20]
	binary.BigEndian.PutUint16(header[14:], 0)
	binary.BigEndian.PutUint16(header[16:], 0)
	pseudo := append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), 0, tcp, 0, 20)
	binary.BigEndian.PutUint16(header[16:], sum16(pseudo, header))
	return datagram{from: from.Addr().String(), to: to.Addr().String(), proto: tcp, fragment: dontFragment(from.Addr()), payload: header,
		macs: [2]byte{1, 0}}.bytes()
}

// dontFragment returns the flags of every answer's IP header: don't fragment, in IPv4.
func dontFragment(addr netip.Addr) uint16 {
	if addr.Is4() {
		return 0x4000
	}
	return 0
}

// refusalOf returns the ICMP error that answers a packet, quoting as much of it as allowed.
func refusalOf(f family, from, to string, kind, code byte, rest uint32, packet []byte) []byte {
	most, tos := 576-28, byte(0xc0)
	if f.any == "[::]" {
		most, tos = 1280-48, 0
	}
	return message{from: from, to: to, kind: kind, code: code, rest: rest, tos: tos, fragment: dontFragment(netip.MustParseAddr(from)),
		body: packet[:min(most, len(packet))], macs: [2]byte{1, 0}}.bytes()
}

// udpTo returns a UDP datagram with a payload of n bytes.
func udpTo(from, to string, n int) datagram {
	a, b := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	l4 := binary.BigEndian.AppendUint16(nil, a.Port())
	l4 = binary.BigEndian.AppendUint16(l4, b.Port())
	l4 = append(binary.BigEndian.AppendUint16(l4, uint16(8+n)), 0, 0)
	for i := range n {
		l4 = append(l4, byte(i*7))
	}
	pseudo := append(append(a.Addr().AsSlice(), b.Addr().AsSlice()...), 0, udp, byte(len(l4)>>8), byte(len(l4)))
	binary.BigEndian.PutUint16(l4[6:], sum16(pseudo, l4))
	return datagram{from: a.Addr().String(), to: b.Addr().String(), proto: udp, payload: l4, macs: [2]byte{0, 1}}
}

// answered runs a packet that is refused: it must be counted, and answered by want or, if that is
// nil, dropped.
func (w *bareNode) answered(t *testing.T, name, reason string, in, want []byte) {
	t.Helper()
	before := w.counted(t, reason)
	verdict, out := w.run(t, w.in, in)
	expect := "answer"
	if want == nil {
		expect, want = "drop", in
	}
	if verdict != expect {
		t.Errorf("%s: %s, want %s; counted: %v", name, verdict, expect, w.reasons(t))
		return
	}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("%s (-want +have):\n%s", name, diff)
	}
	if w.counted(t, reason) != before+1 {
		t.Errorf("%s: not counted as %s", name, reason)
	}
}

// toward gives a frame its sender; the receiver is the device of a test run, which has no address.
func toward(frame []byte) []byte {
	frame[11] = 1
	return frame
}

// A client that dials a service without backends is told so at once.
func TestRefusals(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30081", tcp, maps.NodePort, "", false)
		w.service(t, f.any+":30053", udp, maps.NodePort, "", false)
		client, node := f.client+":4000", f.node+":30081"
		for name, p := range map[string]packet{
			"syn":            {flags: syn, seq: 1000},
			"syn at the end": {flags: syn, seq: 1<<32 - 3},
			"fin":            {flags: fin, seq: 1000},
			"ack":            {flags: ack, seq: 1000, ack: 70000},
			"syn ack":        {flags: syn | ack, seq: 1000, ack: 70000},
			"nothing":        {seq: 5},
			"options":        {flags: syn, seq: 1000, options: 3},
			"extension":      {flags: syn, seq: 1000, extension: []byte{0, 0, 1, 4, 0, 0, 0, 0}},
		} {
			p.from, p.to, p.proto = client, node, tcp
			if f.any == "[::]" {
				p.options = 0
			} else {
				p.extension = nil
			}
			w.answered(t, name, "no-backend", toward(p.bytes()), resetOf(p, 5))
		}
		k := f.kinds()
		for _, n := range []int{0, 1, 2, 3, 13, 500, 520, 521, 1100, 1183, 1184, 1185, 1400} {
			d := udpTo(client, f.node+":30053", n)
			frame := d.bytes()
			w.answered(t, "datagram", "no-backend", frame, refusalOf(f, d.to, d.from, k.unreachable, k.port, 0, frame[14:]))
		}
		w.service(t, f.any+":30082", sctp, maps.NodePort, "", false)
		init := packet{from: client, to: f.node + ":30082", proto: sctp, flags: syn, seq: 1000}
		w.answered(t, "init", "no-backend", toward(init.bytes()),
			refusalOf(f, host(f.node), host(f.client), k.unreachable, k.port, 0, init.bytes()[14:]))
		d := udpTo(client, f.node+":30053", 3)
		d.padding = 7
		w.answered(t, "padding", "no-backend", d.bytes(),
			refusalOf(f, d.to, d.from, k.unreachable, k.port, 0, d.bytes()[14:len(d.bytes())-7]))
		d.padding = 0
		d.payload[6], d.payload[7] = 0, 0
		w.answered(t, "no sum", "no-backend", d.bytes(), refusalOf(f, d.to, d.from, k.unreachable, k.port, 0, d.bytes()[14:]))
	})
}

// So is a client for which there is no port, and a pod that sends to the outside.
func TestNoPortIsSaid(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		k := f.kinds()
		for _, proto := range []byte{tcp, udp} {
			w.service(t, f.any+":30080", proto, maps.NodePort, f.pod+":8080", false)
			for i := range 4 {
				b, _ := w.borrow(t, f, netip.AddrPortFrom(f.nth(2+i), 4000).String(), proto)
				w.establish(t, f, b)
			}
			in := packet{from: f.client + ":4000", to: f.node + ":30080", proto: proto, flags: syn, seq: 1000}
			want := resetOf(in, 5)
			if proto == udp {
				want = refusalOf(f, host(f.node), host(f.client), k.unreachable, k.port, 0, in.bytes()[14:])
			}
			w.answered(t, "client", "no-port", toward(in.bytes()), want)
		}
	})
}

// The same for a pod that sends to the outside, whose pings count as well.
func TestNoPortIsSaidToPods(t *testing.T) {
	masked(t, func(t *testing.T, h *routerTwoPods, f family, hops byte) {
		k := f.kinds()
		for _, proto := range []byte{tcp, udp} {
			for i := range 4 {
				there := packet{from: addrPort(h.addrs[0], 1000+i), to: h.remote + ":80", proto: proto, flags: syn, seq: 7}
				h.pods[0].send(t, there)
				there.from = f.snat + ":0"
				from := h.outside.want(t, withTTL(there, hops))
				back := packet{from: h.remote + ":80", to: from, proto: proto, flags: syn | ack, seq: 1000, ack: 8}
				h.outside.send(t, back)
				back.to = addrPort(h.addrs[0], 1000+i)
				h.pods[0].want(t, withTTL(back, hops))
				there = packet{from: back.to, to: h.remote + ":80", proto: proto, flags: ack, seq: 8, ack: 1001}
				h.pods[0].send(t, there)
				there.from = from
				h.outside.want(t, withTTL(there, hops))
			}
			h.pods[0].send(t, packet{from: h.addrs[0] + ":2000", to: h.remote + ":80", proto: proto, flags: syn, seq: 7})
			if proto == udp {
				h.pods[0].icmp(t, k.unreachable)
				continue
			}
			h.pods[0].wantReset(t, h.remote+":80", h.addrs[0]+":2000")
		}
		at := map[bool]int{true: 14 + 40 + 4, false: 14 + 20 + 4}[f.any == "[::]"]
		ping := func(number uint32) {
			h.pods[0].echo(t, message{from: host(h.addrs[0]), to: host(h.remote), kind: k.echo, rest: number<<16 | 1, ttl: 64})
		}
		for number := range uint32(4) {
			ping(100 + number)
			rest := binary.BigEndian.Uint32(h.outside.icmp(t, k.echo)[at:])
			h.outside.echo(t, message{from: host(h.remote), to: host(f.snat), kind: k.reply, rest: rest, ttl: 64})
			h.pods[0].icmp(t, k.reply)
			ping(100 + number)
			h.outside.icmp(t, k.echo)
		}
		ping(200)
		h.pods[0].icmp(t, k.unreachable)
		if n := h.counted(t, "no-port"); n != 3 {
			t.Errorf("no-port was counted %d times, want 3", n)
		}
	})
}

// wantReset fails unless a reset of that connection comes out next.
func (w *wire) wantReset(t *testing.T, from, to string) {
	t.Helper()
	frame, at := w.next(t, 5*time.Second), 14+20
	if frame[12] == 0x86 {
		at = 14 + 40
	}
	if have := flowOf(from, to, tcp); len(frame) < at+20 || frame[at+13] != rst|ack ||
		binary.BigEndian.Uint16(frame[at:]) != netip.MustParseAddrPort(from).Port() || binary.BigEndian.Uint16(frame[at+2:]) != netip.MustParseAddrPort(to).Port() {
		t.Errorf("want a reset of %v, have %x", have, frame)
	}
}

// Answers go to single hosts, about whole packets, and never about answers.
func TestNoAnswer(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30081", tcp, maps.NodePort, "", false)
		w.service(t, f.any+":30053", udp, maps.NodePort, "", false)
		sources := []string{"224.0.0.1:9", "255.255.255.255:9", "0.0.0.0:9", "127.0.0.1:9", "240.0.0.1:9"}
		if f.any == "[::]" {
			sources = []string{"[ff02::1]:9", "[::]:9", "[::1]:9"}
		}
		for _, source := range sources {
			w.answered(t, source, "no-backend", udpTo(source, f.node+":30053", 5).bytes(), nil)
			w.answered(t, source, "no-backend", toward(packet{from: source, to: f.node + ":30081", proto: tcp, flags: syn}.bytes()), nil)
		}
		first := packet{from: f.client + ":9", to: f.node + ":30053", proto: udp, fragment: 0x2000}
		w.answered(t, "first fragment", "no-backend", first.bytes(), nil)
		reset := packet{from: f.client + ":9", to: f.node + ":30081", proto: tcp, flags: rst}
		if verdict, _ := w.run(t, w.in, reset.bytes()); verdict != "pass" {
			t.Errorf("reset: %s", verdict)
		}
		lying := udpTo(f.client+":9", f.node+":30053", 5).bytes()
		binary.BigEndian.PutUint16(lying[lengthAt(f):], 9000)
		w.answered(t, "longer than its frame", "no-backend", lying, nil)
		short := toward(packet{from: f.client + ":9", to: f.node + ":30081", proto: tcp, flags: syn}.bytes())
		short[len(short)-5-8] = 0xf0
		w.answered(t, "header longer than the segment", "no-backend", short, nil)
	})
}

// lengthAt returns the offset of the packet's length field.
func lengthAt(f family) int {
	if f.any == "[::]" {
		return 14 + 4
	}
	return 14 + 2
}

// A policy that keeps packets on this node drops them silently while other nodes have backends, so
// that load balancers look elsewhere; without any backend they are refused as usual.
func TestPolicyIsSilent(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
		index := w.services
		service := &w.tables.Services[index]
		service.Flags |= maps.ExternalLocal
		p := packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: syn}
		w.answered(t, "others have backends", "no-backend", toward(p.bytes()), nil)
		service.Words[maps.ScopeAll] = 0
		w.answered(t, "nobody has", "no-backend", toward(p.bytes()), resetOf(p, 5))
	})
}

// allow lets the programs answer as often as after a pause.
func (w *bareNode) allow(t *testing.T) {
	t.Helper()
	if err := w.maps.Allowances.Put(uint32(0), make([]bpf.MapsAllowance, ebpf.MustPossibleCPU())); err != nil {
		t.Fatal(err)
	}
}

// ICMP errors are limited, however many packets ask for them; every TCP segment is answered.
func TestAllowance(t *testing.T) {
	each(t, func(t *testing.T, w *bareNode, f family) {
		w.service(t, f.any+":30053", udp, maps.NodePort, "", false)
		w.service(t, f.any+":30081", tcp, maps.NodePort, "", false)
		frame := udpTo(f.client+":9", f.node+":30053", 5).bytes()
		const sent, burst, every = 1000, 64, 4 * time.Millisecond
		start, answers := time.Now(), 0
		for range sent {
			if verdict, _ := w.run(t, w.in, frame); verdict == "answer" {
				answers++
			}
		}
		cpus := runtime.NumCPU()
		most := cpus * (burst + 1 + int(time.Since(start)/every))
		if answers < burst || answers > min(most, sent-1) {
			t.Errorf("%d answers to %d packets, want at least %d and at most %d", answers, sent, burst, most)
		}
		if n := w.counted(t, "no-backend"); n != sent {
			t.Errorf("%d of %d are counted", n, sent)
		}
		w.allow(t)
		if verdict, _ := w.run(t, w.in, frame); verdict != "answer" {
			t.Errorf("after waiting for more tokens: %s", verdict)
		}
		p := packet{from: f.client + ":9", to: f.node + ":30081", proto: tcp, flags: syn}
		for range burst * cpus * 2 {
			w.answered(t, "segment", "no-backend", toward(p.bytes()), resetOf(p, 5))
		}
	})
}
