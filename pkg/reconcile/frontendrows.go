package reconcile

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// grace tracks what must not be reused while a program may still read it: freed rows of services
// and backends, and elements of the frontends' hash map, which the kernel recycles from a deleted
// key to the next new one. All of it waits for one barrier in the background.
type grace struct {
	running  bool
	since    time.Time    // start of the first barrier since the last successful one; zero if none is running
	deferred deferredFree // what the running or the next barrier will release
	// recycled says that rows were deleted or replaced since the running barrier began.
	recycled bool
	done     chan error
}

type deferredFree struct {
	services, backends []uint32
	rows               bool
}

// frontendRows writes the rows of frontends, and keeps what a program may still read from being
// used again.
type frontendRows struct {
	*rows
	frontends frontends
	grace     grace
	retired   []*service
}

// startGrace starts a barrier if something waits for one and none is running.
func (r *frontendRows) startGrace() {
	g := &r.grace
	if g.running {
		return
	}
	g.deferred.services = append(g.deferred.services, r.services.TakeFreed()...)
	g.deferred.backends = append(g.deferred.backends, r.backends.TakeFreed()...)
	g.deferred.rows = g.deferred.rows || g.recycled
	if !g.deferred.rows && len(g.deferred.services) == 0 && len(g.deferred.backends) == 0 {
		return
	}
	g.running, g.recycled = true, false
	if g.since.IsZero() {
		g.since = time.Now()
	}
	r.stats.Barriers++
	go func() { g.done <- r.cfg.Barrier() }()
}

// release frees what the barrier protected. If the barrier failed, everything waits for the next
// one.
func (r *frontendRows) release(err error) error {
	g := &r.grace
	g.running = false
	if err != nil {
		return fmt.Errorf("wait for readers: %w", err)
	}
	r.services.Release(g.deferred.services)
	r.backends.Release(g.deferred.backends)
	g.deferred, g.since = deferredFree{}, time.Time{}
	return nil
}

// mayRecycle reports whether the kernel may hand out freed elements of the hash map again.
func (g *grace) mayRecycle() bool { return !g.recycled && !g.deferred.rows }

// writeRows makes the frontends' hash map match the claims: new rows are inserted, rows that
// changed hands are updated, and rows that nobody owns are deleted. A write that would recycle an
// element some reader may hold is put off, its key left touched, until a barrier has passed.
func (r *frontendRows) writeRows() error {
	f := &r.frontends
	if len(f.touched) == 0 && len(f.unsure) == 0 {
		return nil
	}
	if err := r.reread(); err != nil {
		return err
	}
	f.crowded = f.crowded || len(f.touched) > maxTouched
	defer f.trim()
	var gone, fresh, changed []maps.SvcKey
	for key := range f.touched {
		state := f.keys[key]
		_, want := state.wanted()
		switch {
		case state.inMaps():
			delete(f.touched, key)
		// Once its pod is gone, a host port can belong to no object that has yet to be delivered.
		case !want && (r.synced || state.row.Kind == maps.HostPort):
			gone = append(gone, key)
		case want && state.present:
			changed = append(changed, key)
		case want:
			fresh = append(fresh, key)
		}
	}
	if err := r.insertRows(fresh); err != nil {
		return err
	}
	for _, key := range changed {
		if !r.grace.mayRecycle() {
			break
		}
		state := f.keys[key]
		row, _ := state.wanted()
		if err := r.prepare([]maps.SvcKey{key}, []maps.Svc{row}); err != nil {
			return err
		}
		r.rangeEpochs.beginOf(state.row, row)
		if err := r.tables.Frontends.Update(key, row); err != nil {
			f.unsure = append(f.unsure, key)
			return fmt.Errorf("update frontend %v: %w", maps.AddrPort(key), err)
		}
		r.grace.recycled = true
		r.stats.Writes++
		r.left[model.Protocol(key.Proto)] = true
		r.stored(key, row, true)
	}
	if len(gone) == 0 {
		return nil
	}
	for _, key := range gone {
		r.rangeEpochs.beginOf(r.frontends.keys[key].row)
	}
	if err := r.tables.Frontends.Delete(gone); err != nil {
		f.unsure = append(f.unsure, gone...)
		r.grace.recycled = true
		return fmt.Errorf("delete %d frontends: %w", len(gone), err)
	}
	r.grace.recycled = true
	r.stats.Writes += uint64(len(gone))
	for _, key := range gone {
		r.left[model.Protocol(key.Proto)] = true
		r.stored(key, maps.Svc{}, false)
	}
	return nil
}

