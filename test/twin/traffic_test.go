package twin

import (
	"encoding/binary"
	"net/netip"
)

// packet makes a packet that comes in or leaves.
func (g *generator) packet() operation {
	d, leaving := g.draft()
	device := 1
	if g.in100(20) {
		device = 2
	}
	switch n := g.IntN(1000); {
	case n < 60:
		d, leaving = g.errorAbout(d, leaving)
	case n < 75:
		d, leaving = g.ping(), false
	case n < 150:
		d = g.fragment(d, g.parts[comesIn])
	case n < 160:
		d.tags = 1 + g.IntN(3)
	}
	if owner := g.node.owner(d.from.Addr()); owner > thisNode && g.in100(85) || g.in100(1) {
		device = tunnelDevice
	}
	if !leaving && g.in100(1) {
		d = g.toTunnel(d)
	}
	d.dest, d.source = g.node.MACs[device], MAC{2, 0, 0, 0, byte(device), 2}
	if !leaving {
		d = g.forwarded(d)
	}
	frame := d.bytes()
	if g.in100(5) {
		frame = g.spoil(frame)
	}
	if leaving {
		return operation{Leaving: frame}
	}
	if len(frame) > 14+g.node.MTU[device] || device == tunnelDevice && tooShort(frame) { // larger than the link's MTU, or too short for a test run
		return g.packet()
	}
	in := &receivedFrame{Frame: frame, Device: device, Silent: g.in100(5)}
	if device == tunnelDevice {
		in.Sender = g.sender(d.from.Addr())
	}
	return operation{In: in}
}

// draft makes an ordinary packet: mostly one of an existing flow, in either direction.
func (g *generator) draft() (d draft, leaving bool) {
	flow, ok := g.known(g.flows)
	if g.in100(3) { // a host outside uses a pod's address, or answers one
		flow, ok = g.known(g.dials)
	}
	if !ok || g.in100(14) {
		flow = g.dialed(false)
		if g.flows = append(g.flows, flow); len(g.flows) > knownFlows {
			g.flows = g.flows[1:]
		}
	}
	row := g.rowOf(flow)
	replies := 45
	if row != nil && row.Direct != DirectOff { // this node sees no replies of such a flow
		replies = 5
	}
	reply := row != nil && g.in100(replies)
	d = g.draftOf(flow, reply)
	if reply {
		leaving = row.Local || row.Direct != DirectOff // otherwise the backend is on another node
		if g.in100(3) {
			leaving = !leaving
		}
	} else {
		leaving = g.in100(1)
	}
	return d, leaving
}

// draftOf makes a packet of a flow, or the answer to one.
func (g *generator) draftOf(flow Flow, reply bool) draft {
	d := draft{ttl: 64, whole: g.in100(50), seq: g.Uint32(), ack: g.Uint32(), payload: make([]byte, g.size())}
	for i := range d.payload {
		d.payload[i] = byte(g.Uint32())
	}
	if g.in100(3) {
		d.ttl = byte(g.IntN(3))
	}
	row := g.rowOf(flow)
	switch {
	case reply:
		d.flags, flow = g.replyFlags(row), row.back(flow.Proto)
		d.payload = d.payload[:min(len(d.payload), 1100)]
	case row != nil && row.State == Answered && g.in100(85):
		if d.ack = row.Seen + uint32(g.IntN(3))*30000; flow.Proto == protoSCTP && g.in100(80) {
			d.ack = row.Seen
		}
		fallthrough
	default:
		d.flags = g.requestFlags(row)
	}
	d.from, d.to, d.proto = flow.Source, flow.Dest, flow.Proto
	g.place(&d, flow)
	d.noSum = g.in100(10)
	g.lengthen(&d)
	return d
}

// place gives most packets of an established flow the numbers that it would have.
func (g *generator) place(d *draft, flow Flow) {
	row := g.rowOf(flow)
	if row == nil || row.Reached == 0 {
		return
	}
	near := func(reached uint16) uint32 { return uint32(reached-2+uint16(g.IntN(12)))<<16 | g.Uint32()>>16 }
	switch other := g.rowOf(row.back(flow.Proto)); {
	case row.Reply && other != nil && other.Dialed != 0 && g.in100(30):
		d.flags, d.ack = SYN|ACK, uint32(other.Dialed)<<16|g.Uint32()>>16
	case row.Dialed != 0 && other != nil && other.Dialed != 0 && g.in100(30):
		d.flags, d.seq, d.ack = d.flags&^SYN|ACK, near(row.Dialed), uint32(other.Dialed)<<16|g.Uint32()>>16
	case flow.Proto == protoSCTP && g.in100(80):
		d.ack = uint32(row.Reached)<<16 | g.Uint32()>>16
	case flow.Proto == protoTCP && g.in100(75):
		d.seq = near(row.Reached)
	case flow.Proto == protoTCP && other != nil && g.in100(50):
		d.ack = near(other.Reached)
	}
}

