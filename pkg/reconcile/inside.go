package reconcile

import (
	"fmt"
	"net/netip"

	"fairlead.io/fairlead/pkg/maps"
)

// inside holds the addresses inside the cluster. The programs see them as source ranges of a
// reserved service index.
type inside struct {
	ranges
	want  []netip.Prefix
	moves uint64 // the Store's count when it returned want
	due   bool   // rows have to be written or deleted
}

const whereInside = "the addresses inside the cluster"

// writeInside brings the rows up to date. It deletes none before the sources are complete.
func (r *Reconciler) writeInside() error {
	s := &r.inside
	if list, moves := r.cfg.Store.Inside(s.moves); moves != s.moves {
		s.want, s.moves, s.due = list, moves, true
	}
	if !s.due && !s.unsure {
		return nil
	}
	if fresh := s.fresh(s.want); len(fresh) > 0 {
		if err := r.insertRanges(maps.Inside, &s.ranges, fresh); err != nil {
			return fmt.Errorf("write %s: %w", whereInside, err)
		}
	}
	if !r.synced {
		return nil
	}
	if err := r.deleteRanges(maps.Inside, &s.ranges, without(s.list, s.want)); err != nil {
		return fmt.Errorf("delete from %s: %w", whereInside, err)
	}
	s.due = false
	return nil
}

// compareInside compares the rows with the known ranges.
func (r *Reconciler) compareInside(c *check) int {
	return r.compareRows(c, unit{kind: unitInside}, maps.Inside, whereInside, r.inside.list)
}
