package reconcile

import (
	"fmt"
	"slices"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
)

// plan is which rows of backends a service is about to have. It is made before anything is written, since making it can
// fail, and its buffers serve the next service.
type plan struct {
	rows   []uint32 // one for each backend that is wanted; noRow for one that no table leads to
	scopes []uint8  // the scopes whose tables lead to each
	fresh  []uint32 // those of the rows that are new
	gone   []uint32 // rows that the service is about to lose
	known  map[maps.Backend]uint32
}

const noRow = ^uint32(0)

// usualBackends is up to how many backends are looked up in a map that serves again: clearing one costs what its largest
// service did.
const usualBackends = 64

// planBackends finds or allocates a row for every backend that a service wants.
func (r *Reconciler) planBackends(s *service, w *lb.Service) error {
	p := &r.plan
	p.rows, p.fresh, p.gone = p.rows[:0], p.fresh[:0], p.gone[:0]
	known := p.known
	if len(s.backends) > usualBackends {
		known = make(map[maps.Backend]uint32, len(s.backends))
	}
	clear(known)
	for _, index := range s.backends {
		row := maps.BackendIdentity(r.tables.Backends[index])
		if twin, ok := known[row]; ok { // a damaged row
			p.gone = append(p.gone, twin)
		}
		known[row] = index
	}
	p.scopes = append(p.scopes[:0], make([]uint8, len(w.Backends))...)
	for scope, table := range w.Tables {
		for _, position := range table {
			p.scopes[position] |= 1 << scope
		}
	}
	for i := range w.Backends {
		backend := maps.BackendIdentity(w.Backends[i])
		index, ok := known[backend]
		if p.scopes[i] == 0 { // weight 0
			index = noRow
		} else if ok {
			delete(known, backend)
		} else {
			var err error
			if index, err = r.allocBackend(); err != nil {
				r.dropPlan()
				return err
			}
			p.fresh = append(p.fresh, index)
		}
		p.rows = append(p.rows, index)
	}
	for _, index := range known {
		p.gone = append(p.gone, index)
	}
	slices.Sort(p.gone)
	return nil
}

func (r *Reconciler) allocBackend() (uint32, error) {
	index, ok := r.backends.Alloc()
	if ok {
		return index, nil
	}
	if err := r.grow(maps.Sizes{Backends: 2 * uint32(len(r.tables.Backends))}); err != nil {
		return 0, err
	}
	if index, ok = r.backends.Alloc(); !ok {
		return 0, fmt.Errorf("a map of %d backends is full", len(r.tables.Backends))
	}
	return index, nil
}

// dropPlan gives back what a plan allocated that comes to nothing.
func (r *Reconciler) dropPlan() {
	for _, index := range r.plan.fresh {
		r.backends.Free(index)
	}
}

// writeBackends writes the rows that are planned, before any table leads to them: a row that stays is marked for the
// scopes that it had and for those that it is about to have.
func (r *Reconciler) writeBackends(s *service, w *lb.Service) {
	fresh := r.plan.fresh
	for i, index := range r.plan.rows {
		if index == noRow {
			continue
		}
		if len(fresh) > 0 && fresh[0] == index {
			fresh = fresh[1:]
			row := w.Backends[i]
			row.Owner = maps.MakeOwner(s.index, r.plan.scopes[i])
			r.tables.Backends[index] = row
			r.stats.Writes++
			continue
		}
		r.setFlags(index, w.Backends[i].Flags)
		had := maps.BackendScopes(r.tables.Backends[index])
		r.setOwner(index, maps.MakeOwner(s.index, had|r.plan.scopes[i]))
	}
}

// unmarkBackends ends what writeBackends began, once the tables are switched: whoever remembers a row that lost a scope
// has to choose again.
func (r *Reconciler) unmarkBackends(s *service) {
	s.backends = s.backends[:0]
	for i, index := range r.plan.rows {
		if index != noRow {
			r.setOwner(index, maps.MakeOwner(s.index, r.plan.scopes[i]))
			s.backends = append(s.backends, index)
		}
	}
	for _, index := range r.plan.gone {
		r.freeBackend(index)
	}
}

// freeBackend takes a row from its service. Its address stays: a program may be on its way there.
func (r *Reconciler) freeBackend(index uint32) {
	r.setOwner(index, 0)
	r.backends.Free(index)
}

// setFlags says where a backend runs and whether it is about to go. It stays the backend that it was for whoever remembers the row, so it is written in
// place: a program sees the one or the other.
func (r *Reconciler) setFlags(index uint32, flags uint8) {
	at := &r.tables.Backends[index].Flags
	if *at != flags {
		*at = flags
		r.stats.Writes++
	}
}

func (r *Reconciler) setOwner(index, owner uint32) {
	at := &r.tables.Backends[index].Owner
	if *at != owner {
		atomic.StoreUint32(at, owner)
		r.stats.Writes++
	}
}
