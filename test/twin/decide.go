package twin

// decide is for packets of TCP and UDP that come in.
func (s *step) decide() {
	if !s.established() && !s.halfOpen() {
		s.begin()
	}
}

// after returns how far a direction is after the packet at hand.
func (p *packet) after(state State) State {
	switch {
	case p.flags&RST != 0:
		return Reset
	case p.flags&FIN != 0:
		return Closing
	case state == Reset:
		return Open
	}
	return state
}

// consider notes whether XDP may have a packet, by the row that there was before: it can only send it back.
func (s *step) consider(row *Row) {
	s.behind = s.behind || row.Way.Device != 0 && (row.Way.Device != s.device || !row.Way.known())
}

// due reports whether the way of a row has to be asked for, when it was last used before.
func (n *Node) due(row *Row, seen uint32) bool {
	switch {
	case row.Local:
		return false
	case !row.Way.known() || int32(n.Followed-n.Now) < 0:
		return true
	}
	return int32(seen-n.Changed) <= 0
}

// judged reports whether the client of a flow has to be looked for in the ranges, when its row was last used before.
func (n *Node) judged(row *Row, seen uint32) bool {
	return row.Guarded && (int32(n.Followed-n.Now) < 0 || int32(seen-n.Guards) <= 0)
}

// judgedHalf reports the same of a flow that is not established. One whose backend answers its client itself is as far as it
// gets once the client has gone on.
func (s *step) judgedHalf(row *Row) bool {
	if row.Direct == DirectOff || s.isForwarded() || s.begins() || row.State < Open {
		return true
	}
	return row.Seen != s.Now && s.judged(row, row.Seen)
}

// handshake is how many ticks it may take.
const handshake = 128

// use notes that a row of an established flow was used, and reports whether it is the first time in this tick. Whoever
// dials what is gone does not keep it.
func (s *step) use(row *Row) bool {
	row.State = s.after(row.State)
	if row.Seen == s.Now || s.begins() {
		return false
	}
	row.Seen = s.Now
	return true
}

// established handles the packet by a row of an established flow. False: there is none, or the client begins anew.
func (s *step) established() bool {
	row := s.Open[s.flow]
	if row == nil {
		return false
	}
	back := row.back(s.flow.Proto)
	s.touch(s.flow, back)
	if row.Torn {
		s.drop(FlowRace, "established, torn")
		return true
	}
	if row.Inside {
		s.astray(row)
		return true
	}
	s.consider(row)
	if s.beginsAs(row) && s.isOver(row, back) {
		forget(s.Open, s.flow, back)
		return false
	}
	path, seen := "established", row.Seen
	if s.use(row) {
		path = "established, first in a tick"
		if s.due(row, seen) {
			path = "established, way asked for"
			row.Way = s.wayOf(row)
		}
		switch allowed := s.mayStay(row); {
		case !allowed && s.judged(row, seen):
			s.cutClient(back)
			return true
		case !allowed:
			path += ", not judged"
		}
	}
	s.send(row, path)
	return true
}

// beginsAs reports whether the packet begins a connection in the direction of a row. What a pod answers to the node itself does not.
func (s *step) beginsAs(row *Row) bool {
	return s.begins() && !row.Reply || s.welcomes() && row.Reply && s.at != fromPod
}

// isOver reports whether a flow has ended, so that a client who dials again gets a new one, and a server that answers
// another connection is not taken for the flow's. A server may only say so when neither side has anything to say.
func (s *step) isOver(row *Row, back Flow) bool {
	other := s.Open[back]
	switch {
	case other == nil || !other.leads(s.flow):
		return !row.Reply
	case other.State == Reset || row.State == Reset:
		return true
	}
	return row.State > Open && (!row.Reply || other.State > Open)
}

// mayStay reports whether the client of a flow is still let in.
func (s *step) mayStay(row *Row) bool {
	if !row.Guarded {
		return true
	}
	at, client := s.flow.Dest, s.flow.Source
	if row.Reply {
		at, client = row.Source, row.Dest
	}
	found, ok := s.Frontends[Key{at, s.flow.Proto}]
	return !ok || found.Kind != LoadBalancer || s.allows(found.Service, client.Addr())
}

func (s *step) cutClient(back Flow) {
	forget(s.Open, s.flow, back)
	forget(s.Half, s.flow, back)
	s.drop(SourceRange, "cut off by ranges")
}

// halfOpen handles the packet by a row of a flow that is not established.
func (s *step) halfOpen() bool {
	row := s.Half[s.flow]
	if row == nil {
		return false
	}
	back := row.back(s.flow.Proto)
	s.touch(s.flow, back)
	if row.Torn {
		s.drop(FlowRace, "half open, torn")
		return true
	}
	if row.Inside {
		s.astray(row)
		return true
	}
	s.consider(row)
	if s.judgedHalf(row) && !s.mayStay(row) {
		s.cutClient(back)
		return true
	}
	if row.Direct != DirectOff {
		return s.direct(row)
	}
	if seen := row.Seen; seen != s.Now && (row.Reply || !s.shakesHands()) {
		if row.Seen = s.Now; s.due(row, seen) {
			row.Way = s.wayOf(row)
		}
	}
	if row.Reply {
		s.answered(row, back)
		s.send(row, "half open, reply")
		return true
	}
	return s.request(row, back)
}

