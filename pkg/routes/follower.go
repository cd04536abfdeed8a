// Package routes follows what the ways of packets depend on, so that flows ask the kernel for theirs only after a change:
// routes, rules, next hops, devices, addresses and neighbours.
package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// beat is how often it is said that changes are followed, and how soon one is told when many come at a time.
	beat = 250 * time.Millisecond
	// apart is the least time between two of them that are told: more than a few in a tick would say nothing more.
	apart = 50 * time.Millisecond
	// retry is how long it waits after a failure.
	retry = time.Second
)

// Ways tells the programs of changes.
type Ways interface {
	// Changed says that there was a change, after the kernel has it.
	Changed() error
	// Vouch says that all changes up to now were told, and that those of the next seconds will be.
	Vouch() error
	// Revoke says that they will not be.
	Revoke() error
}

// Stats is what a follower has done so far.
type Stats struct {
	Following   bool
	Changes     uint64 // that were told to the programs; many at a time count as one
	Flaps       uint64 // neighbours that were heard of, without a change of what packets get
	Errors      uint64 // times that changes were not followed
	LastError   string // why they are not, while they are not
	LastChange  time.Time
	Neighbours  int // that are known
	IsOverflown bool
}

// Config is what a Follower needs.
type Config struct {
	Ways Ways
	Log  *slog.Logger
	// Room is how many neighbours are remembered; 0 is for as many as a kernel that was given a large table has.
	Room int
}

// Follower follows changes in the network namespace in which it runs.
type Follower struct {
	ways Ways
	log  *slog.Logger
	room int

	mu    sync.Mutex
	stats Stats
}

// mostNeighbours is the default of Config.Room.
const mostNeighbours = 1 << 16

// NewFollower returns a follower; it does nothing before Run.
func NewFollower(c Config) *Follower {
	if c.Room == 0 {
		c.Room = mostNeighbours
	}
	return &Follower{ways: c.Ways, log: c.Log, room: c.Room}
}

// Stats returns what was done so far.
func (f *Follower) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

func (f *Follower) note(change func(*Stats)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.stats)
}

// Run follows until the context ends. While it cannot, flows ask for their way themselves, so that is no reason to end.
func (f *Follower) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := f.follow(ctx)
		if err = errors.Join(err, f.ways.Revoke()); err == nil {
			continue
		}
		f.note(func(s *Stats) { s.Following, s.LastError, s.Errors = false, err.Error(), s.Errors+1 })
		f.log.Warn("following changes of routes: every flow asks for its way once a second until that works again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	f.note(func(s *Stats) { s.Following = false })
	return nil
}

// follow tells of changes until the context ends or something fails. First of all there is one, since nobody followed
// before: it comes after the subscription, so that nothing is missed in between.
func (f *Follower) follow(ctx context.Context) error {
	socket, err := subscribe()
	if err != nil {
		return err
	}
	defer socket.Close()
	known, err := listNeighbours(f.room)
	if err != nil {
		return err
	}
	w := watcher{Follower: f, socket: socket, known: known, changed: true}
	for ctx.Err() == nil {
		if err := w.turn(); err != nil {
			return err
		}
	}
	return nil
}

// watcher is one subscription.
type watcher struct {
	*Follower
	socket  *socket
	known   *neighbours
	changed bool      // and not told yet
	told    time.Time // the last time
	vouched time.Time
}

// turn hears what there is, tells of it, and vouches if it has heard all: else there may be a change among the rest.
func (w *watcher) turn() error {
	messages, err := w.socket.receive()
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("hear of changes of routes: %w", err)
	}
	flaps := uint64(0)
	for i := range messages {
		switch w.known.hear(&messages[i]) {
		case changed:
			w.changed = true
		case flapped:
			flaps++
		}
	}
	isAll := errors.Is(err, unix.EAGAIN)
	if w.changed && time.Since(w.told) >= apart {
		if err := w.ways.Changed(); err != nil {
			return err
		}
		w.changed, w.told = false, time.Now()
		w.note(func(s *Stats) { s.Changes, s.LastChange = s.Changes+1, w.told })
	}
	if isAll && !w.changed && time.Since(w.vouched) >= beat/2 {
		if err := w.ways.Vouch(); err != nil {
			return err
		}
		w.vouched = time.Now()
	}
	w.note(func(s *Stats) {
		s.Flaps += flaps
		s.Neighbours, s.IsOverflown = len(w.known.list), w.known.partial
		if isAll && !w.changed {
			s.Following, s.LastError = true, ""
		}
	})
	if !isAll {
		return nil
	}
	return w.socket.wait(w.rest())
}

// rest is how long there is nothing to do unless something is heard.
func (w *watcher) rest() time.Duration {
	if w.changed {
		return max(apart-time.Since(w.told), time.Millisecond)
	}
	return beat
}
