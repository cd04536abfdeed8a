package twin

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
)

// end is who gets a frame that has passed the node: a pod, a host behind a device, or nobody.
type end struct {
	pod, device int
	node        bool       // the node itself
	there       bool       // at the other node
	crossed     bool       // both nodes were passed
	sender      netip.Addr // of what comes out of the tunnel; if none, the node behind which the source belongs
	frame       []byte
	tunneled    []byte // what the tunnel of the node has taken the headers off
}

func (e end) String() string {
	node := map[bool]string{true: "the other node", false: "this node"}[e.there]
	switch {
	case e.pod > 0:
		return fmt.Sprintf("pod %d of %s", e.pod, node)
	case e.node:
		return node
	}
	return fmt.Sprintf("device %d of %s", e.device, node)
}

// journey has a frame pass the node: from a pod's device or another one, through the programs and the
// stack between, to the device by which it leaves, or to a pod.
func (w *world) journey(frame []byte, from end, mark uint32) (end, error) {
	var r result
	var err error
	switch {
	case from.node:
		device, _ := w.site.deviceTo(read(frame).flow.Dest.Addr())
		return w.left(frame, device, end{})
	case from.pod > 0:
		r, err = w.runTCMarked("tc_from_pod"+pastStack, frame, w.pods[from.pod], mark)
	case from.device == tunnelDevice && from.sender.IsValid():
		r, err = w.emerge(frame, from.sender)
	case from.device == tunnelDevice:
		r, err = w.emerge(frame, nodeBehind(read(frame).flow.Source.Addr()))
	default:
		r, err = w.receive(frame, from.device)
	}
	return w.passed(frame, r, from, err)
}

// nodeBehind returns the node that sends what comes from an address through the tunnel.
func nodeBehind(source netip.Addr) netip.Addr {
	p := pools()[source.Is4()]
	return p.peers[max(0, belongs(source)-thisNode-1)]
}

// passed returns where a frame goes behind the program that handled it first.
func (w *world) passed(frame []byte, r result, from end, err error) (end, error) {
	if err != nil || r.verdict == Drop {
		return end{}, err
	}
	if r.verdict == Out {
		return w.redirected(frame, r, from)
	}
	if from.pod == 0 && len(frame) >= 6 && frame[0]&1 == 0 && MAC(frame[:6]) != w.devices[from.device].mac {
		return end{}, nil // the stack takes nothing that was sent to another host
	}
	return w.routed(r.data, from)
}

// redirected returns where a frame goes that a program sent on by itself.
func (w *world) redirected(frame []byte, r result, from end) (end, error) {
	for id, d := range w.pods {
		if len(r.data) >= 6 && MAC(r.data[:6]) == d.peer {
			return w.enter(r.data, id)
		}
	}
	to := end{device: from.device, frame: r.data}
	for id, d := range w.devices {
		if MAC(r.data[:6]) == d.peer {
			to.device = id
		}
	}
	if device, ok := w.site.deviceTo(read(r.data).flow.Dest.Addr()); ok && to.device == 0 {
		to.device = device // a neighbor that the kernel resolves
	}
	if before, after := read(frame), read(r.data); from.pod > 0 && before.flow == after.flow && to.device > 0 {
		return w.left(r.data, to.device, from) // nothing has been translated yet
	}
	return to, nil
}

// routed returns where the stack sends a frame.
func (w *world) routed(frame []byte, from end) (end, error) {
	to := read(frame).flow.Dest.Addr()
	if id, ok := w.site.pods[to]; ok {
		return w.enter(frame, id)
	}
	device, ok := w.site.deviceTo(to)
	if inner, is := carriesTunnel(frame); is && w.isHeard(to) {
		return w.untunnel(frame, inner)
	}
	if !ok || w.site.owns(to) {
		return end{node: true, frame: frame}, nil // or nobody
	}
	return w.left(frame, device, from)
}

// isHeard reports whether this node's tunnel gets what is sent to an address.
func (w *world) isHeard(addr netip.Addr) bool {
	p := pools()[addr.Is4()]
	return w.site.owns(addr) || addr.IsMulticast() || addr.IsLinkLocalUnicast() || addr.IsUnspecified() ||
		addr == p.broadcast()
}

// untunnel has the tunnel take its headers off a frame, and returns where what is inside goes.
func (w *world) untunnel(frame, inner []byte) (to end, err error) {
	from := end{device: tunnelDevice}
	r, err := w.emerge(inner, read(frame).flow.Source.Addr())
	if err == nil {
		to, err = w.passed(inner, r, from, nil)
	}
	to.tunneled = frame
	return to, err
}

