package twin

import (
	"net/netip"
	"slices"
)

// The reasons that packets are counted as here.
const (
	NoBackend Reason = "no-backend"
	NoPort    Reason = "no-port"
	NoAddress Reason = "no-address"
	PortTaken Reason = "port-taken"
)

// choice is what a choice of a backend depends on: equal choices must lead to the same backend
// again.
type choice struct {
	service, scope, epoch int
	by                    Flow // without the parts that the choice does not depend on
}

// begin handles the first packet of a flow.
func (s *step) begin() {
	if s.isForwarded() {
		s.host()
		return
	}
	found, ok := s.frontend(s.flow, s.at == fromPod)
	if !ok && s.at == fromPod && s.mayBegin() && s.leadsNowhere() {
		s.drop(NoService, "no service")
		s.nobody()
		return
	}
	if !ok {
		s.pass("no frontend")
		return
	}
	s.touch(s.flow)
	if found.Kind == ClusterIP && !s.ExternalClusterIP && s.at != fromPod {
		s.drop(IsClusterIP, "cluster IP")
		return
	}
	s.beginOf(found)
}

// mayBegin reports whether a packet may be the first of a flow.
func (s *step) mayBegin() bool {
	return s.flow.Proto == protoUDP || s.flags&(SYN|ACK|RST) == SYN
}

// isOfServices reports whether an address is one for ClusterIPs, and not one of the node.
func (n *Node) isOfServices(addr netip.Addr) bool {
	_, own := n.Addresses[addr]
	mapped := netip.AddrFrom16(addr.As16())
	return !own && slices.ContainsFunc(n.ClusterIPs, func(p netip.Prefix) bool { return p.Contains(addr) || p.Contains(mapped) })
}

// leadsNowhere reports whether a packet is for an address of services, and none has that port. One
// that pods may not use has it all the same.
func (s *step) leadsNowhere() bool {
	_, known := s.Frontends[Key{s.flow.Dest, s.flow.Proto}]
	return !known && s.isOfServices(s.flow.Dest.Addr())
}

// beginOf handles the first packet of a flow to a frontend.
func (s *step) beginOf(found Frontend) {
	if s.flags&RST != 0 {
		s.pass("reset of nobody's")
		return
	}
	service := s.Services[found.Service]
	if found.Kind == LoadBalancer && !s.allows(found.Service, s.flow.Source.Addr()) {
		s.drop(SourceRange, "not let in")
		return
	}
	scope := service.scope(found.Kind, s.at == fromPod)
	allowed, reason := s.candidates(found.Service, service, scope)
	if reason != "" {
		s.drop(reason, string(reason))
		if reason == NoBackend && len(service.Slots[ScopeAll]) == 0 {
			s.nobody()
		}
		return
	}
	if s.mode = service.Direct; s.at == fromPod || s.isForwarded() || s.mode == DirectOpt && (s.isInside() || !s.mayHaveOption()) {
		s.mode = DirectOff
	}
	s.enter(found.Kind, allowed)
}

// candidates returns the backends that may be chosen, or the reason why there are none. It records
// the visit of a client that comes back.
func (s *step) candidates(index int, service *Service, scope int) ([]int, Reason) {
	slots, client := service.Slots[scope], visitor{s.flow.Source.Addr(), index}
	known := s.visits[client]
	if service.Affinity > 0 && known != nil && !known.lapsed && slices.Contains(slots, known.backend) {
		return []int{known.backend}, ""
	}
	s.by = choice{index, scope, service.epoch, Flow{Source: s.flow.Source, Dest: netip.AddrPortFrom(anyAddr(client.client), s.flow.Dest.Port())}}
	byClient := service.Algorithm == SourceHash ||
		service.Affinity > 0 && (known == nil || !known.lapsed || service.Algorithm == Maglev)
	inTurn := service.Algorithm == RoundRobin && !byClient
	if inTurn {
		service.turn++
	}
	switch {
	case len(slots) == 0:
		return nil, NoBackend
	case service.Broken != "":
		return nil, service.Broken
	case byClient:
		s.by.by = Flow{Source: netip.AddrPortFrom(client.client, 0)}
	case inTurn:
		slots = []int{slots[int(service.turn-1)%len(slots)]}
		s.by = choice{}
	}
	if before, ok := s.chosen[s.by]; ok && !inTurn {
		slots = []int{before}
	}
	if service.Affinity > 0 {
		return s.noteAffinity(client, slots), ""
	}
	return slots, ""
}

