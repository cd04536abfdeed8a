package netns

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

const (
	tearFrontends = 16
	tearBackends  = 4         // of each service
	tearSwitches  = 1_000_000 // at least
	tearReads     = 300_000   // at least
	tearWord      = 1         // the word of a backend's address that identifies its frontend
)

// pool hands out indices, the last freed first: the worst order of reuse.
type pool struct {
	free, gone []uint32
}

func newPool(n uint32) *pool {
	p := &pool{}
	for i := range n {
		p.free = append(p.free, i)
	}
	return p
}

func (p *pool) take() uint32 {
	last := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return last
}

// revive frees what is gone; no program may use it any more.
func (p *pool) revive() {
	p.free, p.gone = append(p.free, p.gone...), p.gone[:0]
}

// tearService is a service of the writer.
type tearService struct {
	index    uint32
	tag      uint16
	extent   uint32
	backends []uint32
}

// tearWriter switches, creates and deletes services as fast as it can, by the rules that make it
// safe: it reuses an extent at once, but an index or a row of the hash only after a barrier.
type tearWriter struct {
	t                           *testing.T
	tables                      *maps.Tables
	barrier                     *maps.Barrier
	services, backends, extents *pool
	live                        [tearFrontends]*tearService
	deleted                     []int // frontends that may be created again after a barrier
	barriers, creations         int
}

func tearKey(frontend int) maps.SvcKey {
	return maps.SvcKey{Port: uint16(frontend), Proto: uint8(model.TCP)}
}

func (w *tearWriter) backend(frontend int) uint32 {
	index := w.backends.take()
	row := maps.Backend{Proto: uint8(model.TCP)}
	row.Addr.Word[tearWord] = uint32(frontend)
	w.tables.Backends[index] = row
	return index
}

// point fills a fresh extent with the service's backends, and switches to it with one store.
func (w *tearWriter) point(s *tearService) {
	extent := w.extents.take()
	s.tag++
	for i, backend := range s.backends {
		slot := &w.tables.Slots[extent*tearBackends+uint32(i)]
		atomic.StoreUint64(&slot.Value, maps.MakeSlot(backend, s.index, s.tag).Value)
	}
	word := maps.MakeWord(extent*tearBackends, len(s.backends), s.tag)
	atomic.StoreUint64(&w.tables.Services[s.index].Words[maps.ScopeAll], uint64(word))
	w.extents.free = append(w.extents.free, s.extent)
	s.extent = extent
}

func (w *tearWriter) create(frontend int) {
	s := &tearService{index: w.services.take(), extent: w.extents.take(), tag: uint16(rand.Uint32())}
	for range tearBackends {
		s.backends = append(s.backends, w.backend(frontend))
	}
	w.point(s)
	if err := w.tables.Svcs.Insert([]maps.SvcKey{tearKey(frontend)}, []maps.Svc{{Service: s.index}}); err != nil {
		w.t.Fatal(err)
	}
	w.live[frontend] = s
	w.creations++
}

func (w *tearWriter) delete(frontend int) {
	s := w.live[frontend]
	if err := w.tables.Svcs.Delete([]maps.SvcKey{tearKey(frontend)}); err != nil {
		w.t.Fatal(err)
	}
	w.live[frontend] = nil
	w.services.gone = append(w.services.gone, s.index)
	w.backends.gone = append(w.backends.gone, s.backends...)
	w.extents.free = append(w.extents.free, s.extent)
	w.deleted = append(w.deleted, frontend)
}

func (w *tearWriter) wait() {
	if err := w.barrier.Wait(); err != nil {
		w.t.Fatal(err)
	}
	w.barriers++
	w.services.revive()
	w.backends.revive()
	for _, frontend := range w.deleted {
		w.create(frontend)
	}
	w.deleted = w.deleted[:0]
}

// run switches random services until there were enough switches and reads; every 50th switch
// replaces a backend, and every 2000th deletes a service. It returns the number of switches.
func (w *tearWriter) run(reads func() uint64) (switches int) {
	for i := 0; switches < tearSwitches || i%1000 != 0 || reads() < tearReads; i++ {
		frontend := rand.IntN(tearFrontends)
		s := w.live[frontend]
		if s == nil {
			continue
		}
		if i%50 == 0 {
			if len(w.backends.free) < 2*tearBackends {
				w.wait()
			}
			old := rand.IntN(tearBackends)
			w.backends.gone = append(w.backends.gone, s.backends[old])
			s.backends = slices.Clone(s.backends)
			s.backends[old] = w.backend(frontend)
		}
		w.point(s)
		switches++
		if i%2000 == 0 {
			w.delete(frontend)
		}
		if len(w.deleted) == tearFrontends/4 {
			w.wait()
		}
	}
	return switches
}

// A reader never gets a backend of another service, however often tables are switched and whatever
// else is created and deleted.
func TestNoForeignBackend(t *testing.T) {
	rig.Root(t)
	set, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	tables, err := set.Tables()
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	barrier, err := maps.NewBarrier()
	if err != nil {
		t.Fatal(err)
	}
	defer barrier.Close()
	w := &tearWriter{
		t: t, tables: tables, barrier: barrier,
		services: newPool(tearFrontends + 4), backends: newPool(512), extents: newPool(2*tearFrontends + 2),
	}
	for frontend := range tearFrontends {
		w.create(frontend)
	}
	reader := loadReader(t, set)
	var stop atomic.Bool
	stopped := make(chan error)
	go func() {
		var err error
		for !stop.Load() && err == nil {
			_, err = reader.SelectBackend.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 500})
		}
		stopped <- err
	}()
	count := func(v *ebpf.Variable) (n uint64) {
		if err := v.Get(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	switches := w.run(func() uint64 { return count(reader.Chosen) })
	stop.Store(true)
	if err := <-stopped; err != nil {
		t.Fatalf("run reader: %v", err)
	}
	t.Logf("%d switches, %d services created, %d barriers; %d reads, %d absent, %d gave up", switches, w.creations,
		w.barriers, count(reader.Chosen), count(reader.Absent), count(reader.Raced))
	if foreign, broken := count(reader.Foreign), count(reader.Broken); foreign > 0 || broken > 0 {
		t.Errorf("%d reads got a foreign backend, %d a broken table", foreign, broken)
	}
	if w.creations < 2*tearFrontends {
		t.Error("too few services came and went for this to mean anything")
	}
}

func loadReader(t *testing.T, set *maps.Maps) *SelectObjects {
	t.Helper()
	spec, err := LoadSelect()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["frontends"].Set(uint32(tearFrontends)); err != nil {
		t.Fatal(err)
	}
	reader := &SelectObjects{}
	if err := spec.LoadAndAssign(reader, &ebpf.CollectionOptions{MapReplacements: set.Replacements(spec)}); err != nil {
		t.Fatalf("load reader: %v", err)
	}
	t.Cleanup(func() { reader.Close() })
	return reader
}
