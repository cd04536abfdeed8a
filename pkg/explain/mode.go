package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/snapshot"
)

// Forwarding is how packets get from this node to the backend. Besides the values below, it may be
// "dsr-" and a mode of direct server return, for a backend on another node that answers the client
// directly.
type Forwarding string

// The ways of forwarding.
const (
	BySocket Forwarding = "socket" // no packet is rewritten
	ByDNAT   Forwarding = "dnat"   // to a backend on this node
	BySNAT   Forwarding = "snat"   // to a backend on another node, from this node's address
)

// ForwardingOf returns how packets of a flow row are forwarded.
func ForwardingOf(row *maps.FlowRow) Forwarding {
	switch kind := maps.FlowKindOf(row.Kind); {
	case kind.IsDSR():
		return Forwarding(kind.String())
	case kind == maps.FlowLocal:
		return ByDNAT
	}
	return BySNAT
}

// forwarding says how packets of a client outside get to the backend, and why.
func (x *explainer) forwarding(service *snapshot.Service) {
	t := x.e.Trial
	if t.Outcome != TrialBackend {
		return
	}
	x.e.Forwarding = t.Forwarding
	switch t.Forwarding {
	case "": // an older agent
	case ByDNAT:
		x.e.Mode = "the backend is on this node, so it sees the client's own address, and its answers pass through here anyway"
		if service.Has(snapshot.FlagExternalLocal) {
			x.e.Mode = "externalTrafficPolicy is Local, so the backend is on this node and sees the client's own address"
		}
		if t.Source.Port() != x.port {
			x.e.Mode += "; another flow between the two already uses the client's port, so this one got another"
		}
	case BySNAT:
		x.e.Mode = fmt.Sprintf("the backend is on another node and sees this node's address %s, so that its answers come back here; ", t.Source.Addr())
		at := slices.IndexFunc(service.Flags, func(flag string) bool { return strings.HasPrefix(flag, snapshot.FlagDSR) })
		if at < 0 {
			x.e.Mode += "externalTrafficPolicy: Local would use only backends on this node"
			break
		}
		x.e.Mode += fmt.Sprintf("the service has %s, which this flow does not use", service.Flags[at])
		inside := func(p netip.Prefix) bool { return p.Contains(x.Client) }
		if service.Flags[at] == snapshot.FlagDSR+lb.DirectOpt.String() && slices.ContainsFunc(x.snapshot.Inside, inside) {
			x.e.Mode += ", since its client is inside the cluster"
		}
	default:
		x.e.Mode = "the backend is on another node, sees the client's own address and answers the client directly: fairlead.io/dsr of the " +
			"Service, or --dsr, says so"
	}
}

// Numbers are the hashes that lead a flow from outside to a slot: a hash modulo the length of the
// table.
type Numbers struct {
	Flow   uint32 `json:"flow"`   // a hash of the client's address and port, and the dialed port
	Client uint32 `json:"client"` // a hash of the client's address alone
}

// What decided the backend of a flow from outside.
const (
	ByFlow     = "conntrack" // the flow is tracked
	ByAffinity = "affinity"  // the client is remembered
	ByTurn     = "turn"      // it is the slot's turn
	ByHash     = "hash"      // of the flow or of the client
)

// Choice is how a flow from outside got its backend.
type Choice struct {
	By string `json:"by"`
	// Number, Slot and Slots are set if the table decided. Client says that the number is a hash of
	// the client alone.
	Number uint32 `json:"number,omitempty"`
	Slot   int    `json:"slot,omitempty"`
	Slots  int    `json:"slots,omitempty"`
	Client bool   `json:"client,omitempty"`
}

// chosen says how the flow got its backend: by conntrack, by affinity, or by a slot of the table.
func (x *explainer) chosen(service *snapshot.Service, scope snapshot.NamedScope) {
	t := x.e.Trial
	decides := x.packetDecider(service)
	switch decides {
	case lb.ByTurn:
		x.e.Decides = "flows take turns: this is the backend of the next one, from any client"
	case lb.ByClient:
		x.e.Decides = "the client's address decides, in the same way on every node"
	default:
		x.e.Decides = "the client's address and port decide, in the same way on every node: from another port, it may get another backend"
	}
	if t.Outcome != TrialBackend || len(scope.Slots) == 0 {
		return
	}
	c := &Choice{Slots: len(scope.Slots)}
	switch {
	case t.Known:
		c = &Choice{By: ByFlow}
	case x.affinityHolds(service, scope):
		c = &Choice{By: ByAffinity}
	case decides == lb.ByTurn:
		c.By, c.Number = ByTurn, service.Turn
	case t.Numbers == nil: // an older agent
		return
	default:
		c.By, c.Number, c.Client = ByHash, t.Numbers.Flow, decides == lb.ByClient
		if c.Client {
			c.Number = t.Numbers.Client
		}
	}
	x.e.Choice = c
	if c.Slots == 0 {
		return
	}
	c.Slot = int(c.Number % uint32(c.Slots))
	for _, share := range scope.Backends {
		if share.Backend == scope.Slots[c.Slot] && share.Address != t.Backend {
			x.e.Notes = append(x.e.Notes, fmt.Sprintf("Slot %d now leads to %s: the table has changed meanwhile; ask again.", c.Slot, share.Address))
		}
	}
}

// packetDecider returns what decides about the first packet of the client's next flow.
func (x *explainer) packetDecider(service *snapshot.Service) lb.Decider {
	lapsed := x.visit.there && x.age() > time.Duration(service.AffinitySeconds)*time.Second
	return service.Algorithm.OfPacket(service.AffinitySeconds > 0, lapsed)
}

// age is the time since the client last began a flow to the service.
func (x *explainer) age() time.Duration { return time.Duration(x.now - min(x.now, x.visit.last)) }

// affinityHolds reports whether the client has a backend that is still in the scope.
func (x *explainer) affinityHolds(service *snapshot.Service, scope snapshot.NamedScope) bool {
	if !x.visit.there || x.age() > time.Duration(service.AffinitySeconds)*time.Second {
		return false
	}
	for _, share := range scope.Backends {
		if share.Backend == x.visit.row {
			return true
		}
	}
	return false
}

func (c *Choice) text() string {
	switch c.By {
	case ByFlow:
		return "by conntrack: this flow exists already, and it keeps its backend whatever the table says"
	case ByAffinity:
		return "by session affinity: the client keeps the backend of its last flow"
	case ByTurn:
		return fmt.Sprintf("slot %d of %d, whose turn it is", c.Slot, c.Slots)
	}
	of := "its address and port and the dialed port"
	if c.Client {
		of = "its address"
	}
	return fmt.Sprintf("slot %d of %d: 0x%08x, the hash of %s, modulo %d", c.Slot, c.Slots, c.Number, of, c.Slots)
}
