package conntrack

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// walk is one look through all rows, with its memory, which is used again by the next.
type walk struct {
	now    uint32 // in ticks
	doomed []maps.Doomed
	tally  tally

	gathers bool                   // the peers
	peers   map[maps.Peer]struct{} // of the flows that are forgotten when their backend is gone
	gone    map[maps.Peer]struct{} // which of them those are
	last    maps.Peer              // that was looked up: rows of one service often come in a row
	lastIn  bool

	kept kept
}

// tally is what a walk met and did.
type tally struct {
	rows    [2]int // established, half-open
	entries Entries
	deleted [3]int // flows, by why
}

// all looks at the half-open flows and then at the established ones. A flow that is promoted meanwhile is met twice and
// not missed.
func (w *walk) all(flows Flows, shift uint32, limits *maps.FlowLimits) error {
	jiffies, err := flows.Jiffies()
	if err != nil {
		return fmt.Errorf("read the programs' clock: %w", err)
	}
	w.now, w.tally, w.last, w.lastIn = uint32(jiffies>>shift), tally{}, maps.Peer{}, false
	w.kept.begin()
	for _, half := range []bool{true, false} {
		err := flows.Each(half, func(keys []maps.Flow, rows []maps.FlowRow) error {
			w.doomed = w.doomed[:0]
			if half {
				w.lookHalf(keys, rows, limits)
			} else {
				w.look(keys, rows, limits)
			}
			if len(w.doomed) == 0 {
				return nil
			}
			if err := flows.Collect(half, shift, limits, w.doomed); err != nil {
				return err
			}
			w.count()
			return nil
		})
		if err != nil {
			return err
		}
	}
	return w.kept.err
}

// count counts what became of the doomed.
func (w *walk) count() {
	for i := range w.doomed {
		if d := &w.doomed[i]; d.Outcome == maps.DoomDeleted {
			w.tally.deleted[d.Why]++
		}
	}
}

// look dooms what its own row says is over. That of the other direction, which sees other packets, is looked at when it
// comes to deleting. A flow that is half closed, or was reset, is met by the direction that has ended.
func (w *walk) look(keys []maps.Flow, rows []maps.FlowRow, limits *maps.FlowLimits) {
	w.tally.rows[0] += len(rows)
	for i := range rows {
		row, key := &rows[i], &keys[i]
		class, phase, state := classOf(key.Proto), maps.PhaseOpen, StateOpen
		switch row.State {
		case maps.FlowClosing:
			phase, state = maps.PhaseClosed, StateClosing
		case maps.FlowReset:
			phase, state = maps.PhaseReset, StateClosing
		}
		w.tally.entries[class][state]++
		switch {
		case class == maps.ClassUDP && row.Flags&maps.FlowReply == 0 && w.ended(key, row):
			w.doom(key, row, maps.DoomStale)
		case int32(w.now-row.Seen) >= int32(limits[class][phase]):
			w.doom(key, row, maps.DoomIdle)
		}
	}
}

// lookHalf dooms every request: those of TCP have no time, and one whose reply was pushed out is met by nothing else.
// There are never many. A reply is met by itself if its request was pushed out.
func (w *walk) lookHalf(keys []maps.Flow, rows []maps.FlowRow, limits *maps.FlowLimits) {
	w.tally.rows[1] += len(rows)
	for i := range rows {
		row, key := &rows[i], &keys[i]
		class := classOf(key.Proto)
		w.tally.entries[class][StateHalfOpen]++
		switch {
		case row.Flags&maps.FlowReply != 0:
			if int32(w.now-row.Seen) >= int32(limits[class][maps.PhaseHalfOpen]) {
				w.doom(key, row, maps.DoomIdle)
			}
		// A client whose first packet nobody has answered may as well begin with another backend.
		case (class == maps.ClassUDP || row.State == maps.FlowNew) && w.lost(key, row):
			w.doom(key, row, maps.DoomStale)
		default:
			w.doom(key, row, maps.DoomIdle)
		}
	}
}

func (w *walk) doom(key *maps.Flow, row *maps.FlowRow, why uint32) {
	d := maps.Doomed{Request: *key, Reply: maps.BackOf(*key, row), Why: why}
	if row.Flags&maps.FlowReply != 0 {
		d.Request, d.Reply = d.Reply, d.Request
	}
	w.doomed = append(w.doomed, d)
}

// ended reports whether the datagrams of a request go where nobody is to have them.
func (w *walk) ended(key *maps.Flow, row *maps.FlowRow) bool {
	if !passes(key, row) {
		return w.lost(key, row)
	}
	peer, is, over := w.kept.look(key)
	switch {
	case over:
		return true
	case is:
		return w.isGone(peer)
	case w.kept.err != nil:
		return false
	}
	return w.lost(key, row)
}

// lost reports whether the backend of a request is gone, and remembers whom to ask about if that is wanted.
func (w *walk) lost(key *maps.Flow, row *maps.FlowRow) bool {
	if row.Flags&(maps.FlowPod|maps.FlowInside|maps.FlowNode) == maps.FlowPod { // what a pod talks to outside is nobody's backend
		return false
	}
	return w.isGone(peerOf(key, row))
}

func (w *walk) isGone(peer maps.Peer) bool {
	if !w.gathers && len(w.gone) == 0 {
		return false
	}
	if peer == w.last {
		return w.lastIn
	}
	if w.gathers {
		w.peers[peer] = struct{}{}
	}
	_, in := w.gone[peer]
	w.last, w.lastIn = peer, in
	return in
}

// peerOf returns what a request's client dialled and the backend that it got.
func peerOf(key *maps.Flow, row *maps.FlowRow) maps.Peer {
	return maps.PeerOf(maps.SockPeer{
		Vip: key.Daddr, VipPort: key.Dport, Backend: row.Daddr, BackendPort: row.Dport,
	}, model.Protocol(key.Proto))
}
