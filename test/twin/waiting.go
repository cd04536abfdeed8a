package twin

import "bytes"

// waitingMost is how many fragments can wait at a time for the first of their datagram; one more
// replaces the oldest.
const waitingMost = 256

// waiting holds the fragments that overtook the first of their datagram.
type waiting struct {
	turn      uint64 // how many fragments have ever waited
	fragments [waitingMost]*early
	// Datagrams whose first fragment is of no known flow: their fragments need not wait.
	strangers map[datagram]bool
}

type early struct {
	datagram
	frame []byte
}

// ignore records that a first fragment belongs to no known flow.
func (s *step) ignore() {
	if s.first && s.at == comesIn {
		s.waiting.strangers[s.datagram()] = true
	}
}

// ignoreBehind records that tc may have seen a first fragment, as XDP translated it, and found no
// flow for it.
func (s *step) ignoreBehind(row *Row) {
	if s.first && s.at == comesIn && s.out.Verdict == Stack {
		d := s.datagram()
		d.source, d.dest = row.Source.Addr(), row.Dest.Addr()
		s.waiting.strangers[d] = true
	}
}

// wait keeps a fragment whose datagram is unknown. The programs may forget what they know of
// strangers.
func (s *step) wait() {
	s.pass("fragment, nobody's")
	if s.at != comesIn {
		return
	}
	if s.witness.Waits() == s.waiting.turn {
		if !s.waiting.strangers[s.datagram()] {
			s.refuse("a fragment does not wait for its first")
		}
		return
	}
	s.out.Path += ", waits"
	s.retain(s.datagram(), s.frame)
}

func (s *step) retain(d datagram, frame []byte) {
	s.waiting.fragments[s.waiting.turn%waitingMost] = &early{d, bytes.Clone(frame)}
	s.waiting.turn++
}

// waitBehind keeps a fragment that XDP translated and that tc, seeing it translated, does not know.
func (s *step) waitBehind(row *Row) {
	if s.at != comesIn || s.out.Verdict != Stack || s.witness.Waits() == s.waiting.turn {
		return
	}
	d := s.datagram()
	d.source, d.dest = row.Source.Addr(), row.Dest.Addr()
	s.retain(d, s.out.Data)
}

// serve releases the fragments that wait for the current packet. That packet comes in once more,
// ahead of them, and the last of them takes its place. serve returns false if none waits. It does
// nothing for a packet that begins and ends a flow or resets it, which could not come in twice.
func (s *step) serve() bool {
	if s.at != comesIn || s.flags&RST != 0 || s.begins() && s.flags&FIN != 0 {
		return false
	}
	var last *early
	for i, f := range s.waiting.fragments {
		if f != nil && f.datagram == s.datagram() {
			last, s.waiting.fragments[i] = f, nil
		}
	}
	if last == nil {
		return false
	}
	s.out = Outcome{Verdict: Out, Data: last.frame, Path: "first of what waits", Touched: s.out.Touched, Counted: s.out.Counted,
		Inner: s.out.Inner, Replaced: true}
	return true
}
