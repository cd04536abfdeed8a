package policy

import (
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// Tables are what the programs of a node judge by, each a map of the kernel. A number of 0 stands
// for nobody's: no subject, no class, a view's remainder.
type Tables struct {
	Pods      map[netip.Addr]PodRow   // of this node
	Subjects  map[uint32]uint32       // subject -> scope
	Peers     map[netip.Addr]uint32   // address -> class, where Regions alone do not say it
	Regions   map[netip.Prefix]uint32 // prefix -> class; the longest applies
	Views     map[View]uint32         // reduced class, unless it is 0
	Rows      map[Row]uint32          // decision; that of reduced class 0, if there is none of its own
	Decisions map[uint32][]Run
	Rules     map[uint32]Rule
	// Self are the addresses of this node, which may talk to its pods. That is for what its own
	// processes send, and not for what the node sends on for others.
	Self     map[netip.Addr]struct{}
	Problems map[string][]model.Problem // by namespace

	classes map[uint32]vector
	lengths [2][]int // of the prefixes in Regions by family, the longest first
}

// PodRow is a pod of this node. The generation changes when something that was accepted may not be
// accepted any longer: a verdict that was cached with another one is judged again.
type PodRow struct {
	Pod        model.Name
	Subject    uint32
	Generation uint32
}

// View is a class as a scope sees it.
type View struct{ Scope, Class uint32 }

// Row names a decision.
type Row struct {
	Subject   uint32
	Direction model.Direction
	Reduced   uint32
}

// The numbers of rules that no policy has.
const (
	RuleNone      uint32 = iota // nothing denies it
	RuleUnknown                 // it is not known yet what policies say about the pod
	RuleMalformed               // the packet does not tell which flow it belongs to
	RuleNode                    // the pod's node may talk to it
	FirstRule                   // the first of those that policies have
)

func ownRules() map[uint32]Rule {
	return map[uint32]Rule{RuleNone: {}, RuleUnknown: {Why: UnknownPod, Action: model.Deny}, RuleMalformed: {Why: MalformedPacket, Action: model.Deny}, RuleNode: {Why: FromItsNode}}
}

// NewTables returns tables without any rows.
func NewTables() *Tables {
	return &Tables{
		Pods: map[netip.Addr]PodRow{}, Subjects: map[uint32]uint32{}, Peers: map[netip.Addr]uint32{}, Regions: map[netip.Prefix]uint32{},
		Views: map[View]uint32{}, Rows: map[Row]uint32{}, Decisions: map[uint32][]Run{}, Rules: ownRules(),
		Self: map[netip.Addr]struct{}{}, Problems: map[string][]model.Problem{}, classes: map[uint32]vector{0: nil},
	}
}

// Evaluate judges a packet as the programs do. Answers to what was accepted are not asked about.
func (t *Tables) Evaluate(p Packet) Verdict {
	src, dst := p.Src.Unmap(), p.Dst.Unmap()
	if src == dst {
		return Verdict{true, Rule{Why: ToItself}}
	}
	verdict := t.Decide(t.Pods[src].Subject, model.Egress, dst, p.Protocol, p.Port)
	if !verdict.Accepted {
		return verdict
	}
	subject := t.Pods[dst].Subject
	if _, self := t.Self[src]; self && subject != 0 {
		return Verdict{true, Rule{Why: FromItsNode}}
	}
	if ingress := t.Decide(subject, model.Ingress, src, p.Protocol, p.Port); subject != 0 {
		return ingress
	}
	return verdict
}

// Decide looks up what policies say of one direction of a subject.
func (t *Tables) Decide(subject uint32, direction model.Direction, peer netip.Addr, protocol model.Protocol, port uint16) Verdict {
	if subject == 0 {
		return Verdict{Accepted: true}
	}
	run := find(t.decision(subject, direction, t.Class(peer)), keyOf(protocol, port))
	return Verdict{run.Accept, t.Rules[run.Rule]}
}

// Classes returns how many classes addresses have.
func (t *Tables) Classes() int { return len(t.classes) - 1 }

// Class returns the class of an address.
func (t *Tables) Class(addr netip.Addr) uint32 {
	if class, found := t.Peers[addr]; found {
		return class
	}
	return t.region(addr, addr.BitLen())
}

// region returns the class of the longest region of at most that many bits around an address.
func (t *Tables) region(addr netip.Addr, most int) uint32 {
	for _, bits := range t.lengths[family(addr)] {
		if bits > most {
			continue
		}
		prefix, _ := addr.Prefix(bits)
		if class, found := t.Regions[prefix]; found {
			return class
		}
	}
	return 0
}

func family(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}

// decision returns the runs for a class.
func (t *Tables) decision(subject uint32, direction model.Direction, class uint32) []Run {
	if number := t.number(subject, direction, class); number != 0 {
		return t.Decisions[number]
	}
	return []Run{{Accept: true}}
}

// number returns the number of the decision for a class, or 0 for nobody's.
func (t *Tables) number(subject uint32, direction model.Direction, class uint32) uint32 {
	if subject == 0 {
		return 0
	}
	reduced := t.Views[View{t.Subjects[subject], class}]
	if number, found := t.Rows[Row{subject, direction, reduced}]; found {
		return number
	}
	return t.Rows[Row{subject, direction, 0}]
}

// SetRegions stores the classes of prefixes.
func (t *Tables) SetRegions(regions map[netip.Prefix]uint32) {
	t.Regions = regions
	for prefix := range regions {
		list := &t.lengths[family(prefix.Addr())]
		if !slices.Contains(*list, prefix.Bits()) {
			*list = append(*list, prefix.Bits())
		}
	}
	for i := range t.lengths {
		slices.Sort(t.lengths[i])
		slices.Reverse(t.lengths[i])
	}
}