// noteAffinity records which backend a client with affinity was given.
func (s *step) noteAffinity(client visitor, slots []int) []int {
	kept, ok := s.witness.Affinity(client.service, client.client)
	if !ok || !slices.Contains(slots, kept) {
		s.refuse("client %s is remembered with backend %d (%v), of %v", client.client, kept, ok, slots)
		return slots
	}
	s.visits[client] = &visit{backend: kept}
	s.remember(kept)
	return []int{kept}
}

// remember records a choice, which must be the same again for equal inputs.
func (s *step) remember(id int) {
	if s.by != (choice{}) {
		s.chosen[s.by] = id
	}
}

// enter makes the rows of a flow to one of the allowed backends.
func (s *step) enter(kind Kind, allowed []int) {
	wrote, ok := s.witness.Pending(s.flow)
	at := slices.IndexFunc(allowed, func(id int) bool { return ok && s.Backends[id].At == wrote.Dest })
	if at < 0 {
		s.noWay(allowed, wrote, ok)
		return
	}
	backend := s.Backends[allowed[at]]
	s.remember(allowed[at])
	if s.mode != DirectOff && !backend.Local {
		s.enterDirect(backend, kind == LoadBalancer)
		return
	}
	path := "begun, remote"
	switch {
	case s.isOwn(backend):
		path = "begun, own"
	case backend.Local || s.at == fromPod:
		path = "begun, local"
	case s.isInside():
		path = "begun, remote, from inside"
	}
	s.send(s.enterBoth(backend, kind == LoadBalancer, wrote.Source, &path), path)
}

// enterBoth makes both rows of a flow, with source as the client that the backend sees, and returns
// the row of the request.
func (s *step) enterBoth(backend Backend, guarded bool, source netip.AddrPort, path *string) *Row {
	row := Row{Source: source, Dest: backend.At, Guarded: guarded, Local: backend.Local || s.at == fromPod, Inside: s.at == fromPod,
		Own: s.isOwn(backend)}
	row.Way = s.wayOf(&row)
	if !s.shakesHands() {
		row.Seen = s.Now
	}
	if s.flow.Proto == protoTCP {
		row.Reached = upper(s.seq)
	}
	back := row.back(s.flow.Proto)
	s.touch(back)
	own := s.flow.Source
	if s.isMasqueraded(backend) {
		snat, known := s.snat()
		if !known {
			s.refuse("%s was reached from %s, but the node has no address", backend.At, row.Source)
		}
		own = netip.AddrPortFrom(snat, 0)
	}
	if row.Source != own {
		s.checkPort(&row, own, !s.isMasqueraded(backend))
		if !s.isMasqueraded(backend) {
			*path += ", another port"
		}
		if s.giveWay(back, s.flow.Source.Addr()) {
			*path += ", taken"
		}
	}
	if !s.claim(back, s.replyRow(&row)) {
		s.refuse("%s to %s belongs to another flow", back.Source, back.Dest)
	}
	s.Pending[s.flow] = &row
	s.dialed = s.dialed || row.Inside
	return &row
}

// isOwn reports whether the client is a pod that is its own backend.
func (s *step) isOwn(backend Backend) bool {
	return s.at == fromPod && backend.At.Addr() == s.flow.Source.Addr()
}

// isMasqueraded reports whether a backend sees the node as the client, because otherwise its answer
// would not come through this node. Answers to a pod come through here wherever the backend is,
// unless the pod is its own backend.
func (s *step) isMasqueraded(backend Backend) bool {
	if s.at == fromPod {
		return s.isOwn(backend)
	}
	return !backend.Local
}

// snat returns the address that backends on other nodes see as the client.
func (s *step) snat() (netip.Addr, bool) {
	addr := s.Masquerade[s.v4]
	_, own := s.Addresses[addr]
	return addr, own
}

// checkPort checks the port that a flow was given instead of the client's own.
func (s *step) checkPort(row *Row, own netip.AddrPort, local bool) {
	if row.Source.Addr() != own.Addr() {
		s.refuse("the backend sees %s, not %s", row.Source, own.Addr())
	}
	if port := row.Source.Port(); port < s.Ports[0] || port > s.Ports[1] {
		s.refuse("port %d is not among those that the node may use", port)
	}
	kept := *row
	kept.Source = own
	if local && s.isFree(kept.back(s.flow.Proto)) {
		s.refuse("port %d was given to a flow whose own was free", row.Source.Port())
	}
}

