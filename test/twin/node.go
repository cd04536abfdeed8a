// Package twin is a second implementation of the packet path, a model to compare the BPF programs
// with: what a node does with a packet from outside or from its pods, in plain Go. It was written
// from docs/design, docs/dsr.md and docs/drops.md without looking at the programs, and shares no code
// with them. Where the programs may choose (a port, one backend of several), the model asks
// what they chose, and checks that.
package twin

import (
	"errors"
	"fmt"
	"net/netip"
)

// The reasons that packets are counted as here.
const (
	TableRace Reason = "table-race"
	BadTable  Reason = "bad-table"
	PodSource Reason = "pod-source"
)

// Verdict is what happens to a packet.
type Verdict uint8

// The verdicts.
const (
	Stack Verdict = iota // it goes on to the stack
	Drop
	Out // it leaves through a device
)

// Reason is what a packet is counted as.
type Reason string

// Outcome is what must happen to a packet.
type Outcome struct {
	Verdict  Verdict
	Data     []byte   // the frame that leaves or goes on
	Counted  []Reason // what it is counted as
	Device   int      // through which it leaves
	Bounces  bool     // XDP sends it back out of its device by itself
	Limited  bool     // an ICMP error, which is rate limited; beyond the limit the packet is dropped
	Path     string   // the path through the model, for coverage
	Position string   // whether its numbers are those of its flow, for coverage
	Inner    []byte   // the frame that came in, without its encapsulation
	Touched  []Flow   // flows whose rows the packet may have changed
	Asked    []Flow   // flows that policies were asked about
	Judged   []string // what they said, for coverage

	Around   int  // number of bytes of encapsulation added
	Marked   bool // an option was added
	Spreads  bool // the outer source port may be any of many, to spread flows over links
	Detours  bool // XDP may leave it to tc, because fragments wait that may belong to it
	OfPod    bool // a pod sent it or gets it
	Replaced bool // what goes on is another packet, which waited for this one
	Past     bool // another node's pod sent it past the tunnel: if XDP translates it for a pod here, tc drops it
}

// Witness tells what the programs chose for the current packet.
type Witness interface {
	// Pending returns the row that they wrote for a flow that begins.
	Pending(Flow) (Row, bool)
	// Kept returns the backend that they remember for a client of a service.
	Affinity(service int, client netip.Addr) (backend int, ok bool)
	// Counted reports whether the packet was counted as a reason.
	Counted(Reason) bool
	// Waits returns how many fragments have ever waited for the first of their datagram.
	Waits() uint64
}

// ErrChoice is wrapped by the errors of Receive and Send when the programs made a choice that is
// not allowed.
var ErrChoice = errors.New("choice not allowed")

// visitor is a client of a service with session affinity.
type visitor struct {
	client  netip.Addr
	service int
}

// visit is what is remembered of a visitor.
type visit struct {
	backend int
	lapsed  bool
}

// datagram identifies a datagram by what its fragments have in common.
type datagram struct {
	source, dest netip.Addr
	id           uint32
	proto        uint8
}

// Node is a node with its memory.
type Node struct {
	Tables
	Policies
	Open, Pending map[Flow]*Row
	Room          int    // maximum number of rows in Open
	Now           uint32 // in ticks
	Changed       uint32 // when ways last changed, as far as the node was told
	Followed      uint32 // until when the node is told of changes
	RangeEpochs   uint32 // when the source ranges of load balancers last changed, as far as the node was told

	dialed    bool // whether a pod ever began a flow with packets
	visits    map[visitor]*visit
	datagrams map[datagram]Flow
	chosen    map[choice]int
	waiting   waiting
}

// NewNode returns a node that remembers nothing.
func NewNode(tables Tables, policies Policies, room int, now uint32) *Node {
	return &Node{Tables: tables, Policies: policies, Room: room, Now: now, Open: map[Flow]*Row{}, Pending: map[Flow]*Row{},
		visits: map[visitor]*visit{}, datagrams: map[datagram]Flow{}, chosen: map[choice]int{},
		waiting: waiting{strangers: map[datagram]bool{}}}
}

// step is a packet on its way through the node.
type step struct {
	*Node
	packet
	frame  []byte
	device int
	at     position
	// remembered reports that the packet is the first fragment of a datagram of a known flow.
	remembered    bool
	behind        bool // XDP leaves it to tc, by what is known of the flow
	witness       Witness
	by            choice  // what the choice of a backend depends on
	mode          Direct  // how packets of the service reach other nodes
	tunnel        *tunnel // the encapsulation that the packet came with
	isStray       bool    // its encapsulation is not as nodes write it
	givesBack     bool    // it goes back to the node that forwarded it
	isNew         bool    // the packet made the row of a direct flow, and may still move it to this node
	answersItself bool    // a pod is its own backend, and this packet is its answer
	emerges       bool    // it comes out of the tunnel between nodes
	origin        int     // the device that it came in by, on the way to a pod; 0: a process of the node sent it
	inFull        bool    // policies were asked about its sender by more than its row
	askedSender   bool    // likewise, and the packet has ports
	bothAccept    bool    // its sender's row says that its receiver has accepted it too
	out           Outcome
	err           error
}

// Receive returns what must happen to a frame that came in through a device.
func (n *Node) Receive(frame []byte, device int, w Witness) (Outcome, error) {
	s := &step{Node: n, packet: read(frame), frame: frame, device: device, witness: w}
	s.comeIn()
	return s.out, s.err
}

