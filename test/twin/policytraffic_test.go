package twin

import (
	"math/rand/v2"
	"net/netip"
	"slices"
)

// policyTraffic makes up policies, and what pods say to each other and to others without a service. It has a
// source of numbers of its own, so that seeds without policies stay as they are.
type policyTraffic struct {
	*generator
	talks []Flow // as the one who began sends
	parts parts
}

// hasPolicies reports whether the node of a seed has policies.
func hasPolicies(seed uint64) bool { return seed%oneInSo == 0 }

// oneInSo: of so many seeds one has policies.
const oneInSo = 8

func newPolicyTraffic(seed uint64, node *Node) *policyTraffic {
	return &policyTraffic{generator: &generator{Rand: rand.New(rand.NewPCG(seed, 1)), node: node, pools: pools()}}
}

// knownTalks is how many conversations go on at a time: few, so that they go on for a while.
const knownTalks = 24

// next returns what happens next.
func (t *policyTraffic) next() operation {
	switch n := t.IntN(1000); {
	case n < 15:
		return t.change()
	case n < 75:
		if o, ok := t.asked(); ok {
			return o
		}
	case n < 80:
		share := pick(t.generator, []int{0, 0, 3, sharedRows / 2, sharedRows})
		return operation{Asked: &askedChange{What: "share", Pod: firstPod + t.IntN(3), Share: share}}
	}
	return t.packet()
}

// change makes other policies: mostly about one pod, so that what is about others stays.
func (t *policyTraffic) change() operation {
	c := &policyChange{Subjects: map[int]*Subject{}}
	for id, s := range t.node.Subjects {
		of := *s
		of.Adopts, of.Answers = t.in100(20), t.in100(20)
		c.Subjects[id] = &of
	}
	for range 1 + t.IntN(2) {
		id := firstPod + t.IntN(3)
		if t.in100(10) {
			delete(c.Subjects, id)
			continue
		}
		s := &Subject{Unknown: t.in100(7), Adopts: t.in100(30), Answers: t.in100(30)}
		if !s.Unknown {
			s.Ingress, s.Egress = t.isolation(), t.isolation()
		}
		c.Subjects[id] = s
	}
	return operation{Policies: c}
}

func (t *policyTraffic) isolation() *Isolation {
	if t.in100(25) {
		return nil
	}
	in := &Isolation{}
	for range t.IntN(5) {
		in.Rules = append(in.Rules, t.rule())
	}
	return in
}

func (t *policyTraffic) rule() PolicyRule {
	rule := PolicyRule{Everybody: t.in100(40)}
	if !rule.Everybody && t.in100(70) {
		rule.Pods = []string{pick(t.generator, []string{"pod3", "pod4", "pod5", "far0", "far1"}), pick(t.generator, []string{"pod3", "pod4", "pod5"})}
	}
	if !rule.Everybody && (len(rule.Pods) == 0 || t.in100(50)) {
		addr := t.other(t.in100(50))
		prefix, _ := addr.Prefix(addr.BitLen() - pick(t.generator, []int{0, 2, 8, 16}))
		rule.Blocks = []netip.Prefix{prefix}
	}
	if t.in100(60) {
		rule.Proto = pick(t.generator, []uint8{protoTCP, protoTCP, protoUDP, protoUDP, protoSCTP})
		rule.First = pick(t.generator, []uint16{0, 80, 8080, 4000, 4001})
		rule.Last = pick(t.generator, []uint16{rule.First, rule.First + 1, 65535})
	}
	return rule
}

// asked changes the row of a flow.
func (t *policyTraffic) asked() (operation, bool) {
	if len(t.talks) == 0 {
		return operation{}, false
	}
	flow := pick(t.generator, t.talks)
	if t.in100(50) {
		flow = Flow{flow.Dest, flow.Source, flow.Proto}
	}
	row := t.node.flows[flow]
	if row == nil {
		row = t.node.Policies.pending[flow]
	}
	if row == nil {
		return operation{}, false
	}
	what := "age"
	switch n := t.IntN(100); {
	case row.Denied && n < 60:
		what = "forget"
	case n < 25:
		what = "evict"
	}
	return operation{Asked: &askedChange{Flow: flow, What: what}}, true
}

// other returns who talks to pods.
func (t *policyTraffic) other(v4 bool) netip.Addr {
	p := t.pools[v4]
	list := slices.Concat(p.far[:2], p.clients[:2], []netip.Addr{p.open, p.snat})
	return pick(t.generator, append(list, p.pods()...))
}

