package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// verify runs one whole check, as Run would, and calls between after every turn.
func verify(t *testing.T, r *Reconciler, repair bool, between func()) Report {
	t.Helper()
	q := &request{repair, make(chan answer, 1)}
	r.verifier.begin(q)
	for r.verifier.current != nil {
		select {
		case rows := <-r.verifier.turns():
			r.verifier.turn(rows)
		case rows := <-r.verifier.rangeTurns():
			r.verifier.rangeTurn(rows)
		case waited := <-r.grace.done:
			_ = r.release(waited)
		case <-r.verifier.timer.C:
			r.verifier.onTimer()
		}
		if between != nil {
			between()
		}
		_ = r.Pass()
		r.finishCheck()
	}
	a := <-q.answer
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.report
}

// live returns a Reconciler that has settled on a random cluster.
func live(t *testing.T, seed uint64) (*randomCluster, *model.Store, *Reconciler) {
	t.Helper()
	w := newRandomCluster(seed)
	store := model.NewStore("node0")
	w.relist(store)
	r := start(t, store, NewMemory(small), nil)
	for range 150 {
		w.step(store, false)
		if w.chance(20) {
			if err := r.Drain(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	return w, store, r
}

// A check counts services, frontends and backends as Stats does: rows in the maps, without those of
// hosted backends, and those that several services claim only once.
func TestChecksCountAsStats(t *testing.T) {
	for seed := range uint64(30) {
		_, _, r := live(t, seed)
		report, stats := verify(t, r, false, nil), r.Stats()
		got, want := [3]int{report.Services, report.Frontends, report.Backends}, [3]int{stats.Services, stats.Frontends, stats.Backends}
		if got != want {
			t.Errorf("seed %d: a check counts %v services, frontends and backends, the stats %v", seed, got, want)
		}
	}
}

func TestSoundMapsHaveNoDifferences(t *testing.T) {
	for seed := range uint64(100) {
		_, _, r := live(t, seed)
		writes := r.stats.Writes
		report := verify(t, r, seed%2 == 0, nil)
		if report.Found != 0 {
			t.Fatalf("seed %d: %+v", seed, report.Differences)
		}
		if report.Services != r.Stats().Services || report.Services < 3 || report.Frontends < 3 {
			t.Fatalf("seed %d: compared %+v of %+v", seed, report, r.Stats())
		}
		if r.stats.Writes != writes {
			t.Fatalf("seed %d: a check of sound maps wrote", seed)
		}
	}
}

// TestLiveDamageIsMended overwrites rows that a Reconciler believes sound. A check finds every
// change that matters and mends it to what a fresh start would write; the next check finds nothing.
func TestLiveDamageIsMended(t *testing.T) {
	missed := 0
	for seed := range uint64(400) {
		w, _, r := live(t, seed)
		tables := *r.tables
		for range 1 + w.rand.IntN(8) {
			damageLive(w.rand, &tables)
		}
		said := verify(t, r, false, nil)
		report := verify(t, r, true, nil)
		// Mending one row may mend another before the check comes to it.
		if said.Found < report.Found || (said.Found == 0) != (report.Found == 0) || said.Mended != 0 {
			t.Fatalf("seed %d: checking found %d differences, repairing found %d", seed, said.Found, report.Found)
		}
		if report.Mended != report.Found {
			t.Fatalf("seed %d: mended %d of %d: %+v", seed, report.Mended, report.Found, report.Differences)
		}
		if report.Found == 0 {
			missed++ // it hit something that nobody reads
		}
		if stats := r.Stats(); stats.Checks != 1 || stats.Damage != uint64(report.Found) || stats.Repaired != uint64(report.Found) {
			t.Fatalf("seed %d: counted %+v", seed, stats)
		}
		if again := verify(t, r, false, nil); again.Found != 0 {
			t.Fatalf("seed %d: differences left after mending: %+v", seed, again.Differences)
		}
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fresh(t, w), meaning(t, r.tables)); diff != "" {
			t.Fatalf("seed %d: not mended (-fresh +this):\n%s", seed, diff)
		}
	}
	if missed > 100 {
		t.Errorf("nothing was found in %d of 400 clusters: the test proves little", missed)
	}
}

// damageLive does what damage does, and also adds and deletes rows of svcs.
func damageLive(random *rand.Rand, t *Tables) {
	switch random.IntN(11) {
	case 9:
		key := maps.KeyOf(netip.MustParseAddr("10.99.0.1"), uint16(random.IntN(4)), model.TCP)
		if _, ok, _ := t.Frontends.Lookup(key); !ok {
			_ = t.Frontends.Insert([]maps.SvcKey{key}, []maps.Svc{{Service: random.Uint32N(8)}}) // if there is room
		}
	case 10:
		if keys := keysOf(t); len(keys) > 0 {
			_ = t.Frontends.Delete(keys[:1])
		}
	default:
		damage(random, t)
	}
}

func keysOf(t *Tables) []maps.SvcKey {
	var keys []maps.SvcKey
	_ = t.Frontends.Each(func(key maps.SvcKey, _ maps.Svc) { keys = append(keys, key) })
	slices.SortFunc(keys, func(a, b maps.SvcKey) int { return maps.AddrPort(a).Compare(maps.AddrPort(b)) })
	return keys
}

// TestChecksAmongChanges changes objects between the turns of a check while the maps grow. A change
// that is merely not applied yet is no damage.
func TestChecksAmongChanges(t *testing.T) {
	for seed := range uint64(100) {
		w, store, r := live(t, seed)
		report := verify(t, r, seed%2 == 0, func() {
			for range 3 {
				w.step(store, false)
			}
		})
		if report.Found != 0 {
			t.Fatalf("seed %d: %+v", seed, report.Differences)
		}
		if err := r.Drain(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(fresh(t, w), meaning(t, r.tables)); diff != "" {
			t.Fatalf("seed %d: (-fresh +this):\n%s", seed, diff)
		}
	}
}

// TestChangesDuringATurn changes an object after the pass and before it is compared. The source is
// ahead of the maps, which is no damage.
func TestChangesDuringATurn(t *testing.T) {
	store := model.NewStore("node0")
	deliver(store, []*model.Service{web("10.96.0.1")}, []*model.Slice{webSlice("10.1.0.1")})
	r := start(t, store, NewMemory(small), nil)
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	r.verifier.begin(&request{true, make(chan answer, 1)})
	store.SetSlice(webSlice("10.1.0.2"))
	r.verifier.turn(<-r.verifier.turns())
	if found := r.verifier.current.report.Found; found != 0 {
		t.Errorf("%d differences: %+v", found, r.verifier.current.report.Differences)
	}
	if keys := store.TakeDirty(); len(keys) != 1 {
		t.Errorf("the change was lost: dirty are %v", keys)
	}
	r.stopWalk()
}

func TestDifferencesSayWhatIsWrong(t *testing.T) {
	key := func(addr string) maps.SvcKey { return maps.KeyOf(netip.MustParseAddr(addr), 80, model.TCP) }
	const service = "shop/web:http/tcp4"
	for _, tt := range []struct {
		name   string
		damage func(*Tables)
		want   string // of the only difference: kind, where, want and have
	}{
		{"row missing", func(t *Tables) { _ = t.Frontends.Delete([]maps.SvcKey{key("10.96.0.1")}) },
			"frontend|10.96.0.1:80/tcp|ClusterIP of " + service + "|no row"},
		{"row of another kind", func(t *Tables) { _ = t.Frontends.Update(key("10.96.0.1"), maps.Svc{Service: 1, Kind: 3}) },
			"frontend|10.96.0.1:80/tcp|ClusterIP of " + service + "|LoadBalancer of " + service},
		{"row to nowhere", func(t *Tables) { _ = t.Frontends.Update(key("10.96.0.1"), maps.Svc{Service: 1 << 30, Kind: 99}) },
			"frontend|10.96.0.1:80/tcp|ClusterIP of " + service + "|kind(99) of service 1073741824, which does not exist"},
		{"row of nobody", func(t *Tables) { _ = t.Frontends.Insert([]maps.SvcKey{key("10.96.0.9")}, []maps.Svc{{Service: 1}}) },
			"frontend|10.96.0.9:80/tcp|no row|ClusterIP of " + service},
		{"word", func(t *Tables) { t.Services[1].Words[0] = 0 },
			"word|" + service + ", scope all|2 slots starting at 0, tag 1|0 slots starting at 0, tag 0"},
		{"slot of another service", func(t *Tables) { t.Slots[1] = maps.MakeSlot(1, 2, 1) },
			"slots|" + service + ", scope all|slot 1: backend 1 of service 1, tag 1|backend 1 of service 2, tag 1; 1 of 2 slots differ"},
		{"slot of another backend", func(t *Tables) { t.Slots[0] = maps.MakeSlot(1, 1, 1) },
			"slots|" + service + ", scope all|slot 0: backend 0 of service 1, tag 1|backend 1 of service 1, tag 1; 1 of 2 slots differ"},
		{"backend", func(t *Tables) { t.Backends[1].Port++ },
			"backend|" + service + ", row 1|10.1.0.2:8080/tcp of service 1, scopes 0x1|10.1.0.2:8336/tcp of service 1, scopes 0x1"},
		{"owner of a backend", func(t *Tables) { t.Backends[0].Owner = maps.MakeOwner(1, 3) },
			"backend|" + service + ", row 0|10.1.0.1:8080/tcp of service 1, scopes 0x1|10.1.0.1:8080/tcp of service 1, scopes 0x3"},
		{"owner of a free backend", func(t *Tables) { t.Backends[2].Owner = maps.MakeOwner(1, 1) },
			"backend|row 2|free|[::]:0/any of service 1, scopes 0x1"},
		{"settings", func(t *Tables) { t.Services[1].Algorithm = 1 },
			"service|" + service + "|random, flags 0, affinity 0 s|round-robin, flags 0, affinity 0 s"},
		{"name", func(t *Tables) { t.Names[1].Text[0] = 'x' }, "name|" + service + "|" + service + `|"xhop/web:http/tcp4"`},
		{"name after the name", func(t *Tables) { t.Names[1].Text[100] = 'x' }, "name|" + service + "|" + service + `|"` + service + `"`},
		{"free row", func(t *Tables) { t.Names[2].Text[0] = 'x' }, `service|row 2|free|0 slots, named "x"`},
		{"row 0", func(t *Tables) { t.Services[0].Words[1] = uint64(maps.MakeWord(0, 3, 0)) }, `service|row 0|free|3 slots, named ""`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := model.NewStore("node0")
			deliver(store, []*model.Service{web("10.96.0.1")}, []*model.Slice{webSlice("10.1.0.1", "10.1.0.2")})
			r := start(t, store, NewMemory(small), nil)
			if err := r.Drain(); err != nil {
				t.Fatal(err)
			}
			tt.damage(r.tables)
			var got []string
			for _, d := range verify(t, r, true, nil).Differences {
				got = append(got, strings.Join([]string{d.Kind, d.Where, d.Want, d.Have}, "|"))
				if !d.Mended {
					t.Errorf("%s is not mended", d.Where)
				}
			}
			if diff := cmp.Diff([]string{tt.want}, got); diff != "" {
				t.Error(diff)
			}
			if left := verify(t, r, false, nil).Differences; len(left) > 0 {
				t.Errorf("differences left after mending: %+v", left)
			}
		})
	}
}

// TestWhatCannotBeMendedCountsOnce makes the one operation fail that would mend the damage.
func TestWhatCannotBeMendedCountsOnce(t *testing.T) {
	store := model.NewStore("node0")
	deliver(store, []*model.Service{web("10.96.0.1")}, []*model.Slice{webSlice("10.1.0.1")})
	failing := false
	r := start(t, store, NewMemory(small), func(op string) error {
		if failing && op == "insert" {
			return errInjected
		}
		return nil
	})
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	failing = true
	if err := r.tables.Frontends.Delete(keysOf(r.tables)); err != nil {
		t.Fatal(err)
	}
	report := verify(t, r, true, func() {
		if c := r.verifier.current; c.phase == phaseMending {
			c.late = true
		}
		if r.verifier.current.phase == phaseRows && r.verifier.current.walk == nil {
			r.verifier.timer.Reset(0)
		}
	})
	if report.Found != 1 || report.Mended != 0 || report.Pending == 0 {
		t.Errorf("%+v", report)
	}
	if stats := r.Stats(); stats.Damage != 1 || stats.Repaired != 0 {
		t.Errorf("%+v", stats)
	}
	// It now waits for its retry, so it is not found again.
	failing = false
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	if left := verify(t, r, true, nil); left.Found != 0 || r.Stats().Damage != 1 {
		t.Errorf("%+v", left)
	}
}

func TestVerifyAsksRun(t *testing.T) {
	store := model.NewStore("node0")
	r := start(t, store, NewMemory(small), nil)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) })
	deliver(store, []*model.Service{web("10.96.0.1")}, []*model.Slice{webSlice("10.1.0.1")})
	var asking sync.WaitGroup
	for i := range 4 {
		asking.Go(func() {
			report, err := r.Verify(t.Context(), i%2 == 0)
			if err != nil || report.Services > 1 || report.Found != 0 {
				t.Errorf("%+v, %v", report, err)
			}
		})
	}
	asking.Wait()
	cancel()
	running.Wait()
	if _, err := r.Verify(t.Context(), false); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
}