// size returns a payload length; some payloads just fit a link, with encapsulation or without.
func (g *generator) size() int {
	switch n := g.IntN(100); {
	case n < 3:
		return 400 + g.IntN(1000)
	case n < 7:
		return pick(g, []int{1280, 1500}) - 20 - g.IntN(130)
	}
	return g.IntN(40)
}

// lengthen adds options or extension headers.
func (g *generator) lengthen(d *draft) {
	if !g.in100(8) {
		return
	}
	if d.from.Addr().Is4() {
		d.options = 1 + g.IntN(10)
		return
	}
	for range 1 + g.IntN(7) {
		words := g.IntN(4)
		if g.in100(2) {
			words = 100
		}
		header := make([]byte, 8*(words+1))
		header[1] = byte(words)
		d.extensions, d.kinds = append(d.extensions, header), append(d.kinds, pick(g, []byte{0, 43, 60}))
	}
}

func (g *generator) requestFlags(row *Row) byte {
	n := g.IntN(100)
	switch {
	case row == nil:
		return pick(g, []byte{SYN, SYN, SYN, SYN, SYN, SYN, ACK, RST, SYN | ACK, FIN | ACK})
	case n < 4:
		return RST
	case n < 8:
		return FIN | ACK
	case n < 9:
		return byte(g.IntN(256))
	case n < 17, row.State < Open && n < 30:
		return SYN
	}
	return ACK
}

func (g *generator) replyFlags(row *Row) byte {
	n := g.IntN(100)
	switch {
	case n < 3:
		return RST | ACK
	case n < 8:
		return FIN | ACK
	case n < 9:
		return byte(g.IntN(256))
	case row.State < Open && n < 70:
		return SYN | ACK
	}
	return ACK
}

// ping makes an echo request to some address of a service.
func (g *generator) ping() draft {
	v4 := g.in100(50)
	p := g.pools[v4]
	d := draft{ttl: 64, proto: protoICMPv6, from: netip.AddrPortFrom(pick(g, p.clients), 0), to: netip.AddrPortFrom(pick(g, p.vips), 0)}
	if g.in100(10) {
		d.from = netip.AddrPortFrom(pick(g, p.strangers), 0)
	}
	kind := byte(128)
	if v4 {
		d.proto, kind = protoICMP, 8
	}
	d.payload = append([]byte{kind, 0, 0, 0, 0, 7, 0, byte(g.IntN(256))}, "echo"[:g.IntN(5)]...)
	if g.in100(10) {
		d.payload[g.IntN(2)] = byte(g.IntN(256))
	}
	if g.in100(10) {
		g.lengthen(&d)
	}
	return d
}

// errorAbout makes an error about a packet as it left the node, so it comes from where that packet
// went.
func (g *generator) errorAbout(d draft, leaving bool) (draft, bool) {
	flow := Flow{d.from, d.to, d.proto}
	about := d
	switch row := g.rowOf(flow); {
	// Such an error is not about what this node sent, but about the answer.
	case row != nil && row.Direct != DirectOff:
		about.from, about.to = flow.Dest, flow.Source
	case row != nil:
		about.from, about.to = row.Source, row.Dest
	}
	about.dest, about.tags = MAC{}, 0
	quote := about.bytes()[14:]
	if g.in100(70) {
		quote = quote[:min(len(quote), 28+g.IntN(60))]
	}
	v4 := d.from.Addr().Is4()
	p := g.pools[v4]
	e := draft{ttl: d.ttl, proto: protoICMPv6, from: about.to, to: about.from, whole: d.whole}
	if g.in100(40) {
		e.from = netip.AddrPortFrom(p.strangers[len(p.strangers)-1], 0)
	}
	if g.in100(5) {
		e.to = netip.AddrPortFrom(pick(g, p.clients), 0)
	}
	kind := byte(1 + g.IntN(4))
	if v4 {
		e.proto = protoICMP
		kind = pick(g, []byte{3, 11, 12})
	}
	if g.in100(5) {
		kind = byte(g.IntN(256))
	}
	e.payload = append([]byte{kind, byte(g.IntN(5)), 0, 0, 0, 0, byte(g.IntN(6)), 0}, quote...)
	if g.in100(5) {
		g.lengthen(&e)
	}
	return e, !leaving && g.in100(40) || g.in100(10)
}

// fragment turns a packet into a first fragment, or into one that follows an earlier first.
func (g *generator) fragment(d draft, known *parts) draft {
	if len(known.firsts) > 0 && g.in100(60) {
		first := pick(g, known.firsts)
		first.offset, first.more, first.ttl = 1+g.IntN(100), g.in100(50), d.ttl
		first.payload = d.payload
		if g.in100(10) {
			first.id++
		}
		return first
	}
	if len(known.later) > 0 && g.in100(30) {
		d, known.later = known.later[0], known.later[1:]
		known.firsts = append(known.firsts, d)
		return d
	}
	d.more, d.id, d.whole = true, uint16(g.IntN(30)), false
	if d.from.Addr().Is6() {
		d.extensions, d.kinds = nil, nil
	}
	if g.in100(40) {
		known.later = append(known.later, d)
		d.offset, d.more = 1+g.IntN(100), g.in100(50)
		return d
	}
	if known.firsts = append(known.firsts, d); len(known.firsts) > 30 {
		known.firsts = known.firsts[1:]
	}
	return d
}

