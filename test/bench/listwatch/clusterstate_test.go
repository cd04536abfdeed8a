package listwatch

import (
	"errors"
	"testing"
)

// A client that is further behind than the server remembers gets an error, never the wrong events.
func TestMemory(t *testing.T) {
	const memory = 4
	w := newClusterState(small(), memory)
	first := w.now()
	for n := range 10 {
		if err := w.change(Services, n); err != nil {
			t.Fatal(err)
		}
		for behind := range uint64(n + 2) {
			from := w.now() - behind
			events, last, _, err := w.since(from, 100)
			if behind > memory {
				if !errors.Is(err, errExpired) {
					t.Fatalf("%d events behind: have %d events and error %v, want that they expired", behind, len(events), err)
				}
				continue
			}
			if err != nil || uint64(len(events)) != behind || last != w.now() {
				t.Fatalf("%d events behind: have %d events up to %d and error %v", behind, len(events), last, err)
			}
			for i, e := range events {
				if want := from + 1 + uint64(i); e.after.revision != want || uint64(e.number) != want-first-1 {
					t.Fatalf("%d events behind: event %d is %+v, want the revision %d", behind, i, e, want)
				}
			}
			view, at, err := w.snapshot(Services, from)
			if err != nil || at != from {
				t.Fatalf("as it was %d events ago: have the revision %d and error %v", behind, at, err)
			}
			for i := range 10 {
				if changed := view.at(i).generation == 1; changed != (uint64(i) < from-first) {
					t.Fatalf("as it was %d events ago: service %d is %+v", behind, i, view.at(i))
				}
			}
		}
	}
	if events, last, _, err := w.since(w.now()-3, 2); err != nil || len(events) != 2 || last != w.now()-1 {
		t.Errorf("two of three: have %d up to %d of %d and error %v", len(events), last, w.now(), err)
	}
}
