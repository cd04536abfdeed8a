package twin

import "bytes"

// waitingMost is how many fragments wait at a time for the first of their datagram; beyond, the oldest is forgotten.
const waitingMost = 256

// waiting are the fragments that overtook the first of their datagram.
type waiting struct {
	turn      uint64 // of fragments that ever waited
	fragments [waitingMost]*early
	strangers map[datagram]bool // whose first was not ours: theirs need not wait
}

type early struct {
	datagram
	frame []byte
}

// ignore notes that a first fragment was not ours.
func (s *step) ignore() {
	if s.first && s.at == comesIn {
		s.waiting.strangers[s.datagram()] = true
	}
}

// ignoreBehind notes that tc may have taken a first fragment for a stranger's, as what XDP made of it.
func (s *step) ignoreBehind(row *Row) {
	if s.first && s.at == comesIn && s.out.Verdict == Stack {
		d := s.datagram()
		d.source, d.dest = row.Source.Addr(), row.Dest.Addr()
		s.waiting.strangers[d] = true
	}
}

// wait has a fragment wait of which nothing is known. What the programs know of strangers they may forget.
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

// waitBehind has a fragment wait that XDP translated, and that tc knows nothing of as what it is by then.
func (s *step) waitBehind(row *Row) {
	if s.at != comesIn || s.out.Verdict != Stack || s.witness.Waits() == s.waiting.turn {
		return
	}
	d := s.datagram()
	d.source, d.dest = row.Source.Addr(), row.Dest.Addr()
	s.retain(d, s.out.Data)
}

// serve gives back the fragments that wait for the one at hand, which comes in before them once more. The last of them
// takes its place. False: none waits. What ends a flow could not come in twice.
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
	s.out = Outcome{Verdict: Out, Data: last.frame, Path: "first of what waits", Touched: s.out.Touched, Inner: s.out.Inner, Replaced: true}
	return true
}