func TestVerifyBeforeTheSync(t *testing.T) {
	r := start(t, model.NewStore("node0"), NewMemory(small), nil)
	q := &request{false, make(chan answer, 1)}
	r.verifier.begin(q)
	if a := <-q.answer; !errors.Is(a.err, ErrUnsynced) {
		t.Errorf("%+v", a)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Verify(ctx, false); !errors.Is(err, context.Canceled) {
		t.Errorf("with a canceled context and without Run: %v", err)
	}
}

func TestVerifyReportsReadingErrors(t *testing.T) {
	store := model.NewStore("node0")
	deliver(store, []*model.Service{web("10.96.0.1")}, nil)
	failing := ""
	r := start(t, store, NewMemory(small), func(op string) error {
		if op == failing {
			return fmt.Errorf("%s: %w", op, errInjected)
		}
		return nil
	})
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	failing = "lookup"
	q := &request{true, make(chan answer, 1)}
	r.verifier.begin(q)
	for r.verifier.current != nil {
		select {
		case rows := <-r.verifier.turns():
			r.verifier.turn(rows)
		case rows := <-r.verifier.rangeTurns():
			r.verifier.rangeTurn(rows)
		}
		_ = r.Pass()
		r.finishCheck()
	}
	if a := <-q.answer; !errors.Is(a.err, errInjected) {
		t.Errorf("%+v", a)
	}
}