// forwarded turns a packet into one that another node forwards to a backend here or gives back, or
// that somebody makes look so.
func (g *generator) forwarded(d draft) draft {
	p := g.pools[d.from.Addr().Is4()]
	row := g.rowOf(Flow{d.from, d.to, d.proto})
	backend, often := netip.AddrPortFrom(pick(g, p.backends), 8080), 15
	if row != nil {
		backend, often = row.Dest, 5
		if row.Local {
			often = 25
		}
	}
	if d.tags > 0 || !g.in100(often) {
		return d
	}
	from, returned := pick(g, p.peers[:2]), row != nil && !row.Local && g.in100(80)
	if returned {
		backend = netip.AddrPortFrom(row.Source.Addr(), 0)
	}
	if g.in100(4) {
		from = pick(g, append([]netip.Addr{p.peers[2], netip.IPv6Unspecified()}, p.backends...))
	}
	switch g.IntN(40) {
	case 0:
		backend = netip.AddrPortFrom(backend.Addr(), pick(g, []uint16{8081, 8082, 0}))
	case 1:
		backend = netip.AddrPortFrom(pick(g, p.backends), 8080)
	case 2:
		backend = netip.AddrPortFrom(p.clients[0], 8080)
	}
	switch g.IntN(3) {
	case 0:
		if !returned {
			return g.withOption(d, backend)
		}
	case 1:
		return g.inGeneve(d, from, backend)
	}
	return g.inIPIP(d, from, backend)
}

func (g *generator) inIPIP(d draft, from netip.Addr, backend netip.AddrPort) draft {
	outer := draft{dest: d.dest, source: d.source, from: netip.AddrPortFrom(from, 0), to: backend, ttl: 64, whole: !g.in100(2),
		id: backend.Port(), label: backend.Port(), proto: 41, payload: d.bytes()[14:]}
	if d.from.Addr().Is4() {
		outer.proto = 4
	}
	if g.in100(3) {
		g.lengthen(&outer)
	}
	outer.more = g.in100(2)
	return outer
}

func (g *generator) inGeneve(d draft, from netip.Addr, backend netip.AddrPort) draft {
	frame := d.bytes()
	header := []byte{2, 0x40, 0x65, 0x58, 0, 0, 0, 0, 0xff, 0x1d, 0x81, 1, byte(backend.Port() >> 8), byte(backend.Port()), 0, 0}
	if g.in100(5) {
		header[g.IntN(12)] ^= 1 << g.IntN(8)
	}
	source := uint16(512 + g.IntN(512))
	if g.in100(5) {
		source = uint16(g.IntN(1 << 16))
	}
	outer := draft{dest: d.dest, source: d.source, from: netip.AddrPortFrom(from, source), ttl: 64, whole: g.in100(50),
		to: netip.AddrPortFrom(backend.Addr(), 6081), proto: protoUDP, noSum: g.in100(90), payload: append(header, frame...)}
	if g.in100(3) {
		g.lengthen(&outer)
	}
	outer.more = g.in100(2)
	return outer
}

func (g *generator) withOption(d draft, backend netip.AddrPort) draft {
	mark := append([]byte{158, 8, byte(d.to.Port() >> 8), byte(d.to.Port())}, d.to.Addr().AsSlice()...)
	if d.to.Addr().Is6() {
		mark = append([]byte{0, 2, 1, 0, 0x5e, 18, byte(d.to.Port() >> 8), byte(d.to.Port())}, d.to.Addr().AsSlice()...)
	}
	if d.proto == protoICMP || d.proto == protoICMPv6 {
		backend = netip.AddrPortFrom(backend.Addr(), 0)
	}
	d.to = backend
	if g.in100(5) {
		mark[g.IntN(8)] ^= 1 << g.IntN(8)
	}
	d.marks = [][]byte{mark}
	if g.in100(2) {
		d.marks = append(d.marks, mark)
	}
	return d
}

// spoil turns a frame into one that no honest sender makes.
func (g *generator) spoil(frame []byte) []byte {
	switch g.IntN(4) {
	case 0:
		return frame[:14+g.IntN(len(frame)-13)]
	case 1:
		for range 1 + g.IntN(3) {
			frame[12+g.IntN(len(frame)-12)] ^= 1 << g.IntN(8)
		}
	case 2:
		binary.BigEndian.PutUint16(frame[16+2*g.IntN(2):], uint16(g.IntN(1500)))
	default:
		switch g.IntN(4) {
		case 0:
			frame[0] |= 1 // multicast
		case 1:
			frame[g.IntN(6)] ^= 1 << g.IntN(8) // to another host
		default:
			frame = append(frame, make([]byte, g.IntN(20))...)
		}
	}
	return frame
}
