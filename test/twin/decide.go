package twin

// decide handles a TCP or UDP packet that comes in.
func (s *step) decide() {
	if !s.established() && !s.halfOpen() {
		s.begin()
	}
}

// upper returns what a row remembers of a sequence number or a tag.
func upper(number uint32) uint16 { return max(1, uint16(number>>16)) }

// reached returns how far a packet says that its direction has come.
func (p *packet) reached() uint16 {
	switch p.flow.Proto {
	case protoTCP:
		return upper(p.seq)
	case protoSCTP:
		return upper(p.ack)
	}
	return 0
}

// isNear reports whether a packet at some place continues what has come to another: by no more than the
// longest packet, and a little before it if the last packets overtook it.
func isNear(place, known uint16) bool { return place-known <= 8 || known-place == 1 }

// counts reports whether a packet may change the state of its direction, which needs a sequence number
// or an acknowledgment that somebody who guesses does not know. It notes how far the direction is.
func (s *step) counts(row *Row) bool {
	place, known := s.reached(), row.Reached
	switch {
	case place == known:
		s.out.Position = "in place, there"
		return true
	case known == 0:
		s.out.Position = "in place, unknown before"
	case s.flow.Proto == protoTCP && isNear(place, known):
		s.out.Position = "in place, further"
	case s.flow.Proto == protoTCP && s.acknowledges(s.Open[row.back(s.flow.Proto)]):
		s.out.Position = "in place, by what it acknowledges"
	case s.isAnew(row):
		s.out.Position = "in place, begun anew"
		return true
	default:
		s.out.Position = "out of place"
		return false
	}
	if s.flags&RST == 0 && (known == 0 || known-place > again) {
		row.Reached = place
	}
	return true
}

// acknowledges reports whether a packet acknowledges what the other direction has sent.
func (s *step) acknowledges(other *Row) bool {
	if s.flags&ACK == 0 || other == nil || !other.leads(s.flow) || other.Reached == 0 {
		return false
	}
	acked := upper(s.ack)
	return isNear(acked, other.Reached) || isNear(other.Reached, acked)
}

// noteSYN notes where the client's SYN is that came while a connection goes on, or an answer that acknowledges
// it.
func (s *step) noteSYN(row *Row) {
	if row.Reply {
		client := s.Open[row.back(s.flow.Proto)]
		if client == nil || !client.leads(s.flow) || client.Dialed == 0 || upper(s.ack)-client.Dialed > 1 {
			return
		}
	}
	row.Dialed = upper(s.seq)
}

// isAnew reports whether the client goes on from the answer to its SYN. Then both ends have lost the connection
// that was, and the directions are where the SYN and the answer are.
func (s *step) isAnew(row *Row) bool {
	reply := s.Open[row.back(s.flow.Proto)]
	if row.Reply || row.Dialed == 0 || s.flags&RST != 0 || reply == nil || !reply.leads(s.flow) || reply.Dialed == 0 {
		return false
	}
	client, server := row.Dialed, reply.Dialed
	if s.flow.Proto == protoSCTP { // each tag is what the other end has asked for
		if upper(s.ack) != server {
			return false
		}
		client, server = server, client
	} else if s.flags&ACK == 0 || !isNear(upper(s.seq), client) || !isNear(upper(s.ack), server) {
		return false
	}
	row.Reached, reply.Reached, row.Dialed, reply.Dialed = client, server, 0, 0
	return true
}

// again is how far back what is sent again may be.
const again = 1024

// after returns the state of a direction after the current packet.
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

// consider records whether XDP may handle a packet, by the row as it was before: XDP can only send
// the packet back out of the device it came from.
func (s *step) consider(row *Row) {
	s.behind = s.behind || row.Way.Device != 0 && (row.Way.Device != s.device || !row.Way.known())
}

// due reports whether the way of a row must be looked up again, given when the row was last used.
func (n *Node) due(row *Row, seen uint32) bool {
	switch {
	case row.Local:
		return false
	case !row.Way.known() || int32(n.Followed-n.Now) < 0:
		return true
	}
	return int32(seen-n.Changed) <= 0
}

