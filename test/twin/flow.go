package twin

import "net/netip"

// Flow is one direction of a conversation, as its packets arrive.
type Flow struct {
	Source, Dest netip.AddrPort
	Proto        uint8
}

// State is how far one direction of a flow is.
type State uint8

// The states in the order in which a direction goes through them. The first two are those of flows that are not
// established.
const (
	New State = iota
	Answered
	Open
	Closing
	Reset
)

// MAC is an address of a link.
type MAC [6]byte

// Way is where a packet goes: a device and the neighbour behind it.
type Way struct {
	Device       int // 0: the stack finds the way
	Dest, Source MAC // zero: the neighbour is not known
}

func (w Way) known() bool { return w.Dest != MAC{} }

// Row is what is remembered of one direction of a flow.
type Row struct {
	Source, Dest netip.AddrPort // what its packets get
	Way          Way
	Reply        bool // of the way back to the client
	Guarded      bool // of a load balancer address
	Local        bool // the backend is on this node, where the stack finds it
	Inside       bool // of what a pod sends to a service as packets: it is translated at the pod's device alone
	Own          bool // that pod is its own backend, and sees the node
	Seen         uint32
	State        State
	Direct       Direct // the backend answers itself: there is no row of the way back, and this one stays half open
	Made         uint16 // the tick in which it was, of one that may be given back
	Torn         bool   // as if the row were another's: it is not to be believed
}

// back returns the flow of what comes back when packets leave as the row says.
func (r *Row) back(proto uint8) Flow { return Flow{r.Dest, r.Source, proto} }

// leads reports whether the row undoes what the row of flow does.
func (r *Row) leads(flow Flow) bool { return r.Dest == flow.Source && r.Source == flow.Dest }

func (r *Row) sameRewrite(o *Row) bool { return r.Source == o.Source && r.Dest == o.Dest }

// claim takes a flow for a row, unless it is another's in either memory.
func (n *Node) claim(flow Flow, row Row) bool {
	if known := n.Half[flow]; known != nil {
		return known.sameRewrite(&row)
	}
	if n.Open[flow] != nil {
		return false
	}
	n.Half[flow] = &row
	return true
}

// forget ends both directions in one memory; that of the way back only if it belongs to the flow.
func forget(memory map[Flow]*Row, flow, back Flow) {
	known := memory[back]
	delete(memory, flow)
	if known != nil && known.leads(flow) {
		delete(memory, back)
	}
}

// find returns what is known of a flow to those who neither begin nor prolong it, and whether it cannot be believed.
func (n *Node) find(flow Flow) (row *Row, torn bool) {
	if row = n.Open[flow]; row != nil {
		return row, row.Torn
	}
	row = n.Half[flow]
	if row == nil || row.Torn {
		return row, row != nil
	}
	if reply := n.Half[row.back(flow.Proto)]; row.Reply || row.Direct != DirectOff || reply != nil && reply.leads(flow) {
		return row, false
	}
	return nil, false
}