// request handles what a client sends before the flow is established. Either row may have been pushed out before.
func (s *step) request(row *Row, back Flow) bool {
	reply := s.Half[back]
	if reply == nil && !s.claim(back, s.replyRow(row)) || reply != nil && !reply.leads(s.flow) {
		delete(s.Half, s.flow)
		return false
	}
	switch {
	case s.flags&RST != 0:
		delete(s.Half, s.flow)
		delete(s.Half, back)
		s.send(row, "half open, given up")
	case s.proves(row):
		s.establish(row, back)
	default:
		s.send(row, "half open, request")
	}
	return true
}

// replyRow returns the row of what answers the packet at hand, which goes as row says.
func (s *step) replyRow(row *Row) Row {
	reply := Row{Source: s.flow.Dest, Dest: s.flow.Source, Reply: true, Guarded: row.Guarded, Local: row.Local, Inside: row.Inside,
		Own: row.Own, Seen: s.Now}
	reply.Way = s.wayOf(&reply)
	return reply
}

// window is how far beyond an answer a client may acknowledge to show that it has it.
const window = 1 << 16

// proves reports whether a packet shows that the client has the backend's answer.
func (s *step) proves(row *Row) bool {
	if row.State != Answered {
		return false
	}
	switch s.flow.Proto {
	case protoTCP:
		return s.flags&(ACK|RST) == ACK && s.ack-row.Seen < window
	case protoSCTP: // zero: the backend has spoken without asking for a tag
		return s.flags&RST == 0 && (row.Seen == 0 || s.ack == row.Seen)
	}
	return true
}

// establish moves both rows of a flow, if there is room.
func (s *step) establish(row *Row, back Flow) {
	reply := s.Half[back]
	if reply == nil || reply.Torn {
		s.send(row, "half open, request")
		return
	}
	if known := s.Open[back]; known != nil && !known.leads(s.flow) {
		delete(s.Half, s.flow)
		s.drop(FlowRace, "another has the reply")
		return
	}
	need := 0
	for _, flow := range []Flow{s.flow, back} {
		if s.Open[flow] == nil {
			need++
		}
	}
	if len(s.Open)+need > s.Room {
		s.send(row, "no room")
		if len(s.out.Counted) == 0 && !s.out.Replaced { // else it is dropped for another reason, or counted when it comes again
			s.out.Counted = append(s.out.Counted, FlowsFull)
		}
		return
	}
	opened, answer := *row, *reply
	if s.shakesHands() { // when its way was asked for is nowhere
		if opened.Seen = s.Now; s.Now-s.Changed < handshake {
			opened.Seen = s.Changed
		}
	}
	opened.State, answer.State = s.after(Open), Open
	if s.Open[s.flow] = &opened; s.Open[back] == nil {
		s.Open[back] = &answer
	}
	delete(s.Half, s.flow)
	delete(s.Half, back)
	s.send(&opened, "established now")
}

// answered notes that the backend has spoken, and what a client has to acknowledge to show that it has heard it.
func (s *step) answered(row *Row, request Flow) {
	if s.flags&RST != 0 {
		delete(s.Half, s.flow)
		delete(s.Half, request)
		return
	}
	asked := s.Half[request]
	if asked == nil || !asked.leads(s.flow) || asked.State == Answered && s.flags&SYN == 0 {
		return
	}
	asked.State = Answered
	if !s.shakesHands() {
		return
	}
	asked.Seen = s.seq
	if s.flow.Proto == protoTCP && s.flags&SYN != 0 {
		asked.Seen++
	}
}

// decideAt is for packets of TCP and UDP elsewhere than where they came in: about to leave, those of backends on this node get
// the address that the client sent to; and those between a pod and what it sends to as packets are translated at its device.
func (s *step) decideAt() {
	if !s.establishedAt() && !s.halfOpenAt() {
		if s.at == fromPod {
			s.begin()
		} else {
			s.pass(s.at.String() + ", nobody's")
		}
	}
}

// establishedAt handles the packet by a row of an established flow. False: there is none, or the client begins anew.
func (s *step) establishedAt() bool {
	row := s.Open[s.flow]
	if row == nil {
		return false
	}
	back := row.back(s.flow.Proto)
	s.touch(s.flow, back)
	switch {
	case row.Torn:
		s.drop(FlowRace, s.at.String()+", torn")
		return true
	case !row.isAt(s.at):
		s.elsewhere(row, "")
		return true
	case s.beginsAs(row) && s.isOver(row, back):
		forget(s.Open, s.flow, back)
		return false
	}
	if seen := row.Seen; s.use(row) && s.judged(row, seen) && !s.mayStay(row) {
		s.cutClient(back)
		return true
	}
	s.send(row, s.at.String()+", established")
	return true
}

// halfOpenAt handles the packet by a row of a flow that is not established.
func (s *step) halfOpenAt() bool {
	row := s.Half[s.flow]
	if row == nil {
		return false
	}
	back := row.back(s.flow.Proto)
	s.touch(s.flow, back)
	switch {
	case row.Torn:
		s.drop(FlowRace, s.at.String()+", torn")
		return true
	case !row.isAt(s.at):
		s.elsewhere(row, "")
		return true
	case !s.mayStay(row):
		s.cutClient(back)
		return true
	}
	if seen := row.Seen; seen != s.Now && (row.Reply || !s.shakesHands()) {
		if row.Seen = s.Now; s.due(row, seen) {
			row.Way = s.wayOf(row)
		}
	}
	if !row.Reply {
		return s.request(row, back)
	}
	s.answered(row, back)
	s.send(row, s.at.String()+", half open")
	return true
}