func (r *frontendRows) insertRows(keys []maps.SvcKey) error {
	if len(keys) == 0 || !r.grace.mayRecycle() {
		return nil
	}
	if need := uint32(r.frontends.present + len(keys)); need > r.tables.Frontends.Capacity() {
		if err := r.grow(maps.Sizes{Svcs: max(need, 2*r.tables.Frontends.Capacity())}); err != nil {
			return err
		}
	}
	rows := make([]maps.Svc, len(keys))
	for i, key := range keys {
		state := r.frontends.keys[key]
		rows[i], _ = state.wanted()
	}
	if err := r.prepare(keys, rows); err != nil {
		return err
	}
	r.rangeEpochs.beginOf(rows...)
	if err := r.tables.Frontends.Insert(keys, rows); err != nil {
		r.frontends.unsure = append(r.frontends.unsure, keys...)
		return fmt.Errorf("insert %d frontends: %w", len(keys), err)
	}
	r.stats.Writes += uint64(len(keys))
	for i, key := range keys {
		r.stored(key, rows[i], true)
	}
	return nil
}

func (r *frontendRows) prepare(keys []maps.SvcKey, rows []maps.Svc) error {
	if r.cfg.Prepare == nil {
		return nil
	}
	return r.cfg.Prepare(keys, rows)
}

// reread reads back the rows of failed operations: a batch may have stopped half way.
func (r *frontendRows) reread() error {
	f := &r.frontends
	for len(f.unsure) > 0 {
		key := f.unsure[len(f.unsure)-1]
		row, present, err := r.tables.Frontends.Lookup(key)
		if err != nil {
			return fmt.Errorf("look up frontend %v: %w", maps.AddrPort(key), err)
		}
		r.stored(key, row, present)
		f.unsure = f.unsure[:len(f.unsure)-1]
	}
	return nil
}

// stored records what the map now contains for a key.
func (r *frontendRows) stored(key maps.SvcKey, row maps.Svc, present bool) {
	f := &r.frontends
	state := f.keys[key]
	if state.present {
		f.count(key, -1)
		if s := r.byService(state.row.Service); s != nil {
			s.rows--
		}
	}
	if present {
		f.count(key, 1)
		if s := r.byService(row.Service); s != nil {
			s.rows++
		}
	}
	state.row, state.present = row, present
	f.set(key, state, state.owner)
}

// retire withdraws a service's claims. It is torn down when no row leads to it any more.
func (r *frontendRows) retire(s *service) {
	for _, key := range s.frontends {
		r.frontends.release(key, s)
	}
	s.object = nil
	r.retired = append(r.retired, s)
}

// teardown frees the rows of retired services once no frontend can lead to them. A service whose
// ranges cannot be deleted stays: the next owner of its index would let those clients in.
func (r *frontendRows) teardown() (failed error) {
	if len(r.frontends.unsure) > 0 {
		return nil
	}
	r.retired = slices.DeleteFunc(r.retired, func(s *service) bool {
		if s.rows > 0 {
			return false
		}
		if err := r.dropRanges(s, nil); err != nil {
			failed = err
			return false
		}
		row := &r.tables.Services[s.index]
		tag := max(s.words[maps.ScopeAll].Tag(), s.words[maps.ScopeLocal].Tag())
		for scope, word := range s.words {
			atomic.StoreUint64(&row.Words[scope], uint64(maps.MakeWord(0, 0, tag)))
			if word.Len() > 0 {
				r.extents.Free(word.Off(), uint32(word.Len()))
			}
		}
		r.tables.Names[s.index] = maps.NameText{}
		r.stats.Writes += 2
		for _, index := range s.backends {
			r.freeBackend(index)
		}
		r.byIndex[s.index] = nil
		r.services.Free(s.index)
		return true
	})
	return failed
}
