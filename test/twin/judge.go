package twin

import (
	"encoding/binary"
	"net/netip"
)

// place is where policies are asked about a packet.
type place uint8

const (
	sent     place = iota // by the pod
	received              // by it, from the stack
	handed                // to it by another pod of the node
	turned                // to itself, by a service whose backend it is
)

// question is a packet as the policies of one pod see it.
type question struct {
	*step
	p       *packet // as it passes, after translation
	pod     int
	subject *Subject
	flow    Flow       // as the pod sends its packets
	peer    netip.Addr // the other end of the packet itself
	egress  bool
	isSYN   bool
	isError bool // about a packet of the flow
	byNode  bool // a process of the node sent it
	itself  bool // the pod is its own backend
	flags   byte
	isHalf  bool // its row is where only one end has sent something
}

func (q *question) note(what string) { q.out.Judged = append(q.out.Judged, "policy, "+what) }

// denies reports whether the policies of a pod deny a packet at a place. It notes what they say.
func (s *step) denies(frame []byte, pod int, at place) bool {
	subject, p := s.Subjects[pod], read(frame)
	wasRead := s.askedSender && at == handed && (!s.dialed || p.liesPlainly())
	s.askedSender = false
	if subject == nil || s.isPlainAnswer(&p, pod, at) || subject.isOpen() || p.l3 == 0 {
		return false
	}
	if at == sent && p.content == message && s.isOfLink(frame, &p) {
		return false
	}
	q := &question{step: s, p: &p, pod: pod, subject: subject, egress: at == sent, itself: at == turned}
	q.byNode = at == received && s.origin == 0 && s.isNodes(&p)
	if q.byNode && subject.Unknown {
		q.note("unknown pod, by its node")
		return false
	}
	said := q.judge(frame)
	s.askedSender = at == sent && p.content == ported
	if said == deny {
		q.note("denied, " + q.direction())
		s.drop(Denied, s.out.Path+", denied")
		return true
	}
	if p.first || p.content == fragment && p.v4 && frame[p.l3+6]&0x20 != 0 {
		s.remembersDatagram(&p, q)
	}
	if row := s.flows[q.packetFlow()]; wasRead && said == acceptPlainly && row != nil {
		row.Next = subject.generation
	}
	return false
}

func (q *question) direction() string {
	if q.egress {
		return "egress"
	}
	return "ingress"
}

// packetFlow returns the flow in the direction of the packet.
func (q *question) packetFlow() Flow {
	if q.egress {
		return q.flow
	}
	return Flow{q.flow.Dest, q.flow.Source, q.flow.Proto}
}

// remembersDatagram notes the flow of a datagram that comes in fragments, for the later ones.
func (s *step) remembersDatagram(p *packet, q *question) {
	s.datagrams[(&step{packet: *p}).datagram()] = q.packetFlow()
}

// deniesOwn reports whether policies deny what a pod sends, to another one of the node or elsewhere.
func (s *step) deniesOwn(to int) bool {
	s.bothAccept, s.askedSender, s.inFull = false, false, false
	if s.Subjects[s.device] == nil {
		return false
	}
	p := read(s.out.Data)
	if row := s.current(&p, s.device, true); row != nil {
		s.bothAccept = row.Next != 0 && row.Next == s.generation(to)
		s.out.Judged = append(s.out.Judged, "policy, in its tick")
		if s.bothAccept {
			s.out.Judged = append(s.out.Judged, "policy, in its tick, for both")
		}
		return false
	}
	s.inFull = true
	return s.denies(s.out.Data, s.device, sent)
}

// deniesNext reports whether the policies of the pod that gets a packet from another one deny it. What
// both have accepted in this tick is not asked about.
func (s *step) deniesNext(frame []byte, pod int, at place) bool {
	return !s.bothAccept && s.denies(frame, pod, at)
}

// isPlainAnswer reports whether a pod gets a packet of a flow that was accepted, of which nothing has
// to be noted. If something had to be noted for its sender, its row is written too.
func (s *step) isPlainAnswer(p *packet, pod int, at place) bool {
	return (at == received || at == handed && !s.inFull) && s.current(p, pod, false) != nil
}

// liesPlainly reports whether a packet is of TCP or UDP and lies as nearly all do. Of others it is not noted that
// both pods accept them, unless no pod ever dialed a service: they have to be read again to tell.
func (p *packet) liesPlainly() bool {
	return p.content == ported && !p.tagged && !p.first && p.l4 == p.l3+p.base() && p.flow.Proto != protoSCTP
}

// current returns the row of a packet's flow, if it was accepted by what is in force, and has been
// seen in this tick, and the packet is plain, and neither begins nor ends
// anything.
func (s *step) current(p *packet, pod int, sends bool) *Accepted {
	if !p.liesPlainly() || p.flags&(SYN|FIN|RST) != 0 {
		return nil
	}
	flow, rst := p.flow, endRST<<1
	if !sends {
		flow, rst = Flow{flow.Dest, flow.Source, flow.Proto}, endRST
	}
	row := s.flows[flow]
	if row == nil || row.Seen != s.Now || row.Ends&rst != 0 || row.Denied || row.Generation != s.generation(pod) {
		return nil
	}
	return row
}

