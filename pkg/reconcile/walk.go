package reconcile

import (
	"fmt"

	"fairlead.io/fairlead/pkg/maps"
)

// foundRow is a row of svcs as it stands in the map.
type foundRow struct {
	key maps.SvcKey
	row maps.Svc
}

// walkRows is how many rows a walk hands over at a time.
const walkRows = 1024

// walk lists the frontends beside the Reconciler, which goes on writing them: what it sees is only a hint.
type walk struct {
	rows chan []foundRow // each valid until the next is received; closed at the end
	quit chan struct{}
	err  error // once rows is closed
}

func startWalk(frontends Frontends) *walk {
	w := &walk{rows: make(chan []foundRow), quit: make(chan struct{})}
	go w.run(frontends)
	return w
}

func (w *walk) run(frontends Frontends) {
	defer close(w.rows)
	// Whoever receives one is done with the other.
	var buffers [2][]foundRow
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
	err := frontends.Each(func(key maps.SvcKey, row maps.Svc) {
		if stopped {
			return
		}
		buffers[at] = append(buffers[at], foundRow{key, row})
		if len(buffers[at]) == walkRows {
			hand()
		}
	})
	hand()
	if err != nil {
		w.err = fmt.Errorf("list the frontends: %w", err)
	}
}

// stopWalk ends a walk that is under way, since its map is about to go. The check begins another.
func (r *Reconciler) stopWalk() {
	c := r.checks.current
	if c == nil || c.walk == nil {
		return
	}
	close(c.walk.quit)
	for range c.walk.rows { // until it is closed
	}
	c.walk = nil
}