// left returns what leaves by a device.
func (w *world) left(frame []byte, device int, from end) (end, error) {
	if tooShort(frame) {
		return end{device: device, frame: frame}, nil
	}
	by := w.devices[from.device].index
	if from.pod > 0 {
		by = w.pods[from.pod].index
	}
	code, data, err := w.run("tc_to_netdev", frame, []uint32{9: uint32(by), 10: uint32(w.devices[device].index)})
	if err != nil || code == tcDrop {
		return end{}, err
	}
	return end{device: device, frame: data}, nil
}

// enter returns what a pod gets.
func (w *world) enter(frame []byte, pod int) (end, error) {
	r, err := w.runTC("tc_to_pod"+pastStack, frame, w.pods[pod])
	if err != nil || r.verdict == Drop {
		return end{}, err
	}
	return end{pod: pod, frame: r.data}, nil
}

func (w *world) runTCMarked(name string, frame []byte, d device, mark uint32) (result, error) {
	if tooShort(frame) {
		return result{verdict: Stack, data: frame}, nil
	}
	code, data, err := w.run(name, frame, []uint32{2: mark, 8: mark, 10: uint32(d.index)})
	return result{verdict: tcVerdict(code), data: data}, err
}

// session is a connection between honest ends, or an exchange of datagrams. Its client dials a
// frontend, or a server's own address. Each call of step sends one packet.
type session struct {
	id     int
	client netip.AddrPort
	front  netip.AddrPort
	proto  uint8
	at     end       // where the client is
	server end       // where the first packet went
	seen   Flow      // what the server sees
	next   [2]uint32 // the next sequence number of client and server
	stage  int
	dead   bool
	met    string // the kind of its last packet, for coverage
}

// script is what is sent one after another: by the client, or by the server.
type line struct {
	reply bool
	flags byte
	size  int
}

func scripts() map[uint8][]line {
	stream := []line{{flags: SYN}, {true, SYN | ACK, 0}, {flags: ACK}, {false, ACK, 40}, {true, ACK, 90}, {false, ACK, 7}, {true, ACK, 9},
		{false, ACK, 70}, {true, ACK, 300}, {true, ACK, 301}, {false, ACK, 71}, {true, ACK, 302}, {false, ACK, 0}, {true, ACK, 303}, {false, FIN | ACK, 0}, {true, FIN | ACK, 0}, {flags: ACK}}
	return map[uint8][]line{
		protoTCP: stream, protoSCTP: stream,
		protoUDP: {{size: 30}, {true, 0, 60}, {size: 31}, {true, 0, 61}, {size: 32}, {true, 0, 62}},
	}
}

// over reports whether a session has nothing more to send.
func (s *session) over() bool { return s.dead || s.stage >= len(scripts()[s.proto]) }

// isBegun reports whether a session has begun and is not established.
func (s *session) isBegun() bool { return s.stage > 0 && s.stage < 3 }

// begins reports whether a session, which a packet is about, has begun and is not established.
func (s *session) begins(about Flow) bool {
	of := func(end netip.AddrPort) bool { return end == s.client || end == s.seen.Source }
	return s.proto != protoUDP && s.isBegun() && (of(about.Source) || of(about.Dest))
}

// class returns what kind of packet an end has got, for coverage.
func (s *session) class(got Flow, reply bool) string {
	if !reply {
		return "asked"
	}
	if got.Source != s.front || got.Dest != s.client {
		return "answered by another"
	}
	proto := map[uint8]string{protoTCP: "TCP", protoUDP: "UDP", protoSCTP: "SCTP"}[s.proto]
	switch {
	case s.at.pod > 0 && s.server.device > 0 && isMask(s.seen.Source.Addr()):
		return "answered, masqueraded, " + proto
	case s.at.device > 0 && s.server.there != s.at.there && s.seen.Source == s.client:
		return fmt.Sprintf("answered, forwarded to %s, %s", s.server, proto)
	case s.seen.Dest == s.front:
		return "answered, by the server's own address, " + proto
	}
	return "answered, by a service, " + proto
}