// isNodes reports whether a packet has an address of this node, or one that is only its neighbors'.
func (s *step) isNodes(p *packet) bool {
	from := p.flow.Source.Addr()
	_, own := s.Addresses[from]
	return own || from.Is6() && (from.IsLinkLocalUnicast() || from.IsUnspecified())
}

// isOfLink reports whether a pod speaks with its link.
func (s *step) isOfLink(frame []byte, p *packet) bool {
	to := p.flow.Dest.Addr()
	_, own := s.Addresses[to]
	kind := frame[p.l4]
	return !p.v4 && kind >= firstOfLink && kind <= lastOfLink && (own || isNear6(to))
}

// isNear6 reports whether an address is for neighbors only.
func isNear6(to netip.Addr) bool {
	return to.Is6() && (to.IsLinkLocalUnicast() || to.IsLinkLocalMulticast() || to.IsInterfaceLocalMulticast())
}

// judge returns what policies say about a packet.
func (q *question) judge(frame []byte) opinion {
	q.peer = q.p.flow.Source.Addr()
	if q.egress {
		q.peer = q.p.flow.Dest.Addr()
	}
	if q.subject.Unknown {
		q.note("denied, unknown pod")
		return deny
	}
	flow, ok := q.tells(frame)
	if !ok {
		q.note("denied, tells no flow")
		return deny
	}
	if q.flow = flow; !q.egress {
		q.flow = Flow{flow.Dest, flow.Source, flow.Proto}
	}
	q.out.Asked = append(q.out.Asked, q.flow, q.packetFlow())
	for i, memory := range []map[Flow]*Accepted{q.flows, q.Policies.pending} {
		q.isHalf = i == 1
		if row := memory[q.flow]; row != nil {
			if said, ok := q.byRow(row); ok {
				return said
			}
		}
	}
	if q.isError {
		q.note("an error of no flow")
		return q.ask(q.subject, q.egress, q.peer, 0, 0)
	}
	return q.begin()
}

// tells returns the flow that a packet belongs to.
func (q *question) tells(frame []byte) (Flow, bool) {
	p := q.p
	at := step{packet: *p, frame: frame}
	switch p.content {
	case ported:
		if p.first && p.shakesHands() && at.end() < p.l4+20 {
			return Flow{}, false
		}
		q.isSYN, q.flags = p.begins(), p.flags
		return p.flow, true
	case message:
		if about, ok := quoted(&at); ok {
			q.isError = true
			return about, true
		}
		return echoed(frame, p), true
	case fragment:
		flow, ok := q.datagrams[at.datagram()]
		return flow, ok
	case other:
		return p.flow, !p.short && (p.v4 || !isExtension(p.flow.Proto) && !p.flow.Source.Addr().Is4In6()) && p.flow.Source.Addr().IsValid()
	}
	return Flow{}, false
}

func isExtension(proto uint8) bool { return proto == 0 || proto == 43 || proto == 44 || proto == 60 }

// quoted returns the flow of the answers to the packet that an error quotes, if that was sent by who gets
// the error.
func quoted(s *step) (Flow, bool) {
	kind := s.frame[s.l4]
	isError := kind >= 1 && kind <= 4
	if s.v4 {
		isError = kind == 3 || kind == 11 || kind == 12
	}
	at := s.l4 + 8
	if !isError || s.first || at > deepest {
		return Flow{}, false
	}
	quote := readIPv6(s.frame, at)
	if s.v4 {
		quote = readIPv4(s.frame, at)
	}
	switch {
	case quote.content != ported && quote.content != cut && quote.content != message,
		quote.l4+8 > s.end(), quote.flow.Source.Addr() != s.flow.Dest.Addr():
		return Flow{}, false
	}
	flow := quote.flow
	if quote.content == message {
		flow = echoed(s.frame, &quote)
	}
	return Flow{flow.Dest, flow.Source, flow.Proto}, true
}

// echoed returns the flow of ICMP: an echo has the identifier as the port of who asks.
func echoed(frame []byte, p *packet) Flow {
	flow, icmp := p.flow, frame[p.l4:]
	request, reply, id := byte(128), byte(129), binary.BigEndian.Uint16(icmp[4:])
	if p.v4 {
		request, reply = 8, 0
	}
	switch icmp[0] {
	case request:
		flow.Source = netip.AddrPortFrom(flow.Source.Addr(), id)
	case reply:
		flow.Dest = netip.AddrPortFrom(flow.Dest.Addr(), id)
	}
	return flow
}

func (q *question) shakes() bool { return q.flow.Proto == protoTCP || q.flow.Proto == protoSCTP }

// asks returns what policies say about the flow, if it was begun in a direction.
func (q *question) asks(egress bool) opinion {
	peer, port := q.flow.Dest.Addr(), q.flow.Source.Port()
	if egress {
		port = q.flow.Dest.Port()
	}
	if q.itself {
		peer, port = q.flow.Source.Addr(), q.flow.Source.Port()
	}
	return q.ask(q.subject, egress, peer, q.flow.Proto, port)
}