// isFree reports whether the packet's flow may use back as its reply.
func (s *step) isFree(back Flow) bool {
	if known := s.Pending[back]; known != nil {
		return known.leads(s.flow)
	}
	return s.Open[back] == nil
}

// noWay handles a flow for which the programs wrote no row: there must be a backend that the flow
// cannot reach.
func (s *step) noWay(allowed []int, wrote Row, ok bool) {
	if ok {
		s.refuse("%s is not among %v", wrote.Dest, allowed)
	}
	reason := NoPort
	if _, known := s.snat(); !known && s.witness.Counted(NoAddress) {
		reason = NoAddress
	}
	if !slices.ContainsFunc(allowed, func(id int) bool { return s.hasNoWay(s.Backends[id], reason) }) {
		s.refuse("no way to any of %v was found", allowed)
	}
	s.drop(reason, string(reason))
	if reason == NoPort && !s.isForwarded() {
		s.nobody()
	}
}

// hasNoWay reports whether a flow to a backend may be refused for a reason. Ports are picked at
// random, so the programs may miss the free ones where most are in use.
func (s *step) hasNoWay(backend Backend, reason Reason) bool {
	source := s.flow.Source
	if s.isMasqueraded(backend) {
		snat, known := s.snat()
		if !known || reason == NoAddress || s.mode != DirectOff {
			return !known && reason == NoAddress && s.mode != DirectOpt
		}
		source = netip.AddrPortFrom(snat, 0)
	} else if reason == NoAddress || s.isFree(Flow{backend.At, source, s.flow.Proto}) {
		return false
	}
	if !s.isCrowded(backend.At, source.Addr()) {
		return false
	}
	// Whatever most ports are drawn as is drawn at least once.
	of := s.lent(Flow{backend.At, source, s.flow.Proto}, s.flow.Source.Addr())
	if reason == NoPort && of.own == 0 && of.others > of.ports/2 || len(of.half) > of.ports/2 {
		s.refuse("no port to %s was found, though flows could have given way: %+v", backend.At, of)
	}
	return true
}

// lent is what has the ports toward a backend.
type lent struct {
	ports, own, others int    // how many there are, a client's, and those of others that are not established
	half               []*Row // those of the client that are not established
}

func (s *step) lent(back Flow, client netip.Addr) (of lent) {
	for port := int(s.Ports[0]); port <= int(s.Ports[1]); port++ {
		of.ports++
		back.Dest = netip.AddrPortFrom(back.Dest.Addr(), uint16(port))
		known, isPending := s.Pending[back], true
		if known == nil {
			known, isPending = s.Open[back], false
		}
		switch {
		case known == nil || isPending && !known.Reply:
		case known.Dest.Addr() == client:
			if of.own++; isPending {
				of.half = append(of.half, known)
			}
		case isPending:
			of.others++
		}
	}
	return of
}

// giveWay has a flow that is not established give its port to the client's, and reports whether it
// had to. The client's own flows go first, and another's only if those have more ports.
func (s *step) giveWay(back Flow, client netip.Addr) bool {
	known := s.Pending[back]
	if known == nil || s.Open[back] != nil || known.leads(s.flow) {
		return false
	}
	of := s.lent(back, client)
	own := known.Dest.Addr() == client
	switch {
	case !known.Reply || !s.isCrowded(back.Source, back.Dest.Addr()):
		s.refuse("%s was taken from another flow", back.Dest)
	case !own && len(of.half) > of.ports/2:
		s.refuse("%s was taken from another client, though the client has others: %+v", back.Dest, of)
	case !own && of.own >= 6*of.others:
		s.refuse("%s was taken from a client that has less: %+v", back.Dest, of)
	}
	request := known.back(s.flow.Proto)
	s.touch(request)
	if asked := s.Pending[request]; asked != nil && asked.leads(back) {
		delete(s.Pending, request)
	}
	delete(s.Pending, back)
	s.out.Counted = append(s.out.Counted, PortTaken)
	return true
}

// isCrowded reports whether most ports toward a backend are in use.
func (s *step) isCrowded(backend netip.AddrPort, source netip.Addr) bool {
	used := 0
	for port := int(s.Ports[0]); port <= int(s.Ports[1]); port++ {
		if !s.isFree(Flow{backend, netip.AddrPortFrom(source, uint16(port)), s.flow.Proto}) {
			used++
		}
	}
	return 2*used >= int(s.Ports[1])-int(s.Ports[0])+1
}
