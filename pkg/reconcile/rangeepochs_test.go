package reconcile

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// watchedRangeEpochs checks, if it is strict, that the clients allowed at load balancer addresses change
// only between Begin and End.
type watchedRangeEpochs struct {
	t      *testing.T
	fail   func(op string) error
	tables func() *Tables
	strict bool
	open   bool
	calls  []string
	before map[string]string // the allowed clients when the last change ended
}

// beStrict makes the fakes check all writes of r.
func (r *Reconciler) beStrict() {
	r.tables.Frontends.(*faults).strict = true
	r.cfg.RangeEpochs.(*watchedRangeEpochs).strict = true
}

func (g *watchedRangeEpochs) Begin() {
	g.hold("the writes before a change")
	g.open = true
	g.calls = append(g.calls, "begin")
}

func (g *watchedRangeEpochs) End() error {
	g.calls = append(g.calls, "end")
	if err := g.fail("range_epochs"); err != nil {
		return err
	}
	g.open, g.before = false, letIn(g.tables())
	return nil
}

func (g *watchedRangeEpochs) hold(after string) {
	g.t.Helper()
	if g.strict && !g.open {
		if diff := cmp.Diff(g.before, letIn(g.tables())); diff != "" {
			g.t.Errorf("after %s other clients are let in without a call of Begin (-begun for +have):\n%s", after, diff)
		}
	}
}

// letIn returns the clients that the tables let in, by load balancer address.
func letIn(tables *Tables) map[string]string {
	ranges, who := map[uint32][]string{}, map[string]string{}
	_ = tables.Ranges.Each(func(r maps.Range) { ranges[r.Service] = append(ranges[r.Service], r.Prefix.String()) })
	_ = tables.Frontends.Each(func(key maps.SvcKey, row maps.Svc) {
		if row.Kind != maps.LoadBalancer {
			return
		}
		text := "all"
		if tables.Services[row.Service].Flags&maps.SourceRanges != 0 {
			text = strings.Join(slices.Sorted(slices.Values(ranges[row.Service])), " ")
		}
		who[fmt.Sprintf("%v/%d", maps.AddrPort(key), key.Proto)] = text
	})
	return who
}

// TestRangeEpochsAreAnnounced checks what counts as a change of the allowed clients, and that nothing else
// does.
func TestRangeEpochsAreAnnounced(t *testing.T) {
	store := model.NewStore("node0")
	failing := false
	r := start(t, store, NewMemory(small), func(op string) error {
		if failing && op == "range_epochs" {
			return errInjected
		}
		return nil
	})
	r.beStrict()
	rangeEpochs := r.cfg.RangeEpochs.(*watchedRangeEpochs)
	deliver(store, []*model.Service{web("10.96.0.1")}, []*model.Slice{webSlice("10.1.0.1")})
	moved := guardedWeb("192.0.2.0/24")
	moved.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.2")}
	ported := guardedWeb("192.0.2.0/24")
	ported.LoadBalancerIPs, ported.Ports = moved.LoadBalancerIPs, slices.Clone(ported.Ports)
	ported.Ports[0].NodePort = 30080
	for _, step := range []struct {
		name   string
		set    func()
		called bool
	}{
		{"the start", func() {}, true},
		{"nothing", func() {}, false},
		{"another backend", func() { store.SetSlice(webSlice("10.1.0.1", "10.1.0.2")) }, false},
		{"a load balancer's address", func() { store.SetService(guardedWeb()) }, true},
		{"another backend behind it", func() { store.SetSlice(webSlice("10.1.0.2")) }, false},
		{"ranges", func() { store.SetService(guardedWeb("10.0.0.0/8", "192.0.2.0/24")) }, true},
		{"the same ranges", func() { store.SetService(guardedWeb("192.0.2.0/24", "10.0.0.0/8")) }, false},
		{"fewer ranges", func() { store.SetService(guardedWeb("192.0.2.0/24")) }, true},
		{"another address", func() { store.SetService(moved) }, true},
		{"a node port", func() { store.SetService(ported) }, false},
		{"no ranges", func() { store.SetService(guardedWeb()) }, true},
		{"no address", func() { store.SetService(web("10.96.0.1")) }, true},
		{"no Service", func() { store.DeleteService(web("10.96.0.1").Name) }, false},
	} {
		rangeEpochs.calls = nil
		step.set()
		if err := r.Drain(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		rangeEpochs.hold(step.name)
		if step.name == "the start" { // New called Begin already
			rangeEpochs.calls = append([]string{"begin"}, rangeEpochs.calls...)
		}
		for i, word := range rangeEpochs.calls {
			if word != []string{"begin", "end"}[i%2] {
				t.Errorf("%s: the calls are %q", step.name, rangeEpochs.calls)
			}
		}
		if called := len(rangeEpochs.calls) > 0; called != step.called || rangeEpochs.open {
			t.Errorf("%s: the calls are %q, want any: %v", step.name, rangeEpochs.calls, step.called)
		}
	}
	store.SetService(guardedWeb("192.0.2.0/24"))
	failing = true
	if err := r.Pass(); !errors.Is(err, errInjected) || !rangeEpochs.open || r.Stats().LastError == "" {
		t.Errorf("when End fails: %v; the status says %q", err, r.Stats().LastError)
	}
	failing = false
	if err := r.Drain(); err != nil || rangeEpochs.open || r.Stats().LastError != "" {
		t.Errorf("after the retry: %v; the status says %q; still in progress: %v", err, r.Stats().LastError, rangeEpochs.open)
	}
}