// rangesDue reports whether the source ranges must be searched for the client of a flow, given when
// its row was last used.
func (n *Node) rangesDue(row *Row, seen uint32) bool {
	return row.Guarded && (int32(n.Followed-n.Now) < 0 || int32(seen-n.RangeEpochs) <= 0)
}

// rangesDuePending reports the same for a flow that is not established. A flow whose backend answers the
// client directly gets no further than Open, which it reaches once the client has sent more.
func (s *step) rangesDuePending(row *Row) bool {
	if row.Direct == DirectOff || s.isForwarded() || s.begins() || row.State < Open {
		return true
	}
	return row.Seen != s.Now && s.rangesDue(row, row.Seen)
}

// handshake is how many ticks a handshake may take.
const handshake = 128

// use records that a row of an established flow was used, and reports whether for the first time in
// this tick. A client that dials a flow that has ended does not keep it alive.
func (s *step) use(row *Row) bool {
	if s.begins() && !row.Reply || row.Reply && s.shakesHands() && s.welcomes() {
		s.noteSYN(row)
	}
	if !s.begins() && s.counts(row) {
		row.State = s.after(row.State)
	}
	if s.flags&(RST|FIN) != 0 {
		s.out.Position += ", an end"
	}
	if row.Seen == s.Now || s.begins() {
		return false
	}
	row.Seen = s.Now
	return true
}

// established handles the packet by a row of an established flow. It returns false if there is
// none, or if the client starts a new connection.
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
	if row.Reply && s.tunnel != nil { // nodes forward only what clients send
		s.drop(Stray, "answer, stray")
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
		case !allowed && s.rangesDue(row, seen):
			s.cutClient(back)
			return true
		case !allowed:
			path += ", not judged"
		}
	}
	s.send(row, path)
	return true
}

// beginsAs reports whether the packet begins a connection in the direction of a row. A pod's answer
// to the node itself does not.
func (s *step) beginsAs(row *Row) bool {
	return s.begins() && !row.Reply || s.welcomes() && row.Reply && s.at != fromPod
}

// isOver reports whether a flow has ended, so that a client that dials again gets a new one, and a
// server that answers another connection is not taken for the flow's. A server's packet can end it
// only if both directions are done.
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
	forget(s.Pending, s.flow, back)
	s.drop(SourceRange, "cut off by ranges")
}

