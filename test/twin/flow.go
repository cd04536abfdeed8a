package twin

import "net/netip"

// The reasons that packets are counted as here.
const (
	FlowRace  Reason = "flow-race"
	FlowsFull Reason = "flows-full"
)

// Flow is one direction of a conversation, with the addresses and ports its packets arrive with.
type Flow struct {
	Source, Dest netip.AddrPort
	Proto        uint8
}

// State is how far one direction of a flow has got.
type State uint8

// The states in the order in which a direction passes through them. The first two are those of
// flows that are not established.
const (
	New State = iota
	Answered
	Open
	Closing
	Reset
)

// MAC is a link-layer address.
type MAC [6]byte

// Way is where a packet goes: a device and the neighbor behind it.
type Way struct {
	Device       int // 0: the stack finds the way
	Dest, Source MAC // zero: the neighbor is not resolved
}

func (w Way) known() bool { return w.Dest != MAC{} }

// Row is what is remembered of one direction of a flow.
type Row struct {
	Source, Dest netip.AddrPort // what packets are rewritten to
	Way          Way
	Reply        bool // of the direction back to the client
	Guarded      bool // of an address of a load balancer, restricted by source ranges
	Local        bool // the backend is on this node, where the stack finds it
	Inside       bool // of packets from a pod to a service: translated only at the pod's device
	Own          bool // that pod is its own backend, and sees the node
	Seen         uint32
	State        State
	Dialed       uint16 // the same of a SYN that came since, or of the answer to one; 0: none
	Reached      uint16 // how far the direction has come: the upper half of a sequence number or of a tag; 0: unknown
	Direct       Direct // the backend answers directly: there is no reply row, and this one stays half open
	Made         uint16 // tick in which a row that may be given back was made
	Torn         bool   // as if the row were half overwritten: it must not be used
}

// back returns the flow of the answers, when packets leave as the row says.
func (r *Row) back(proto uint8) Flow { return Flow{r.Dest, r.Source, proto} }

// leads reports whether the row undoes the rewriting of the row of flow.
func (r *Row) leads(flow Flow) bool { return r.Dest == flow.Source && r.Source == flow.Dest }

func (r *Row) sameRewrite(o *Row) bool { return r.Source == o.Source && r.Dest == o.Dest }

// claim takes a flow for a row, unless another row has it in either memory.
func (n *Node) claim(flow Flow, row Row) bool {
	if known := n.Pending[flow]; known != nil {
		return known.sameRewrite(&row)
	}
	if n.Open[flow] != nil {
		return false
	}
	n.Pending[flow] = &row
	return true
}

// forget removes both directions from one memory; the reply only if it belongs to the flow.
func forget(memory map[Flow]*Row, flow, back Flow) {
	known := memory[back]
	delete(memory, flow)
	if known != nil && known.leads(flow) {
		delete(memory, back)
	}
}

// find returns the row of a flow for packets that neither begin nor prolong it, and whether the row
// is torn.
func (n *Node) find(flow Flow) (row *Row, torn bool) {
	if row = n.Open[flow]; row != nil {
		return row, row.Torn
	}
	row = n.Pending[flow]
	if row == nil || row.Torn {
		return row, row != nil
	}
	if reply := n.Pending[row.back(flow.Proto)]; row.Reply || row.Direct != DirectOff || reply != nil && reply.leads(flow) {
		return row, false
	}
	return nil, false
}