// comeIn handles a frame that came in.
func (s *step) comeIn() {
	mac := s.MACs[s.device]
	switch isMine := len(s.frame) >= len(mac) && MAC(s.frame) == mac; {
	case s.tagged:
		s.pass("tagged")
		return
	case !isMine && !s.emerges && s.isOfAnother() && s.frame[0]&1 != 0: // groups hear nothing from pods
		s.drop(PodSource, "a pod's, from outside")
		return
	case !isMine:
		s.pass("to another on the link")
		return
	case !s.emerges && s.isOfAnother():
		s.drop(PodSource, "a pod's, from outside")
		return
	case s.isOfTunnel():
		s.drop(TunnelPort, "to the tunnel, not from one")
		return
	}
	s.unwrap()
	switch {
	case s.isStray:
		s.pass("like the option")
	case s.content == ported:
		s.decide()
	case s.content == fragment:
		s.continued()
	case s.content == message:
		s.message()
	case s.content == cut:
		s.cutOff()
	default:
		s.pass("other")
	}
	if !s.remembered {
		s.ignore()
	}
}

// isOfOpen reports whether a packet, also one that ends behind its ports, belongs to a flow of which such
// packets come in, and that is established or has a backend that answers directly. An answer that keeps
// its destination is one that leaves.
func (s *step) isOfOpen() bool {
	row := s.Open[s.flow]
	if s.flags&SYN != 0 { // it may begin another
		return false
	}
	if row == nil {
		if row = s.Pending[s.flow]; row == nil || row.Direct == DirectOff {
			return false
		}
	}
	return (s.content == ported || s.content == cut) && row.isAt(comesIn) && !(row.Reply && row.Dest.Addr() == s.flow.Dest.Addr())
}

// isOfAnother reports whether a packet that came in by a device cannot come from the pod whose address
// it has: one of this node, or with a tunnel one of another node that sends to a pod here, to a
// frontend, or to this node's end of the tunnel.
func (s *step) isOfAnother() bool {
	from, to := s.flow.Source.Addr(), s.flow.Dest.Addr()
	if !from.IsValid() && len(s.frame) >= 14+40 && s.frame[12] == 0x86 && s.frame[13] == 0xdd && s.frame[14]>>4 == 6 { // mapped addresses
		from, to = s.saysIP()
	}
	if _, ok := s.Pods[from.Unmap()]; ok {
		return !s.isOfOpen()
	}
	s.out.Past = s.TunnelPort != 0 && s.owner(from.Unmap()) > thisNode
	if _, here := s.Pods[to.Unmap()]; s.TunnelPort == 0 || !here && (s.Nodes[from] != 0 || !s.TunnelEnds[to.Unmap()] && !s.isForFrontend()) {
		return false
	}
	return s.out.Past && !s.isOfOpen()
}

// isForFrontend reports whether a packet is for a frontend of any kind, whoever may dial it.
func (s *step) isForFrontend() bool {
	_, ok := s.Frontends[Key{s.flow.Dest, s.flow.Proto}]
	if _, own := s.Addresses[s.flow.Dest.Addr()]; own && !ok {
		_, ok = s.Frontends[Key{netip.AddrPortFrom(anyAddr(s.flow.Dest.Addr()), s.flow.Dest.Port()), s.flow.Proto}]
	}
	return ok
}

// Leave returns the same for a frame that is about to leave the node.
func (n *Node) Leave(frame []byte) (Outcome, error) {
	s := &step{Node: n, packet: read(frame), frame: frame, at: leaves}
	s.translate()
	return s.out, s.err
}

// translate handles packets elsewhere than where they came in.
func (s *step) translate() {
	switch s.content {
	case ported:
		s.decideAt()
	case fragment:
		s.continued()
	case message:
		s.message()
	case cut:
		s.cutOff()
	default:
		s.pass("other")
	}
}

// pass leaves a packet to the stack, which must not see anything that another node forwarded.
func (s *step) pass(path string) Outcome {
	if s.tunnel != nil {
		s.drop(Stray, path+", stray")
		return s.out
	}
	s.out.Verdict, s.out.Data, s.out.Path = Stack, s.frame, path
	return s.out
}

func (s *step) drop(reason Reason, path string) {
	s.out.Verdict, s.out.Path, s.out.Data = Drop, path, nil
	s.out.Counted = append(s.out.Counted, reason)
}

func (s *step) refuse(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%w: "+format, append([]any{ErrChoice}, args...)...)
	}
}

// touch records flows whose rows may have changed.
func (s *step) touch(flows ...Flow) { s.out.Touched = append(s.out.Touched, flows...) }

// wayOf returns the way of a row's packets.
func (n *Node) wayOf(row *Row) Way {
	if row.Local {
		return Way{}
	}
	return n.route(row.Source, row.Dest)
}

// route returns the way from one address to another. Linux forwards no IPv6 packet with a
// link-local, loopback or multicast address.
func (n *Node) route(from, to netip.AddrPort) Way {
	for _, addr := range []netip.Addr{from.Addr(), to.Addr()} {
		if addr.Is6() && (addr.IsMulticast() || addr.IsLoopback() || addr.IsLinkLocalUnicast()) {
			return Way{}
		}
	}
	return n.Routes[to.Addr()]
}
