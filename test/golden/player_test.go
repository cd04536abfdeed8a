package golden

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	gomaps "maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/render"
	"fairlead.io/fairlead/pkg/snapshot"
	"fairlead.io/fairlead/pkg/source/file"
)

// loadTimeout bounds a load, which takes the source some ten milliseconds.
const loadTimeout = 30 * time.Second

// backing is where the tables are stored.
type backing struct {
	tables  *reconcile.Tables
	grow    func(maps.Sizes) (*reconcile.Tables, error)
	barrier func() error
}

// player carries steps into tables: what an agent does, without the programs.
type player struct {
	t          *testing.T
	story      *story
	backing    *backing
	reconciler *reconcile.Reconciler
	source     *file.Source
	stop       func()
	work       string // has a directory for every load
	link       string // symlink to the latest
	loads      int
}

func play(t *testing.T, s *story, b *backing) *player {
	t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	store := model.NewStore("node-a")
	store.SetLocal(slices.Values([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}))
	store.SetBroadcasts(slices.Values([]netip.Addr{netip.MustParseAddr("192.0.2.0"), netip.MustParseAddr("192.0.2.255"), netip.MustParseAddr("2001:db8::")}))
	r, err := reconcile.New(reconcile.Config{
		Store: store, Tables: b.tables, Facts: s.facts, Barrier: b.barrier, Grow: b.grow, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	link := filepath.Join(work, "manifests")
	return &player{
		t: t, story: s, backing: b, reconciler: r, source: file.New(link, store, log), stop: func() {}, work: work, link: link,
	}
}

// to moves the directory to a step, and returns the dump of the maps and the problems of objects
// and files.
func (p *player) to(s *step) string {
	p.t.Helper()
	status := p.load(s)
	if err := p.reconciler.Drain(); err != nil {
		p.t.Fatalf("step %s: %v", s.name, err)
	}
	tables := p.backing.tables
	taken, err := snapshot.Take(snapshot.Tables{
		Frontends: tables.Frontends, Ranges: tables.Ranges, Services: tables.Services, Slots: tables.Slots, Backends: tables.Backends, Names: tables.Names,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	if found := snapshot.Check(taken); len(found) > 0 {
		p.t.Errorf("step %s: the maps are not sound: %v", s.name, found)
	}
	p.compare(s, taken)
	var out strings.Builder
	if err := render.All(&out, taken); err != nil {
		p.t.Fatal(err)
	}
	problems := p.reconciler.Problems()
	for _, key := range slices.SortedFunc(gomaps.Keys(problems), model.Key.Compare) {
		for _, problem := range problems[key] {
			fmt.Fprintf(&out, "problem of %s: %s: %s\n", key, problem.Reason, problem.Message)
		}
	}
	if len(status.Errors) > 0 && !p.story.remembers {
		p.t.Errorf("step %s: a story of files that are right has %v", s.name, status.Errors)
	}
	for i := range status.Errors {
		fmt.Fprintf(&out, "error of %v\n", &status.Errors[i])
	}
	return out.String()
}

// end removes all manifests, and checks that nothing is left.
func (p *player) end() {
	p.t.Helper()
	if left := p.to(&step{name: "end"}); left != "" {
		p.t.Errorf("without any manifest there is still\n%s", left)
	}
	if stats := p.reconciler.Stats(); stats.Backends != 0 {
		p.t.Errorf("without any manifest %d backends are still counted", stats.Backends)
	}
}

// compare checks that the reconciler's counts match the maps and that it has nothing left to do.
func (p *player) compare(s *step, snapshot *snapshot.Snapshot) {
	p.t.Helper()
	frontends := 0
	for i := range snapshot.Services {
		frontends += len(snapshot.Services[i].Frontends)
	}
	stats := p.reconciler.Stats()
	if stats.Services != len(snapshot.Services) || stats.Frontends != frontends || stats.Pending != 0 || stats.Errors != 0 {
		p.t.Errorf("step %s: the maps have %d services and %d frontends, the reconciler says %+v",
			s.name, len(snapshot.Services), frontends, stats)
	}
}

// load replaces the whole directory at once, as an update of a mounted ConfigMap does, and waits
// until it is loaded.
func (p *player) load(s *step) file.Status {
	p.t.Helper()
	p.loads++
	dir := filepath.Join(p.work, fmt.Sprint(p.loads))
	p.must(os.Mkdir(dir, 0o755))
	for name, data := range s.manifests {
		p.must(os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	// Every load has something new in it, so that the wait below has something to wait for.
	mark := fmt.Appendf(nil, "{apiVersion: v1, kind: Namespace, metadata: {name: load-%d}}\n", p.loads)
	p.must(os.WriteFile(filepath.Join(dir, "mark.yaml"), mark, 0o644))
	before := p.source.Status().LastReload
	p.must(os.Symlink(dir, p.link+".new"))
	p.must(os.Rename(p.link+".new", p.link))
	if p.loads == 1 {
		p.start()
	}
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	deadline := time.After(loadTimeout)
	for {
		if status := p.source.Status(); !status.LastReload.Equal(before) {
			return status
		}
		select {
		case <-look.C:
		case <-deadline:
			p.t.Fatalf("step %s: not loaded in %v: %+v", s.name, loadTimeout, p.source.Status())
		}
	}
}

// start runs the source until stop is called or the test ends.
func (p *player) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.source.Run(ctx) }()
	stopped := false
	p.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			p.t.Errorf("run the source: %v", err)
		}
	}
	p.t.Cleanup(func() { p.stop() })
}

func (p *player) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}
