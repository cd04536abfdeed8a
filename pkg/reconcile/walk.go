package reconcile

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
)

// foundRow is a row of svcs as found in the map.
type foundRow struct {
	key maps.SvcKey
	row maps.Svc
}

// walkRows is how many rows a walk hands over at a time.
const walkRows = 1024

// eachRow calls f for every frontend.
func (t *Tables) eachRow(f func(foundRow)) error {
	return t.Frontends.Each(func(key maps.SvcKey, row maps.Svc) { f(foundRow{key, row}) })
}

// walk lists the rows of a map in a goroutine while the Reconciler goes on writing them. What it
// returns is only a hint.
type walk[T any] struct {
	rows chan []T // each slice is valid until the next is received; closed at the end
	quit chan struct{}
	err  error // valid once rows is closed
}

func startWalk[T any](each func(func(T)) error) *walk[T] {
	w := &walk[T]{rows: make(chan []T), quit: make(chan struct{})}
	go w.run(each)
	return w
}

func (w *walk[T]) run(each func(func(T)) error) {
	defer close(w.rows)
	// The receiver of one buffer is done with the other.
	var buffers [2][]T
	at, stopped := 0, false
	hand := func() {
		if stopped || len(buffers[at]) == 0 {
			return
		}
		select {
		case w.rows <- buffers[at]:
			at = 1 - at
			buffers[at] = buffers[at][:0]
		case <-w.quit:
			stopped = true
		}
	}
	err := each(func(row T) {
		if stopped {
			return
		}
		buffers[at] = append(buffers[at], row)
		if len(buffers[at]) == walkRows {
			hand()
		}
	})
	hand()
	if err != nil {
		w.err = fmt.Errorf("list rows: %w", err)
	}
}

// stop ends the walk. A nil walk is allowed.
func (w *walk[T]) stop() {
	if w == nil {
		return
	}
	close(w.quit)
	for range w.rows { // drain until it is closed
	}
}

// stopWalk ends a running walk whose map is about to be replaced. The check starts another.
func (v *verifier) stopWalk() {
	if c := v.current; c != nil {
		c.walk.stop()
		c.ranges.stop()
		c.walk, c.ranges = nil, nil
	}
}