// step sends the next packet of the session, and returns what its receiver sees.
func (s *session) step(n *nodes) (string, error) {
	l := scripts()[s.proto][s.stage]
	d := draft{ttl: 64, whole: true, proto: s.proto, flags: l.flags, payload: make([]byte, l.size), seq: s.next[0], ack: s.next[1]}
	for i := range d.payload {
		d.payload[i] = byte(s.id + s.stage + i)
	}
	d.from, d.to = s.client, s.front
	from := s.at
	if l.reply {
		d.from, d.to, d.seq, d.ack = s.seen.Dest, s.seen.Source, s.next[1], s.next[0]
		from = s.server
	}
	if s.proto == protoSCTP { // the tag of the receiver, and the one that is requested
		d.seq, d.ack = uint32(s.id)*2+1, map[bool]uint32{true: 0, false: uint32(s.id)*2 + 1}[s.stage == 0]
	} else if l.flags&ACK == 0 {
		d.ack = 0
	}
	who := 0
	if l.reply {
		who = 1
	}
	if s.next[who] += uint32(l.size); l.flags&(SYN|FIN) != 0 {
		s.next[who]++
	}
	n.here.address(&d, from)
	to, err := n.travel(d.bytes(), from, 0)
	if err != nil {
		return "", err
	}
	if to.frame == nil {
		s.dead, s.met = true, "lost"
		return "nothing", nil
	}
	got := read(to.frame)
	if s.stage == 0 {
		s.server, s.seen = end{pod: to.pod, device: to.device, node: to.node, there: to.there}, got.flow
	}
	s.met = s.class(got.flow, l.reply)
	s.stage++
	return fmt.Sprintf("at %s: %x", to, s.canonical(to.frame)), nil
}

// address writes the link's addresses into a frame that enters the node.
func (w *world) address(d *draft, from end) {
	at := w.devices[from.device]
	if from.pod > 0 {
		at = w.pods[from.pod]
	}
	d.dest, d.source = at.mac, at.peer
}

// canonical returns a frame without what the programs may choose: the port that the node lends to
// the session, which must stay the same.
func (s *session) canonical(frame []byte) []byte {
	p := read(frame)
	if p.content != ported {
		return frame
	}
	frame = slices.Clone(frame)
	lent := func(at netip.AddrPort) bool {
		return isMask(at.Addr()) && at.Port() >= lentFirst && at.Port() <= lentLast
	}
	if lent(p.flow.Source) && p.flow.Source == s.seen.Source && sound(frame) {
		binary.BigEndian.PutUint16(frame[p.l4:], 0)
		switch at := p.l4 + map[uint8]int{protoTCP: 16, protoUDP: 6, protoSCTP: 8}[p.flow.Proto]; p.flow.Proto {
		case protoSCTP:
			clear(frame[at : at+4])
		default:
			clear(frame[at : at+2])
		}
	}
	return frame
}

// isMask reports whether a node has a client use an address of its own.
func isMask(addr netip.Addr) bool {
	p := pools()[addr.Is4()]
	return addr == p.snat || addr == p.peers[0]
}

// idle is what the agent does while nobody sends anything for a minute: it forgets flows that one
// end has reset, or both have closed.
func (w *world) idle() error {
	var gone []maps.Flow
	err := maps.EachFlow(w.maps.Ct, &w.buffer, func(keys []maps.Flow, rows []maps.FlowRow) error {
		for i := range keys {
			if rows[i].State == maps.FlowReset {
				gone = append(gone, keys[i], maps.BackOf(keys[i], &rows[i]))
			}
		}
		return nil
	})
	for i := range gone {
		_ = w.maps.Ct.Delete(&gone[i]) // both directions may be in the list
	}
	return err
}

// opensTCP reports whether a frame is the first of a TCP connection to whom reads every header.
func opensTCP(frame []byte) bool {
	p := read(frame)
	at, next := p.l3+40, byte(0)
	switch {
	case p.l3 == 0:
		return false
	case p.v4:
		at, next = p.l3+int(frame[p.l3]&15)*4, frame[p.l3+9]
		if binary.BigEndian.Uint16(frame[p.l3+6:])&0x1fff != 0 {
			return false
		}
	default:
		for next = frame[p.l3+6]; (next == 0 || next == 43 || next == 60) && at+8 <= len(frame); {
			next, at = frame[at], at+8*(int(frame[at+1])+1)
		}
	}
	return next == protoTCP && len(frame) >= at+20 && frame[at+13]&(SYN|ACK) == SYN
}

// carriesTunnel returns the frame inside a packet to the tunnel's port.
func carriesTunnel(frame []byte) ([]byte, bool) {
	p := read(frame)
	if p.content != ported || p.flow.Proto != protoUDP || p.flow.Dest.Port() != tunnelPort || len(frame) < p.l4+8+8+14 {
		return nil, false
	}
	return frame[p.l4+16:], binary.BigEndian.Uint32(frame[p.l4+8:]) == 8<<24
}
