package nodes

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// programs are rows that nobody reads.
type programs struct {
	mu            sync.Mutex
	rows          maps.Cluster
	reads, writes int
}

func (p *programs) Cluster() (maps.Cluster, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reads++
	return p.rows, nil
}

func (p *programs) SetCluster(want maps.Cluster) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	p.rows = want
	return nil
}

func (p *programs) damage() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rows = maps.Cluster{}
}

// The rows are read and written only if something is to be done, and a Node that changes all the
// time does not make it often. What somebody else changed is found within a minute.
func TestTableWritesWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, p := model.NewStore("self"), &programs{}
		table := New(p, store, func() ([]netip.Prefix, error) { return self().PodCIDRs, nil }, slog.New(slog.NewTextHandler(io.Discard, nil)))
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- table.Run(ctx) }()
		store.ReplaceNodes([]*model.Node{self(), node("b", "192.0.2.2", "10.2.0.0/24")})
		store.ReplaceServices(nil)
		store.ReplaceSlices(nil)
		store.ReplaceNamespaces(nil)
		store.ReplacePods(nil)
		time.Sleep(time.Second)
		count := func(when string, reads, writes int) {
			t.Helper()
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.reads > reads || p.writes > writes || reads > 0 && p.reads == 0 || writes > 0 && p.writes == 0 {
				t.Errorf("%s: %d reads and %d writes, want some, at most %d and %d", when, p.reads, p.writes, reads, writes)
			}
			p.reads, p.writes = 0, 0
		}
		count("at the start", 1, 1)
		for range 10 {
			if err := table.WriteClaims(Claims{netip.MustParsePrefix("10.2.0.0/24"): "b"}); err != nil {
				t.Fatal(err)
			}
		}
		count("the routes are looked at again", 0, 0)
		for i := range 1000 {
			store.SetNode(node("b", []string{"192.0.2.2", "192.0.2.3"}[i%2], "10.2.0.0/24"))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(pause)
		count("a node changes 1000 times in a second", 0, 7)
		if _, ok := p.rows.Nodes[netip.MustParseAddr("192.0.2.3")]; !ok || len(p.rows.Nodes) != 3 {
			t.Errorf("the rows are %v, want the last change", p.rows.Nodes)
		}
		p.damage()
		time.Sleep(checkEvery)
		count("somebody else changed the rows", 1, 1)
		if len(p.rows.Nodes) != 3 {
			t.Errorf("the rows are %v a minute after somebody deleted them", p.rows.Nodes)
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
