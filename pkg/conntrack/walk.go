package conntrack

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// walk is one scan of all rows. The next scan reuses its memory.
type walk struct {
	now    uint32 // in ticks
	doomed []maps.Doomed
	tally  tally

	gathers bool                     // collect origins
	origins map[maps.Origin]struct{} // of flows that are deleted once their backend is gone
	gone    map[maps.Origin]struct{} // the origins whose backend is gone
	last    maps.Origin              // last origin looked up: rows of one service often follow each other
	lastIn  bool

	stack stackFlows
	ports portUse
}

// tally counts what a walk found and did.
type tally struct {
	rows    [2]int // established, half-open
	entries Entries
	deleted [3]int // flows, by reason
}

// all scans the half-open flows and then the established ones, so a flow promoted meanwhile is seen
// twice rather than missed.
func (w *walk) all(flows Flows, shift uint32, limits *maps.FlowLimits) error {
	jiffies, err := flows.Jiffies()
	if err != nil {
		return fmt.Errorf("read the programs' clock: %w", err)
	}
	w.now, w.tally, w.last, w.lastIn = uint32(jiffies>>shift), tally{}, maps.Origin{}, false
	w.stack.begin()
	w.ports.begin()
	for _, half := range []bool{true, false} {
		err := flows.Each(half, func(keys []maps.Flow, rows []maps.FlowRow) error {
			w.doomed = w.doomed[:0]
			if half {
				w.scanPending(keys, rows, limits)
			} else {
				w.scanOpen(keys, rows, limits)
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
	return w.stack.err
}

// count counts the flows that were deleted.
func (w *walk) count() {
	for i := range w.doomed {
		if d := &w.doomed[i]; d.Outcome == maps.DoomDeleted {
			w.tally.deleted[d.Why]++
		}
	}
}

// scanOpen dooms the flows that are over according to the row at hand. Collect checks the row of the
// other direction, which sees other packets, before it deletes. A half-closed or reset flow is
// found through the row of the direction that has ended.
func (w *walk) scanOpen(keys []maps.Flow, rows []maps.FlowRow, limits *maps.FlowLimits) {
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
		if row.Kind&maps.FlowReply != 0 {
			w.ports.add(key, row)
		}
		switch {
		case class == maps.ClassUDP && row.Kind&maps.FlowReply == 0 && w.ended(key, row):
			w.doom(key, row, maps.DoomStale)
		case int32(w.now-row.Seen) >= int32(limits[class][phase]):
			w.doom(key, row, maps.DoomIdle)
		}
	}
}

// scanPending dooms every request, for Collect to decide: a TCP request has no timestamp, and a
// request whose reply was evicted is found by nothing else. There are never many. A reply is
// checked itself in case its request was evicted.
func (w *walk) scanPending(keys []maps.Flow, rows []maps.FlowRow, limits *maps.FlowLimits) {
	w.tally.rows[1] += len(rows)
	for i := range rows {
		row, key := &rows[i], &keys[i]
		class := classOf(key.Proto)
		w.tally.entries[class][StateHalfOpen]++
		switch {
		case row.Kind&maps.FlowReply != 0:
			w.ports.add(key, row)
			if int32(w.now-row.Seen) >= int32(limits[class][maps.PhaseHalfOpen]) {
				w.doom(key, row, maps.DoomIdle)
			}
		// A client whose first packet was not answered may just as well start again with another
		// backend.
		case (class == maps.ClassUDP || row.State == maps.FlowNew) && w.lost(key, row):
			w.doom(key, row, maps.DoomStale)
		default:
			w.doom(key, row, maps.DoomIdle)
		}
	}
}

func (w *walk) doom(key *maps.Flow, row *maps.FlowRow, why uint32) {
	d := maps.Doomed{Request: *key, Reply: maps.BackOf(*key, row), Why: why}
	if row.Kind&maps.FlowReply != 0 {
		d.Request, d.Reply = d.Reply, d.Request
	}
	w.doomed = append(w.doomed, d)
}

// ended reports whether the UDP packets of a request go to a backend that is gone.
func (w *walk) ended(key *maps.Flow, row *maps.FlowRow) bool {
	if !passes(key, row) {
		return w.lost(key, row)
	}
	origin, is, over := w.stack.entry(key)
	switch {
	case over:
		return true
	case is:
		return w.isGone(origin)
	case w.stack.err != nil:
		return false
	}
	return w.lost(key, row)
}

// lost reports whether the backend of a request is gone. While gathering, it remembers the origin.
func (w *walk) lost(key *maps.Flow, row *maps.FlowRow) bool {
	// What a pod talks to outside is no service's backend.
	if maps.FlowKindOf(row.Kind) == maps.FlowMasqueraded {
		return false
	}
	return w.isGone(originOf(key, row))
}

func (w *walk) isGone(origin maps.Origin) bool {
	if !w.gathers && len(w.gone) == 0 {
		return false
	}
	if origin == w.last {
		return w.lastIn
	}
	if w.gathers {
		w.origins[origin] = struct{}{}
	}
	_, in := w.gone[origin]
	w.last, w.lastIn = origin, in
	return in
}

// originOf returns what a request's client dialed and the backend it got.
func originOf(key *maps.Flow, row *maps.FlowRow) maps.Origin {
	return maps.OriginOf(maps.SockOrigin{
		Vip: key.Daddr, VipPort: key.Dport, Backend: row.Daddr, BackendPort: row.Dport,
	}, model.Protocol(key.Proto))
}
