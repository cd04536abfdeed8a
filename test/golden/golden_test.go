// Package golden tests the whole path from manifests to maps to text: each file in testdata is a
// story of a directory of manifests, step by step, with the dump of the maps after each step.
//
// A dump shows only what connections can notice, so it must not depend on how the maps got there:
// every story is also told backward, and every step alone.
package golden

import (
	"errors"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/test/rig"
)

var update = flag.Bool("update", false, "write what the maps say into testdata")

func stories(t *testing.T) []*story {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) < 60 {
		t.Fatalf("only %d stories", len(paths))
	}
	var all []*story
	for _, path := range paths {
		s, err := read(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}

// inMemory returns tables that start so small that most stories make them grow.
func inMemory(*testing.T) *backing {
	b := &backing{
		tables:  reconcile.NewMemory(maps.Sizes{Svcs: 1, Services: 2, Slots: 1, Backends: 1}),
		barrier: func() error { return nil },
	}
	b.grow = func(sizes maps.Sizes) (*reconcile.Tables, error) {
		b.tables = reconcile.GrowMemory(b.tables, sizes)
		return b.tables, nil
	}
	return b
}

// inMaps returns tables in kernel maps that no program reads and nobody pins.
func inMaps(t *testing.T) *backing {
	t.Helper()
	m, err := maps.Create(maps.MinSizes())
	if err != nil {
		t.Fatal(err)
	}
	tables, err := m.Tables()
	if err != nil {
		t.Fatal(errors.Join(err, m.Close()))
	}
	barrier, err := maps.NewBarrier()
	if err != nil {
		t.Fatal(errors.Join(err, tables.Close(), m.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(barrier.Close(), tables.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	return &backing{
		tables: &reconcile.Tables{
			Frontends: tables.Svcs, Ranges: tables.Ranges, Services: tables.Services, Slots: tables.Slots, Backends: tables.Backends, Names: tables.Names,
		},
		grow: func(maps.Sizes) (*reconcile.Tables, error) {
			return nil, errors.New("no story needs more than the smallest maps")
		},
		barrier: barrier.Wait,
	}
}

func TestStories(t *testing.T) {
	for _, s := range stories(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			if *update {
				p := play(t, s, inMemory(t))
				for i := range s.steps {
					s.record(i, p.to(&s.steps[i]))
				}
				if err := s.write(); err != nil {
					t.Fatal(err)
				}
			}
			s.play(t, "forward", s.steps, inMemory(t))
			if s.remembers {
				return
			}
			backward := slices.Clone(s.steps)
			slices.Reverse(backward)
			s.play(t, "backward", backward, inMemory(t))
			for i := range s.steps {
				s.play(t, fmt.Sprintf("step %s alone", s.steps[i].name), s.steps[i:i+1], inMemory(t))
			}
		})
	}
}

// TestStoriesOnRealMaps plays the same stories on the kernel's maps.
func TestStoriesOnRealMaps(t *testing.T) {
	rig.Root(t)
	for _, s := range stories(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.play(t, "forward", s.steps, inMaps(t))
		})
	}
}

// play plays steps of the story and compares each dump with the expected one.
func (s *story) play(t *testing.T, how string, steps []step, b *backing) {
	t.Helper()
	p := play(t, s, b)
	for i := range steps {
		got := p.to(&steps[i])
		if diff := gocmp.Diff(strings.Split(steps[i].want, "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("%s, step %s (-want +got):\n%s", how, steps[i].name, diff)
		}
	}
	p.end()
	p.stop()
}
