// Package golden holds the whole way from manifests to maps to texts: each file in testdata is a story of a directory
// of manifests, step by step, with the dump of the maps after each step.
package golden

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"fairlead.io/fairlead/pkg/lb"
	fmaps "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/source/file"
	"fairlead.io/fairlead/test/rig"
)

var update = flag.Bool("update", false, "write what the maps say into testdata")

// story is one file of testdata. Its comment explains it and may end in a line of options, "facts: zone=a ...".
type story struct {
	archive *txtar.Archive
	node    *model.Node
	facts   lb.Facts
	steps   []step
}

// step is the whole content of the directory at one time, and what is to be in the maps then.
type step struct {
	name      string
	manifests map[string][]byte
	want      string
}

func read(t *testing.T, path string) *story {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &story{archive: archive, facts: lb.Facts{ExternalIPs: lb.ExternalIPsAll}}
	for line := range strings.Lines(string(archive.Comment)) {
		options, ok := strings.CutPrefix(strings.TrimSpace(line), "facts: ")
		for _, option := range strings.Fields(options) {
			if !ok {
				continue
			}
			name, value, _ := strings.Cut(option, "=")
			switch name {
			case "external-ips":
				s.facts.ExternalIPs, err = lb.ParseExternalIPs(value)
			case "algorithm":
				s.facts.Algorithm, err = lb.ParseAlgorithm(value)
			default:
				err = fmt.Errorf("unknown fact %q", name)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, f := range archive.Files {
		name, rest, ok := strings.Cut(f.Name, "/")
		if !ok {
			t.Fatalf("%s: want STEP/FILE", f.Name)
		}
		if len(s.steps) == 0 || s.steps[len(s.steps)-1].name != name {
			s.steps = append(s.steps, step{name: name, manifests: map[string][]byte{}})
		}
		last := &s.steps[len(s.steps)-1]
		if rest == "dump" {
			last.want = string(f.Data)
		} else {
			last.manifests[rest] = f.Data
		}
	}
	return s
}

// player carries steps into tables.
type player struct {
	t          *testing.T
	store      *model.Store
	tables     *reconcile.Tables
	reconciler *reconcile.Reconciler
}

func play(t *testing.T, s *story, tables *reconcile.Tables, barrier func() error, grow func(fmaps.Sizes) (*reconcile.Tables, error)) *player {
	t.Helper()
	p := &player{t: t, store: model.NewStore("node-a"), tables: tables}
	var err error
	p.reconciler, err = reconcile.New(reconcile.Config{
		Store: p.store, Tables: tables, Facts: s.facts, Barrier: barrier, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Grow: func(sizes fmaps.Sizes) (*reconcile.Tables, error) {
			grown, err := grow(sizes)
			p.tables = grown
			return grown, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// to brings the directory to a step and returns what the maps say then, and what is wrong with which object.
func (p *player) to(dir string, s step) string {
	p.t.Helper()
	for _, old := range glob(p.t, filepath.Join(dir, "*")) {
		if s.manifests[filepath.Base(old)] == nil {
			if err := os.Remove(old); err != nil {
				p.t.Fatal(err)
			}
		}
	}
	for name, data := range s.manifests {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
	p.load(dir)
	if err := p.reconciler.Settle(); err != nil {
		p.t.Fatalf("step %s: %v", s.name, err)
	}
	tables := observe.Tables{
		Frontends: p.tables.Frontends, Services: p.tables.Services, Slots: p.tables.Slots, Backends: p.tables.Backends, Names: p.tables.Names,
	}
	snapshot, err := observe.Take(tables)
	if err != nil {
		p.t.Fatal(err)
	}
	if found := observe.Check(snapshot); len(found) > 0 {
		p.t.Errorf("step %s: the maps are not sound: %v", s.name, found)
	}
	var out bytes.Buffer
	if err := observe.DumpAll(&out, snapshot); err != nil {
		p.t.Fatal(err)
	}
	problems := p.reconciler.Problems()
	for _, key := range slices.SortedFunc(maps.Keys(problems), model.Key.Compare) {
		for _, problem := range problems[key] {
			fmt.Fprintf(&out, "problem of %s: %s: %s\n", key, problem.Reason, problem.Message)
		}
	}
	return out.String()
}

// load reads the directory as an agent does that starts on it.
func (p *player) load(dir string) {
	p.t.Helper()
	source := file.New(dir, p.store, slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx) }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		status := source.Status()
		if len(status.Errors) > 0 {
			p.t.Fatalf("%s: %v", dir, status.Errors)
		}
		if status.Synced {
			break
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s: not loaded in 10 s: %+v", dir, status)
		}
	}
	cancel()
	if err := <-done; err != nil {
		p.t.Fatal(err)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func small() (*reconcile.Tables, func() error, func(fmaps.Sizes) (*reconcile.Tables, error)) {
	tables := reconcile.NewMemory(fmaps.Sizes{Svcs: 2, Services: 2, Slots: 4, Backends: 2})
	grow := func(sizes fmaps.Sizes) (*reconcile.Tables, error) {
		tables = reconcile.GrowMemory(tables, sizes)
		return tables, nil
	}
	return tables, func() error { return nil }, grow
}

func TestStories(t *testing.T) {
	paths := glob(t, "testdata/*.txtar")
	if len(paths) < 12 {
		t.Fatalf("only %d stories", len(paths))
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			s := read(t, path)
			tables, barrier, grow := small()
			p, dir := play(t, s, tables, barrier, grow), t.TempDir()
			for i, step := range s.steps {
				got := p.to(dir, step)
				if *update {
					s.record(i, got)
					continue
				}
				if diff := gocmp.Diff(step.want, got); diff != "" {
					t.Errorf("step %s (-want +got):\n%s", step.name, diff)
				}
				// Whatever came before, the maps are what the last manifests alone give.
				tables, barrier, grow := small()
				if alone := play(t, s, tables, barrier, grow).to(t.TempDir(), step); alone != got {
					t.Errorf("step %s depends on what came before (-alone +after):\n%s", step.name, gocmp.Diff(alone, got))
				}
			}
			if *update {
				if err := os.WriteFile(path, txtar.Format(s.archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// record puts a dump behind the manifests of its step.
func (s *story) record(i int, got string) {
	name := s.steps[i].name + "/dump"
	at := slices.IndexFunc(s.archive.Files, func(f txtar.File) bool { return f.Name == name })
	if at < 0 {
		last := 0
		for j, f := range s.archive.Files {
			if strings.HasPrefix(f.Name, s.steps[i].name+"/") {
				last = j + 1
			}
		}
		s.archive.Files = slices.Insert(s.archive.Files, last, txtar.File{Name: name})
		at = last
	}
	s.archive.Files[at].Data = []byte(got)
}

// TestStoriesOnRealMaps plays the same stories on the kernel's maps.
func TestStoriesOnRealMaps(t *testing.T) {
	rig.Root(t)
	barrier, err := fmaps.NewBarrier()
	if err != nil {
		t.Fatal(err)
	}
	defer barrier.Close()
	for _, path := range glob(t, "testdata/*.txtar") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			m, err := fmaps.Create(fmaps.MinSizes())
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			real, err := m.Tables()
			if err != nil {
				t.Fatal(err)
			}
			defer real.Close()
			s := read(t, path)
			p := play(t, s, &reconcile.Tables{
				Frontends: real.Svcs, Services: real.Services, Slots: real.Slots, Backends: real.Backends, Names: real.Names,
			}, barrier.Wait, func(fmaps.Sizes) (*reconcile.Tables, error) { return nil, fmt.Errorf("no story needs more than the smallest maps") })
			dir := t.TempDir()
			for _, step := range s.steps {
				if diff := gocmp.Diff(step.want, p.to(dir, step)); diff != "" {
					t.Errorf("step %s (-want +got):\n%s", step.name, diff)
				}
			}
		})
	}
}