// halfOpen handles the packet by a row of a flow that is not established.
func (s *step) halfOpen() bool {
	row := s.Pending[s.flow]
	if row == nil {
		return false
	}
	back := row.back(s.flow.Proto)
	s.touch(s.flow, back)
	if row.Torn {
		s.drop(FlowRace, "half open, torn")
		return true
	}
	if row.Reply && s.tunnel != nil { // nodes forward only what clients send
		s.drop(Stray, "answer, stray")
		return true
	}
	if row.Inside {
		s.astray(row)
		return true
	}
	s.consider(row)
	if s.rangesDuePending(row) && !s.mayStay(row) {
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

// request handles what a client sends before the flow is established. Either row may have been
// evicted already.
func (s *step) request(row *Row, back Flow) bool {
	reply := s.Pending[back]
	if reply == nil && !s.claim(back, s.replyRow(row)) || reply != nil && !reply.leads(s.flow) {
		delete(s.Pending, s.flow)
		return false
	}
	switch {
	case s.flags&RST != 0 && s.givesUp(row):
		delete(s.Pending, s.flow)
		delete(s.Pending, back)
		s.send(row, "half open, given up")
	case s.proves(row):
		s.establish(row, back)
	default:
		s.send(row, "half open, request")
	}
	return true
}

// givesUp reports whether a RST may be that of the client whose SYN made a row: it continues that.
func (s *step) givesUp(row *Row) bool {
	return row.Reached == 0 || s.flow.Proto != protoTCP || isNear(upper(s.seq), row.Reached)
}

// refuses reports whether a RST may be that of the server: it acknowledges the client's SYN, or follows
// the server's own.
func (s *step) refuses(asked *Row) bool {
	if asked.Reached == 0 || s.flow.Proto != protoTCP {
		return true
	}
	return s.flags&ACK != 0 && isNear(upper(s.ack), asked.Reached) || asked.State == Answered && s.seq-asked.Seen < window
}

// replyRow returns the row for answers to the current packet, which is translated as row says.
func (s *step) replyRow(row *Row) Row {
	reply := Row{Source: s.flow.Dest, Dest: s.flow.Source, Reply: true, Guarded: row.Guarded, Local: row.Local, Inside: row.Inside,
		Own: row.Own, Seen: s.Now}
	reply.Way = s.wayOf(&reply)
	return reply
}

// window is how far beyond an answer a client may acknowledge and still show that it has received
// it.
const window = 1 << 16

// proves reports whether a packet shows that the client has received the backend's answer.
func (s *step) proves(row *Row) bool {
	if row.State != Answered {
		return false
	}
	switch s.flow.Proto {
	case protoTCP:
		return s.flags&(ACK|RST) == ACK && s.ack-row.Seen < window
	case protoSCTP: // zero: the backend has spoken without requesting a tag
		return s.flags&RST == 0 && (row.Seen == 0 || s.ack == row.Seen)
	}
	return true
}

// establish moves both rows of a flow to the established ones, if there is room.
func (s *step) establish(row *Row, back Flow) {
	reply := s.Pending[back]
	if reply == nil || reply.Torn {
		s.send(row, "half open, request")
		return
	}
	if known := s.Open[back]; known != nil && !known.leads(s.flow) {
		delete(s.Pending, s.flow)
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
		// A packet dropped for another reason is counted only for that, and one whose place another
		// packet takes is counted when it comes in again.
		if len(s.out.Counted) == 0 && !s.out.Replaced {
			s.out.Counted = append(s.out.Counted, FlowsFull)
		}
		return
	}
	opened, answer := *row, *reply
	if s.shakesHands() { // the time of its last lookup is not recorded
		if opened.Seen = s.Now; s.Now-s.Changed < handshake {
			opened.Seen = s.Changed
		}
	}
	opened.State, answer.State = s.after(Open), Open
	opened.Reached = s.reached()
	if s.flow.Proto == protoTCP {
		answer.Reached = upper(s.ack)
	}
	if s.Open[s.flow] = &opened; s.Open[back] == nil {
		s.Open[back] = &answer
	}
	delete(s.Pending, s.flow)
	delete(s.Pending, back)
	s.send(&opened, "established now")
}

// answered records that the backend has answered, and what the client must acknowledge to show that
// it received the answer.
func (s *step) answered(row *Row, request Flow) {
	asked := s.Pending[request]
	if asked == nil || !asked.leads(s.flow) {
		return
	}
	if s.flags&RST != 0 {
		if s.refuses(asked) {
			delete(s.Pending, s.flow)
			delete(s.Pending, request)
		}
		return
	}
	if asked.State == Answered && s.flags&SYN == 0 {
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

// decideAt handles TCP and UDP packets elsewhere than where they came in. When they leave the node,
// those of backends on this node get as their source the address that the client dialed; at a pod's
// device, packets between the pod and a service it dials are translated.
func (s *step) decideAt() {
	if !s.establishedAt() && !s.halfOpenAt() {
		if s.at == fromPod {
			s.begin()
		} else {
			s.pass(s.at.String() + ", nobody's")
		}
	}
}

// establishedAt handles the packet by a row of an established flow. It returns false if there is
// none, or if the client starts a new connection.
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
	if seen := row.Seen; s.use(row) && s.rangesDue(row, seen) && !s.mayStay(row) {
		s.cutClient(back)
		return true
	}
	s.send(row, s.at.String()+", established")
	return true
}

// halfOpenAt handles the packet by a row of a flow that is not established.
func (s *step) halfOpenAt() bool {
	row := s.Pending[s.flow]
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
