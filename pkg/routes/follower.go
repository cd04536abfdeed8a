// Package routes follows everything that the routes of packets depend on, so that flows look up
// theirs in the kernel only after a change: routes, rules, next hops, devices, addresses and
// neighbors.
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
	// beat is how long the follower waits for a change before it renews the lease.
	beat = 250 * time.Millisecond
	// apart is the least time between two calls of Changed: more than a few of them in one tick of
	// the programs would say nothing new.
	apart = 50 * time.Millisecond
	// retry is the pause after a failure.
	retry = time.Second
)

// Lease tells the programs of changes, and until when they may rely on hearing of them.
type Lease interface {
	// Changed says that the kernel has made a change.
	Changed() error
	// Renew says that all changes so far were reported, and that those of the next seconds will be.
	Renew() error
	// End takes that back.
	End() error
}

// Config is what a Follower needs.
type Config struct {
	Lease Lease
	Log   *slog.Logger
	// Room is how many neighbors are remembered. 0 is as many as a kernel with a large neighbor
	// table has.
	Room int
}

// Follower follows changes in the network namespace in which it runs.
type Follower struct {
	lease Lease
	log   *slog.Logger
	room  int

	mu     sync.Mutex
	status Status
}

// mostNeighbors is the default of Config.Room.
const mostNeighbors = 1 << 16

// NewFollower returns a follower that does nothing until Run.
func NewFollower(c Config) *Follower {
	if c.Room == 0 {
		c.Room = mostNeighbors
	}
	return &Follower{lease: c.Lease, log: c.Log, room: c.Room}
}

// Status returns what was done so far.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *Follower) note(change func(*Status)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.status)
}

// Run follows changes until the context ends. It goes on after a failure: while it cannot follow,
// flows look up their routes themselves.
func (f *Follower) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := f.follow(ctx)
		if err = errors.Join(err, f.lease.End()); err == nil {
			continue
		}
		f.note(func(s *Status) { s.Following, s.Error, s.Errors = false, err.Error(), s.Errors+1 })
		f.log.Warn("cannot follow route changes; every flow looks up its route once a second until that works again",
			"error", err)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	f.note(func(s *Status) { s.Following = false })
	return nil
}

// follow reports changes until the context ends or something fails. It begins by reporting one,
// since nobody followed before. That comes after the subscription, so that nothing is missed in
// between.
func (f *Follower) follow(ctx context.Context) error {
	socket, err := subscribe()
	if err != nil {
		return err
	}
	defer socket.Close()
	known, err := listNeighbors(f.room)
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
	socket     *socket
	known      *neighbors
	changed    bool      // and not reported yet
	lastReport time.Time // last call of Changed
	renewed    time.Time
}

// turn receives messages, reports a change, and renews the lease if no messages are left, since those could
// hold another change.
func (w *watcher) turn() error {
	messages, err := w.socket.receive()
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("receive route changes: %w", err)
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
	if w.changed && time.Since(w.lastReport) >= apart {
		if err := w.lease.Changed(); err != nil {
			return err
		}
		w.changed, w.lastReport = false, time.Now()
		w.note(func(s *Status) { s.Changes, s.LastChange = s.Changes+1, w.lastReport })
	}
	if isAll && !w.changed && time.Since(w.renewed) >= beat/2 {
		if err := w.lease.Renew(); err != nil {
			return err
		}
		w.renewed = time.Now()
	}
	w.note(func(s *Status) {
		s.Flaps += flaps
		s.Neighbors, s.IsCrowded = len(w.known.list), w.known.partial
		if isAll && !w.changed {
			s.Following, s.Error = true, ""
		}
	})
	if !isAll {
		return nil
	}
	return w.socket.wait(w.rest())
}

// rest returns how long to wait for a message.
func (w *watcher) rest() time.Duration {
	if w.changed {
		return max(apart-time.Since(w.lastReport), time.Millisecond)
	}
	return beat
}