// talk begins a conversation.
func (t *policyTraffic) talk() Flow {
	v4 := t.in100(50)
	p := t.pools[v4]
	ports := []uint16{80, 81, 8080}
	proto := pick(t.generator, []uint8{protoTCP, protoTCP, protoTCP, protoUDP, protoUDP, protoUDP, protoSCTP, protoICMP})
	from := netip.AddrPortFrom(pick(t.generator, p.pods()), 4000+uint16(t.IntN(4)))
	to := netip.AddrPortFrom(t.other(v4), pick(t.generator, ports))
	if t.in100(45) {
		from, to = netip.AddrPortFrom(to.Addr(), from.Port()), netip.AddrPortFrom(from.Addr(), to.Port())
	}
	if t.in100(15) { // the client has the lower port
		from, to = netip.AddrPortFrom(from.Addr(), to.Port()), netip.AddrPortFrom(to.Addr(), from.Port())
	}
	if proto == protoICMP {
		if !v4 {
			proto = protoICMPv6
		}
		from, to = netip.AddrPortFrom(from.Addr(), uint16(1+t.IntN(3))), netip.AddrPortFrom(to.Addr(), 0)
	}
	return Flow{from, to, proto}
}

// packet makes a packet of a conversation.
func (t *policyTraffic) packet() operation {
	if len(t.talks) < knownTalks || t.in100(4) {
		if t.talks = append(t.talks, t.talk()); len(t.talks) > knownTalks {
			t.talks = t.talks[1:]
		}
	}
	flow, reply := pick(t.generator, t.talks), t.in100(45)
	if reply {
		flow = Flow{flow.Dest, flow.Source, flow.Proto}
	}
	d := t.draft(flow, reply)
	switch n := t.IntN(1000); {
	case n < 70:
		from := d.from
		d, _ = t.errorAbout(draft{ttl: d.ttl, from: d.to, to: d.from, proto: d.proto, flags: d.flags, seq: d.seq, payload: d.payload}, false)
		if t.in100(60) && d.from.Addr().Is4() == from.Addr().Is4() {
			d.from = netip.AddrPortFrom(from.Addr(), 0)
		}
	case n < 170:
		d = t.fragment(d, &t.parts)
	case n < 190:
		t.lengthen(&d)
	}
	return t.pass(d)
}

// draft makes a packet of a conversation as it is.
func (t *policyTraffic) draft(flow Flow, reply bool) draft {
	d := draft{from: flow.Source, to: flow.Dest, proto: flow.Proto, ttl: 64, whole: t.in100(50), seq: t.Uint32(), ack: t.Uint32(), payload: make([]byte, t.IntN(40))}
	d.flags = pick(t.generator, []byte{SYN, SYN, SYN, ACK, ACK, ACK, ACK, ACK, ACK, FIN | ACK, RST})
	if reply {
		d.flags = pick(t.generator, []byte{SYN | ACK, SYN | ACK, ACK, ACK, ACK, ACK, ACK, ACK, SYN, FIN | ACK, RST | ACK})
	}
	if d.proto != protoICMP && d.proto != protoICMPv6 {
		return d
	}
	kind, id := byte(128), max(flow.Source.Port(), flow.Dest.Port())
	if reply {
		kind = 129
	}
	if v4 := flow.Source.Addr().Is4(); v4 && reply {
		kind = 0
	} else if v4 {
		kind = 8
	}
	if t.in100(8) {
		kind = byte(t.IntN(256))
	}
	d.payload = append([]byte{kind, 0, 0, 0, byte(id >> 8), byte(id), 0, 1}, d.payload...)
	return d
}

// pass has a packet pass the device of the pod that sends it, or of the one that gets it.
func (t *policyTraffic) pass(d draft) operation {
	from, to := t.node.Pods[d.from.Addr()], t.node.Pods[d.to.Addr()]
	f := &podFrame{Pod: from, Past: t.in100(75)}
	if from == 0 && to == 0 {
		return t.packet()
	}
	if from == 0 || to != 0 && t.in100(25) {
		f.Pod, f.To, f.Past = to, true, false
		f.By = pick(t.generator, []int{1, 2, tunnelDevice})
		switch _, own := t.node.Addresses[d.from.Addr()]; {
		case own && t.in100(80):
			f.By = 0
		case from != 0:
			f.By = from
		case t.in100(5):
			f.By = pick(t.generator, []int{0, to})
		}
	}
	d.dest, d.source = t.node.MACs[f.Pod], t.node.PodMACs[f.Pod]
	f.Frame = d.bytes()
	if t.in100(2) {
		f.Frame = t.spoil(f.Frame)
	}
	if len(f.Frame) > 14+t.node.MTU[f.Pod] || tooShort(f.Frame) {
		return t.packet()
	}
	return operation{Pod: f}
}
