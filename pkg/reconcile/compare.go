package reconcile

import (
	"fmt"
	"slices"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// unit is what is compared and mended as a whole.
type unit struct {
	kind   unitKind
	object model.Key   // for unitObject, and for a frontend that it owns
	index  uint32      // for unitFree, unitBackend and unitReserved
	key    maps.SvcKey // for unitFrontend
	stray  maps.Range  // for unitRange
}

type unitKind uint8

const (
	unitObject   unitKind = iota // the tables of an object
	unitFrontend                 // one row of svcs
	unitFree                     // a row of services that no service uses
	unitBackend                  // a row of backends that no service uses
	unitRange                    // a row of src_ranges that its service does not want
	unitReserved                 // rows of src_ranges of a reserved index
)

// compareBuffers are reused for one service after another.
type compareBuffers struct {
	rows   []uint32 // of each wanted backend; noRow for one without slots
	scopes []uint8
}

// checkService compares the row at an index of services. All services of an object are compared at
// the first of them. It returns how many rows it looked at.
func (r *Reconciler) checkService(c *check, index uint32) (work int) {
	s := r.byIndex[index]
	switch {
	case index == maps.Inside:
		r.compareFree(c, index)
		for _, of := range r.reserved {
			work += r.compareReserved(c, of)
		}
		return work
	case s == nil:
		r.compareFree(c, index)
	case s.object != nil && s.object.services[0] == s:
		for _, other := range s.object.services {
			c.report.Services++
			c.report.Backends += len(other.backends)
			c.report.Frontends += r.frontends.ownedBy(other)
			for _, row := range other.backends {
				if int(row/64) < len(c.used) {
					c.used[row/64] |= 1 << (row % 64)
				}
			}
		}
		return r.compareObject(c, s.object)
	}
	return 0
}

// compareUnit compares one unit again.
func (r *Reconciler) compareUnit(c *check, u unit) {
	switch u.kind {
	case unitObject:
		if o := r.objects[u.object]; o != nil {
			r.compareObject(c, o)
		}
	case unitFrontend:
		r.compareRow(c, u.object, u.key)
	case unitFree:
		r.compareFree(c, u.index)
	case unitBackend:
		r.compareBackend(c, u.index)
	case unitRange:
		r.compareStray(c, u.stray)
	case unitReserved:
		r.compareReserved(c, r.reservedAt(u.index))
	}
}

// waits reports whether mending a unit waits for a retry or a grace period.
func (r *Reconciler) waits(u unit) bool {
	switch u.kind {
	case unitObject:
		_, failed := r.failed[u.object]
		return failed
	case unitFrontend:
		_, touched := r.frontends.touched[u.key]
		return touched || slices.Contains(r.frontends.unsure, u.key)
	}
	return false
}

// mend makes a unit due, or repairs it if nothing else has to be known. The next pass writes what
// is due in an order that is safe for readers.
func (r *Reconciler) mend(u unit) {
	switch u.kind {
	case unitObject:
		if o := r.objects[u.object]; o != nil {
			for _, s := range o.services {
				r.setName(s.index, nameText(s.id()))
				s.ranges.unsure = true
			}
		}
		r.cfg.Store.MarkDirty(u.object)
	case unitFrontend:
		r.frontends.unsure = append(r.frontends.unsure, u.key)
	case unitFree:
		row := &r.tables.Services[u.index]
		for scope := range row.Words {
			word := maps.Word(atomic.LoadUint64(&row.Words[scope]))
			atomic.StoreUint64(&row.Words[scope], uint64(maps.MakeWord(0, 0, word.Tag())))
		}
		r.setName(u.index, "")
	case unitBackend:
		r.setOwner(u.index, 0)
	case unitReserved:
		r.reservedAt(u.index).unsure = true
	case unitRange:
		if err := r.mendRange(u.stray, u.object); err != nil {
			r.checks.current.err = fmt.Errorf("verify the maps: %w", err)
		}
	}
}

func (r *Reconciler) setName(index uint32, text string) {
	var name maps.NameText
	copyText(&name, text)
	if r.tables.Names[index] != name {
		r.tables.Names[index] = name
		r.stats.Writes++
	}
}

func (s *service) id() lb.ID {
	return lb.ID{Key: s.object.key, Port: s.port, Protocol: s.protocol, Family: s.family}
}

// compareFree checks that a row of services that no service uses looks empty.
func (r *Reconciler) compareFree(c *check, index uint32) {
	if r.byIndex[index] != nil {
		return
	}
	row := &r.tables.Services[index]
	name := &r.tables.Names[index]
	length := 0
	for scope := range row.Words {
		length += maps.Word(atomic.LoadUint64(&row.Words[scope])).Len()
	}
	if length > 0 || name.Text[0] != 0 {
		c.differ(unit{kind: unitFree, index: index}, "service", fmt.Sprintf("row %d", index), "free",
			fmt.Sprintf("%d slots, named %q", length, textOf(name)))
	}
}

// checkBackend finds a row that no service uses but that has an owner: a socket or client that
// remembers it would keep using it.
func (r *Reconciler) checkBackend(c *check, index uint32) {
	if r.tables.Backends[index].Owner == 0 || int(index/64) < len(c.used) && c.used[index/64]>>(index%64)&1 != 0 {
		return
	}
	r.compareBackend(c, index)
}

func (r *Reconciler) compareBackend(c *check, index uint32) {
	row := r.tables.Backends[index]
	if row.Owner == 0 {
		return
	}
	// A service may have got the row since the check passed it.
	if s := r.byService(maps.BackendService(row)); s != nil && slices.Contains(s.backends, index) {
		return
	}
	c.differ(unit{kind: unitBackend, index: index}, "backend", fmt.Sprintf("row %d", index), "free", backendText(row))
}

// checkRows finds rows of svcs that nobody owns. Owned rows were compared together with their
// services.
func (r *Reconciler) checkRows(c *check, rows []foundRow) {
	for _, found := range rows {
		state := r.frontends.keys[found.key]
		if state.owner.service == nil && (!state.present || state.row != found.row) {
			r.compareRow(c, model.Key{}, found.key)
		}
	}
}

// compareRow compares one row of svcs with the claims. A row that waits for a grace period is not
// judged.
func (r *Reconciler) compareRow(c *check, object model.Key, key maps.SvcKey) {
	state := r.frontends.keys[key]
	if !state.inMaps() || slices.Contains(r.frontends.unsure, key) {
		return
	}
	want, wanted := state.wanted()
	have, present, err := r.tables.Frontends.Lookup(key)
	if err != nil {
		c.err = fmt.Errorf("verify the maps: %w", err)
		return
	}
	if present == wanted && (!wanted || have == want) {
		return
	}
	c.differ(unit{kind: unitFrontend, object: object, key: key}, "frontend", frontendText(key),
		r.rowText(want, wanted), r.rowText(have, present))
}

func (r *Reconciler) rowText(row maps.Svc, present bool) string {
	if !present {
		return "no row"
	}
	kind := fmt.Sprintf("kind(%d)", row.Kind)
	if int(row.Kind) < len(maps.KindNames) {
		kind = maps.KindNames[row.Kind]
	}
	if s := r.byService(row.Service); s != nil && s.object != nil {
		return fmt.Sprintf("%s of %s", kind, s.id())
	}
	return fmt.Sprintf("%s of service %d, which does not exist", kind, row.Service)
}

// compareObject compares everything that belongs to one object, and returns how many rows that is.
// An object that waits for a retry is not judged.
func (r *Reconciler) compareObject(c *check, o *object) (work int) {
	if _, failed := r.failed[o.key]; failed {
		return 0
	}
	wanted, _, _ := r.compile(o.key)
	if !r.quotas.serves(o.key) {
		wanted.Services = nil
	}
	u := unit{kind: unitObject, object: o.key}
	found := 0
	known := make(map[portID]*service, len(o.services))
	for _, s := range o.services {
		known[portID{s.port, s.protocol, s.family}] = s
	}
	last := make(map[portID]int, len(wanted.Services))
	for i := range wanted.Services {
		last[idOf(wanted.Services[i].ID)] = i
	}
	for i := range wanted.Services {
		w := &wanted.Services[i]
		id := idOf(w.ID)
		if last[id] != i { // two host ports of a pod may have the same ID; the last one counts
			continue
		}
		s := known[id]
		if s == nil {
			c.differ(u, "service", w.ID.String(), "installed", "missing")
			continue
		}
		found++
		r.compareTables(c, u, s, w)
		r.compareFrontends(c, u, s, w)
		work += r.compareRanges(c, u, s, w)
		work += len(w.Frontends) + len(w.Backends) + len(w.Tables[maps.ScopeAll]) + len(w.Tables[maps.ScopeLocal])
	}
	if found < len(o.services) {
		c.differ(u, "service", o.key.String(), fmt.Sprintf("%d services", found), fmt.Sprintf("%d services", len(o.services)))
	}
	return work
}
