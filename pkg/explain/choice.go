package explain

import (
	"fmt"
	"net/netip"
	"time"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/snapshot"
)

// choose explains how one of the service's backends is chosen, and which one if it is known.
func (x *explainer) choose(service *snapshot.Service, frontend *snapshot.Frontend) error {
	scope := snapshot.NamedScope{Name: "all", Scope: &service.All}
	x.e.Policy = policy(service, frontend)
	if frontend.Row.Kind == maps.ClusterIP && service.Has(snapshot.FlagInternalLocal) {
		scope = snapshot.NamedScope{Name: "local", Scope: &service.Local}
	}
	x.e.Scope, x.e.Algorithm = scope.Name, service.Algorithm.String()
	if scope.Damage != "" {
		x.damaged("service %s, scope %s: %s", service.Label(), scope.Name, scope.Damage)
	}
	if scope.Changing {
		x.e.Notes = append(x.e.Notes, "The backends are changing right now: ask again.")
	}
	for _, share := range scope.Backends {
		x.e.Candidates = append(x.e.Candidates, Candidate{
			Address: share.Address, Slots: share.Slots, Percent: 100 * float64(share.Slots) / float64(scope.Length),
		})
	}
	if len(x.e.Candidates) == 0 {
		if x.e.Outcome, x.e.Reason = Refused, refusal(scope); x.e.Forwarding == ByPodDevice {
			x.drop("no-backend")
		}
		return nil
	}
	x.e.Outcome = ToBackend
	slotOf, affinity := x.slot, x.affinity
	if x.e.Forwarding == ByPodDevice {
		slotOf, affinity = x.packetSlot, x.packetAffinity
	} else {
		x.e.Forwarding, x.e.Mode = BySocket, "the socket is pointed at the backend before it sends, so no packet is rewritten"
	}
	slot, known := slotOf(service, scope)
	if known && slot < len(scope.Slots) {
		x.next(scope, scope.Slots[slot])
	}
	if err := affinity(service, scope); err != nil {
		return err
	}
	x.e.Reason = fmt.Sprintf("one of %d backends", len(x.e.Candidates))
	switch {
	case len(x.e.Candidates) == 1:
		x.e.Reason = x.e.Candidates[0].Address.String() + ", the only backend"
		x.e.Next = &x.e.Candidates[0].Address
	case x.e.Next != nil:
		x.e.Reason = x.e.Next.String()
	}
	if x.Protocol == model.UDP && x.e.Forwarding == BySocket {
		x.e.Notes = append(x.e.Notes,
			"A socket that sends without connecting chooses at its first datagram and keeps that backend while it is usable.")
	}
	return nil
}

func refusal(scope snapshot.NamedScope) string {
	if scope.Damage != "" {
		return "the table of backends is damaged"
	}
	if scope.Name == "local" {
		return "the service has no usable backend on this node"
	}
	return "the service has no usable backend"
}

// policy says why the connection uses one scope or the other. It starts on this node, so only a
// ClusterIP can be restricted to the node's own backends.
func policy(service *snapshot.Service, frontend *snapshot.Frontend) string {
	switch kind := frontend.Row.Kind; {
	case kind == maps.HostPort:
		return "a host port leads to its pod"
	case kind == maps.ClusterIP && service.Has(snapshot.FlagInternalLocal):
		return "internalTrafficPolicy is Local: only backends on this node"
	case kind == maps.ClusterIP:
		return "internalTrafficPolicy is Cluster"
	case service.Has(snapshot.FlagExternalLocal):
		return "externalTrafficPolicy is Local, but that applies only to clients outside: from this node the connection short-circuits to " +
			"every backend"
	}
	return "externalTrafficPolicy is Cluster"
}

// slot says what decides which slot a connection gets, and returns the slot if it is known.
func (x *explainer) slot(service *snapshot.Service, scope snapshot.NamedScope) (int, bool) {
	n := scope.Length
	switch service.Algorithm.OfSocket() {
	case lb.ByTurn:
		x.e.Decides = fmt.Sprintf("connections take turns; the next one from any client gets slot %d of %d", int(service.Turn)%n, n)
		return int(service.Turn) % n, true
	case lb.ByClient:
		if x.cookie == 0 {
			x.e.Decides = fmt.Sprintf("the client's network namespace decides: always the same one of %d slots; run the command in that namespace "+
				"to see which one", n)
			return 0, false
		}
		at := int(mix(x.cookie) % uint32(n))
		x.e.Decides = fmt.Sprintf("the client's network namespace decides: slot %d of %d", at, n)
		return at, true
	}
	x.e.Decides = fmt.Sprintf("every connection from this node draws one of %d slots; for clients outside, the hash of the flow decides", n)
	return 0, false
}

// mix hashes a cookie as the programs do.
func mix(cookie uint64) uint32 {
	cookie ^= cookie >> 33
	cookie *= 0xff51afd7ed558ccd
	cookie ^= cookie >> 33
	cookie *= 0xc4ceb9fe1a85ec53
	return uint32(cookie ^ cookie>>33)
}

// next records the backend of a row as the next one if the scope has it.
func (x *explainer) next(scope snapshot.NamedScope, row uint32) *netip.AddrPort {
	for _, share := range scope.Backends {
		if share.Backend == row {
			x.e.Next = &share.Address
			return x.e.Next
		}
	}
	return nil
}

// affinity says what the client's earlier connections mean for this one.
func (x *explainer) affinity(service *snapshot.Service, scope snapshot.NamedScope) error {
	if service.AffinitySeconds == 0 {
		x.e.Affinity = "none"
		return nil
	}
	timeout := time.Duration(service.AffinitySeconds) * time.Second
	x.e.Affinity = fmt.Sprintf("ClientIP, %s since the client's last new connection; ", timeout)
	if x.cookie == 0 {
		x.e.Affinity += "the maps identify the client by its network namespace, not its address: run the command in that namespace " +
			"to see its backend"
		x.e.Next = nil
		return nil
	}
	entry, err := x.remembered(x.cookie, service)
	if err != nil {
		return err
	}
	if entry == nil {
		x.e.Affinity += "this client has no backend yet"
		return nil
	}
	age := time.Duration(x.now - entry.Last)
	if x.now < entry.Last { // the clock was read before the entry was written
		age = 0
	}
	if age > timeout {
		x.e.Affinity += fmt.Sprintf("this client's last one was %s ago, so a backend is chosen anew", age.Round(time.Second))
		return nil
	}
	was := x.e.Next
	if kept := x.next(scope, entry.Row); kept != nil {
		x.e.Affinity += fmt.Sprintf("this client has %s, for another %s", kept, (timeout - age).Round(time.Second))
		return nil
	}
	x.e.Next = was
	x.e.Affinity += "the backend that this client had is not usable any more, so another is chosen"
	return nil
}
