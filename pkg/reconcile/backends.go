package reconcile

import (
	"fmt"
	"slices"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
)

// plan says which rows of the backends map a service will have. It is made before anything is
// written, since making it can fail. Its buffers are reused for the next service.
type plan struct {
	rows   []uint32 // one for each wanted backend; noRow if no table leads to it
	scopes []uint8  // for each, the scopes whose tables lead to it
	fresh  []uint32 // those of the rows that are new
	gone   []uint32 // rows that the service will lose
	known  map[maps.Backend]uint32
}

const noRow = ^uint32(0)

// usualBackends is the largest service whose backends are looked up in the reused map. Clearing a
// map costs as much as its largest service did.
const usualBackends = 64

// planBackends finds or allocates a row for every backend that a service wants.
func (r *rows) planBackends(s *service, w *lb.Service) error {
	p := &r.plan
	p.rows, p.fresh, p.gone = p.rows[:0], p.fresh[:0], p.gone[:0]
	known := p.known
	if len(s.backends) > usualBackends {
		known = make(map[maps.Backend]uint32, len(s.backends))
	}
	clear(known)
	for _, index := range s.backends {
		row := maps.BackendIdentity(r.tables.Backends[index])
		if twin, ok := known[row]; ok { // the row is damaged
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

func (r *rows) allocBackend() (uint32, error) {
	index, ok := r.backends.Alloc()
	if ok {
		return index, nil
	}
	if err := r.grow(maps.Sizes{Backends: 2 * uint32(len(r.tables.Backends))}); err != nil {
		return 0, err
	}
	if index, ok = r.backends.Alloc(); !ok {
		return 0, fmt.Errorf("the map of backends is full with %d rows", len(r.tables.Backends))
	}
	return index, nil
}

// dropPlan frees the rows allocated for a plan that will not be used.
func (r *rows) dropPlan() {
	for _, index := range r.plan.fresh {
		r.backends.Free(index)
	}
}

// writeBackends writes the planned rows before any table leads to them. A row that stays is marked
// for both its old and its new scopes.
func (r *rows) writeBackends(s *service, w *lb.Service) {
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

// unmarkBackends completes writeBackends once the tables are switched. A socket or client that
// remembers a row which lost a scope has to choose again.
func (r *rows) unmarkBackends(s *service) {
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

// freeBackend takes a row from its service. The address stays: a program may be about to use it.
func (r *rows) freeBackend(index uint32) {
	r.setOwner(index, 0)
	r.backends.Free(index)
}

// setFlags writes where a backend runs and whether it is terminating. It writes in place, since the
// row still stands for the same backend: a program sees either the old or the new flags.
func (r *rows) setFlags(index uint32, flags uint8) {
	at := &r.tables.Backends[index].Flags
	if *at != flags {
		*at = flags
		r.stats.Writes++
	}
}

func (r *rows) setOwner(index, owner uint32) {
	at := &r.tables.Backends[index].Owner
	if *at != owner {
		atomic.StoreUint32(at, owner)
		r.stats.Writes++
	}
}