// whenBegun returns what policies say about a flow that begins. What a pod sends to itself by a service it
// must be allowed to send and to get.
func (q *question) whenBegun(egress bool) opinion {
	if q.byNode {
		return accept
	}
	said := q.asks(egress)
	if q.itself && said != deny {
		return q.asks(true)
	}
	return said
}

// byRow returns what a row says. The row says nothing about a flow that begins in the other direction,
// and once denied not about datagrams in it either, but these begin nothing for a while.
func (q *question) byRow(row *Accepted) (opinion, bool) {
	answers := row.Egress != q.egress
	switch {
	case answers && q.isSYN:
		q.note("begun in the other direction")
		return deny, false
	case answers && !q.isError && row.Denied && !q.shakes():
		if int32(row.DeniedAt+answersFor-q.Now) >= 0 {
			q.note("on the way at a denial")
			return q.asks(q.egress), true
		}
		return deny, false
	case row.Generation != q.subject.generation || row.Denied:
		return q.again(row), true
	}
	if !row.ByNode && !row.Itself && q.asks(row.Egress) == deny {
		q.refuse("%v goes on by generation %d, though policies deny it", q.flow, row.Generation)
	}
	q.touches(row)
	if answers && q.isHalf && !q.isError && q.flags&(SYN|RST) == 0 {
		q.promote(row)
	}
	return acceptPlainly, true
}

// again judges a flow once more, in the direction in which it began.
func (q *question) again(row *Accepted) opinion {
	byNode := row.ByNode
	if to := q.flow.Dest.Addr(); byNode && !(to.Is6() && to.IsLinkLocalUnicast()) && !to.IsUnspecified() {
		_, byNode = q.Addresses[to]
	}
	said := accept
	if !byNode {
		said = q.asks(row.Egress)
		if q.itself && said != deny {
			said = q.asks(true)
		}
	}
	switch {
	case said != deny && row.Denied:
		q.note("accepted again after a denial")
	case said != deny:
		q.note("accepted again")
	default:
		q.note("denied again")
	}
	if q.isError {
		return said
	}
	after := Accepted{Generation: q.subject.generation, Seen: q.Now, Egress: row.Egress, ByNode: byNode, Itself: row.Itself, Denied: said == deny,
		DeniedAt: q.Now, Ends: row.Ends, Owner: row.Owner}
	if row.Denied {
		after.DeniedAt = row.DeniedAt
	}
	*row = after
	return said
}

// touches notes what a packet says about its flow.
func (q *question) touches(row *Accepted) {
	if q.isError {
		return
	}
	if q.shakes() {
		side := uint8(0)
		if q.egress {
			side = 1
		}
		if row.Ends &^= endRST << side; q.isSYN {
			row.Ends = 0
		}
		if q.flags&RST != 0 {
			row.Ends |= endRST << side
		}
		if q.flags&FIN != 0 {
			row.Ends |= endFIN << side
		}
	}
	if !q.isSYN {
		row.Seen = q.Now
	}
}

// promote moves a row to where nothing evicts it, if its pod has room there.
func (q *question) promote(row *Accepted) {
	kept := *row
	if kept.Owner = q.pod; !q.insert(q.flow, kept) {
		q.note("no room")
		q.out.Counted = append(q.out.Counted, FlowsFull)
		return
	}
	q.note("answered")
	delete(q.Policies.pending, q.flow)
}

// begin judges a packet without a row.
func (q *question) begin() opinion {
	said, egress := q.whenBegun(q.egress), q.egress
	if !q.isSYN && !q.byNode {
		said, egress = q.adopt()
	}
	// An answer to what came before a policy: of no further one.
	if egress != q.egress && !q.shakes() || said == deny {
		return said
	}
	switch {
	case q.byNode:
		q.note("begun by the node")
	case q.itself:
		q.note("begun to itself")
	default:
		q.note("begun, " + q.direction())
	}
	q.remove(q.flow)
	q.Policies.pending[q.flow] = &Accepted{Generation: q.subject.generation, Seen: q.Now, Egress: egress, ByNode: q.byNode, Itself: q.itself}
	return said
}

// adopt judges a packet that need not be the first of its flow, and returns the direction in which
// that began: to the lower port.
func (q *question) adopt() (opinion, bool) {
	adopts, origin := q.subject.Answers, q.egress
	if q.shakes() {
		adopts = q.subject.Adopts
	}
	if own, other := q.flow.Source.Port(), q.flow.Dest.Port(); !q.itself && (adopts || q.shakes()) && own != other {
		origin = own > other
	}
	said := q.whenBegun(origin)
	if said == deny || origin == q.egress {
		return said, origin
	}
	if adopts {
		q.note("adopted")
		return said, origin
	}
	q.note("of a connection that nobody opened")
	return q.asks(q.egress), origin
}
