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
func (v *verifier) checkService(c *check, index uint32) (work int) {
	s := v.byIndex[index]
	switch {
	case index == maps.Inside:
		v.compareFree(c, index)
		for _, of := range v.reserved {
			work += v.compareReserved(c, of)
		}
		return work
	case s == nil:
		v.compareFree(c, index)
	case s.object != nil && s.object.services[0] == s:
		for _, other := range s.object.services {
			c.report.Services++
			c.report.Backends += len(other.backends)
			c.report.Frontends += v.frontends.ownedBy(other)
			for _, row := range other.backends {
				if int(row/64) < len(c.used) {
					c.used[row/64] |= 1 << (row % 64)
				}
			}
		}
		return v.compareObject(c, s.object)
	}
	return 0
}

// compareUnit compares one unit again.
func (v *verifier) compareUnit(c *check, u unit) {
	switch u.kind {
	case unitObject:
		if o := v.objects.known[u.object]; o != nil {
			v.compareObject(c, o)
		}
	case unitFrontend:
		v.compareRow(c, u.object, u.key)
	case unitFree:
		v.compareFree(c, u.index)
	case unitBackend:
		v.compareBackend(c, u.index)
	case unitRange:
		v.compareStray(c, u.stray)
	case unitReserved:
		v.compareReserved(c, v.reservedAt(u.index))
	}
}

// waits reports whether mending a unit waits for a retry or a grace period.
func (v *verifier) waits(u unit) bool {
	switch u.kind {
	case unitObject:
		_, failed := v.objects.failed[u.object]
		return failed
	case unitFrontend:
		_, touched := v.frontends.touched[u.key]
		return touched || slices.Contains(v.frontends.unsure, u.key)
	}
	return false
}

// mend makes a unit due, or repairs it if nothing else has to be known. The next pass writes what
// is due in an order that is safe for readers.
func (v *verifier) mend(u unit) {
	switch u.kind {
	case unitObject:
		if o := v.objects.known[u.object]; o != nil {
			for _, s := range o.services {
				v.setName(s.index, nameText(s.id()))
				s.ranges.unsure = true
			}
		}
		v.objects.store.MarkDirty(u.object)
	case unitFrontend:
		v.frontends.unsure = append(v.frontends.unsure, u.key)
	case unitFree:
		row := &v.tables.Services[u.index]
		for scope := range row.Words {
			word := maps.Word(atomic.LoadUint64(&row.Words[scope]))
			atomic.StoreUint64(&row.Words[scope], uint64(maps.MakeWord(0, 0, word.Tag())))
		}
		v.setName(u.index, "")
	case unitBackend:
		v.setOwner(u.index, 0)
	case unitReserved:
		v.reservedAt(u.index).unsure = true
	case unitRange:
		if err := v.mendRange(u.stray, u.object); err != nil {
			v.current.err = fmt.Errorf("verify the maps: %w", err)
		}
	}
}

func (s *service) id() lb.ID {
	return lb.ID{Key: s.object.key, Port: s.port, Protocol: s.protocol, Family: s.family}
}

// compareFree checks that a row of services that no service uses looks empty.
func (v *verifier) compareFree(c *check, index uint32) {
	if v.byIndex[index] != nil {
		return
	}
	row := &v.tables.Services[index]
	name := &v.tables.Names[index]
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
func (v *verifier) checkBackend(c *check, index uint32) {
	if v.tables.Backends[index].Owner == 0 || int(index/64) < len(c.used) && c.used[index/64]>>(index%64)&1 != 0 {
		return
	}
	v.compareBackend(c, index)
}

func (v *verifier) compareBackend(c *check, index uint32) {
	row := v.tables.Backends[index]
	if row.Owner == 0 {
		return
	}
	// A service may have got the row since the check passed it.
	if s := v.byService(maps.BackendService(row)); s != nil && slices.Contains(s.backends, index) {
		return
	}
	c.differ(unit{kind: unitBackend, index: index}, "backend", fmt.Sprintf("row %d", index), "free", backendText(row))
}

// checkRows finds rows of svcs that nobody owns. Owned rows were compared together with their
// services.
func (v *verifier) checkRows(c *check, rows []foundRow) {
	for _, found := range rows {
		state := v.frontends.keys[found.key]
		if state.owner.service == nil && (!state.present || state.row != found.row) {
			v.compareRow(c, model.Key{}, found.key)
		}
	}
}

// compareRow compares one row of svcs with the claims. A row that waits for a grace period is not
// judged.
func (v *verifier) compareRow(c *check, object model.Key, key maps.SvcKey) {
	state := v.frontends.keys[key]
	if !state.inMaps() || slices.Contains(v.frontends.unsure, key) {
		return
	}
	want, wanted := state.wanted()
	have, present, err := v.tables.Frontends.Lookup(key)
	if err != nil {
		c.err = fmt.Errorf("verify the maps: %w", err)
		return
	}
	if present == wanted && (!wanted || have == want) {
		return
	}
	c.differ(unit{kind: unitFrontend, object: object, key: key}, "frontend", frontendText(key),
		v.rowText(want, wanted), v.rowText(have, present))
}

func (v *verifier) rowText(row maps.Svc, present bool) string {
	if !present {
		return "no row"
	}
	kind := fmt.Sprintf("kind(%d)", row.Kind)
	if int(row.Kind) < len(maps.KindNames) {
		kind = maps.KindNames[row.Kind]
	}
	if s := v.byService(row.Service); s != nil && s.object != nil {
		return fmt.Sprintf("%s of %s", kind, s.id())
	}
	return fmt.Sprintf("%s of service %d, which does not exist", kind, row.Service)
}

// compareObject compares everything that belongs to one object, and returns how many rows that is.
// An object that waits for a retry is not judged.
func (v *verifier) compareObject(c *check, o *object) (work int) {
	if _, failed := v.objects.failed[o.key]; failed {
		return 0
	}
	wanted, _, _ := v.objects.compile(o.key)
	if !v.objects.quotas.serves(o.key) {
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
		v.compareTables(c, u, s, w)
		v.compareFrontends(c, u, s, w)
		work += v.compareRanges(c, u, s, w)
		work += len(w.Frontends) + len(w.Backends) + len(w.Tables[maps.ScopeAll]) + len(w.Tables[maps.ScopeLocal])
	}
	if found < len(o.services) {
		c.differ(u, "service", o.key.String(), fmt.Sprintf("%d services", found), fmt.Sprintf("%d services", len(o.services)))
	}
	return work
}
