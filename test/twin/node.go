// Package twin is the packet path once more, as a model to compare the programs with: what a node does with a packet
// from outside or of its pods, in plain Go, from what bpf/README.md, docs/dsr.md and docs/drops.md say and without a look at
// the programs. It shares nothing with them. Where they may choose (a port, one backend of several) it asks what they chose, and
// judges that.
package twin

import (
	"errors"
	"fmt"
	"net/netip"
)

// Verdict is what becomes of a packet.
type Verdict uint8

// The verdicts.
const (
	Stack Verdict = iota // it goes on to the stack
	Drop
	Out // it leaves by a device
)

// Reason is what a packet is counted as.
type Reason string

// The reasons that the programs of packets count.
const (
	NoBackend   Reason = "no-backend"
	TableRace   Reason = "table-race"
	BadTable    Reason = "bad-table"
	FragmentCut Reason = "fragment"
	TTL         Reason = "ttl"
	NoPort      Reason = "no-port"
	NoAddress   Reason = "no-address"
	FlowRace    Reason = "flow-race"
	FlowsFull   Reason = "flows-full"
	IsClusterIP Reason = "cluster-ip"
	SourceRange Reason = "source-range"
	TooBig      Reason = "too-big"
	Stray       Reason = "stray"
	GivenBack   Reason = "given-back"
	Spoofed     Reason = "spoofed"
	SpoofedLink Reason = "spoofed-link"
	Neighbour   Reason = "neighbour"
	Router      Reason = "router"
	DHCP        Reason = "dhcp"
	Loopback    Reason = "loopback"
	Protocol    Reason = "protocol"
	Malformed   Reason = "malformed"
)

// Outcome is what has to become of a packet.
type Outcome struct {
	Verdict Verdict
	Data    []byte   // what leaves or goes on
	Counted []Reason // as which it is counted
	Device  int      // by which it leaves
	Bounces bool     // back where it came from, without asking anybody
	Limited bool     // it is an error of ICMP, of which there are no more than so many; else it is dropped
	Path    string   // the way through the model, for whoever counts ways
	Inner   []byte   // what was in the frame, once what was around it is taken off
	Touched []Flow   // whose rows it may have changed

	Around   int  // so many bytes are put around it
	Marked   bool // it has an option more
	Spreads  bool // the port of the source of what is around it is any of many, for whoever spreads flows over links
	Detours  bool // XDP may leave it to tc, since fragments wait that may be for it
	OfPod    bool // it was sent by a pod, or to one
	Replaced bool // what goes on is another packet, that waited for it
}

// Witness tells what the programs chose with the packet at hand.
type Witness interface {
	// Half returns the row that they wrote for a flow that begins.
	Half(Flow) (Row, bool)
	// Kept returns the backend that they remember for a client of a service.
	Kept(service int, client netip.Addr) (backend int, ok bool)
	// Counted reports whether the packet was counted as a reason.
	Counted(Reason) bool
	// Waits returns how many fragments ever waited for the first of their datagram.
	Waits() uint64
}

// ErrChoice is wrapped by the errors of Receive: the programs chose what is not to be had.
var ErrChoice = errors.New("not to be chosen")

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

// datagram is what the fragments of one have in common.
type datagram struct {
	source, dest netip.Addr
	id           uint32
	proto        uint8
}

// Node is a node with its memory.
type Node struct {
	Tables
	Open, Half map[Flow]*Row
	Room       int    // so many rows are open at the most
	Now        uint32 // in ticks
	Changed    uint32 // when ways last changed, as far as the node was told
	Followed   uint32 // until when it is told
	Guards     uint32 // when it changed who may use load balancers' addresses, likewise

	dialled   bool // a pod ever began a flow by packets
	visits    map[visitor]*visit
	datagrams map[datagram]Flow
	chosen    map[choice]int
	waiting   waiting
}

// NewNode returns a node that remembers nothing.
func NewNode(tables Tables, room int, now uint32) *Node {
	return &Node{Tables: tables, Room: room, Now: now, Open: map[Flow]*Row{}, Half: map[Flow]*Row{},
		visits: map[visitor]*visit{}, datagrams: map[datagram]Flow{}, chosen: map[choice]int{},
		waiting: waiting{strangers: map[datagram]bool{}}}
}

// step is a packet on its way through the node.
type step struct {
	*Node
	packet
	frame  []byte
	device int
	at     place
	// remembered is whether the packet is the first fragment of a datagram that is ours.
	remembered    bool
	behind        bool // XDP leaves it to tc, by what is known of the flow
	witness       Witness
	by            choice  // what the choice of a backend depends on
	mode          Direct  // how packets of the service get to other nodes
	tunnel        *tunnel // what was around the packet
	isStray       bool    // it is not as nodes send such
	givesBack     bool    // to where it came from
	isNew         bool    // the packet has made the row of a flow that its backend answers, and may yet take it back
	answersItself bool    // a pod is its own backend, and this is what it says as that
	out           Outcome
	err           error
}

// Receive says what has to become of a frame that came in by a device.
func (n *Node) Receive(frame []byte, device int, w Witness) (Outcome, error) {
	s := &step{Node: n, packet: read(frame), frame: frame, device: device, witness: w}
	if s.tagged {
		return s.pass("tagged"), nil
	}
	if mac := n.MACs[device]; len(frame) < len(mac) || MAC(frame) != mac {
		return s.pass("to another on the link"), nil
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
	return s.out, s.err
}

// Leave says the same of a frame that is about to leave.
func (n *Node) Leave(frame []byte) (Outcome, error) {
	s := &step{Node: n, packet: read(frame), frame: frame, at: leaves}
	s.translate()
	return s.out, s.err
}

// translate is for packets that are elsewhere than where they came in.
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

// pass leaves a packet to the stack, which is to see nothing that another node forwarded.
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

// touch notes whose rows may have changed.
func (s *step) touch(flows ...Flow) { s.out.Touched = append(s.out.Touched, flows...) }

// wayOf returns the way that the packets of a row have.
func (n *Node) wayOf(row *Row) Way {
	if row.Local {
		return Way{}
	}
	return n.route(row.Source, row.Dest)
}

// route returns the way from an address to another. Linux sends nothing of IPv6 on that is from or to the link alone.
func (n *Node) route(from, to netip.AddrPort) Way {
	for _, addr := range []netip.Addr{from.Addr(), to.Addr()} {
		if addr.Is6() && (addr.IsMulticast() || addr.IsLoopback() || addr.IsLinkLocalUnicast()) {
			return Way{}
		}
	}
	return n.Routes[to.Addr()]
}
