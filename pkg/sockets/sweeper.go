package sockets

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	rows "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	// every is how often a Sweeper looks if nothing wakes it: a listing may miss a socket that
	// changes meanwhile, and a program that was preempted may write its record late.
	every = time.Minute
	// firstWait collects backends that leave at the same time: endpoints are removed one by one.
	firstWait = 100 * time.Millisecond
	// secondWait is how long a backend has to stay away to count as gone: an object that is
	// replaced is deleted first, and a record may be read while it is being written.
	secondWait = 200 * time.Millisecond
	// idle limits the load: after looks that took a time t, a Sweeper rests for idle*t, however
	// many backends leave.
	idle = 10
)

// Namespace gives access to the sockets of one network namespace. Diag implements it.
type Namespace interface {
	// Check returns an error if Each or Destroy cannot work for a protocol.
	Check(protocol model.Protocol) error
	// Each calls f for the connected sockets of a protocol.
	Each(protocol model.Protocol, f func(Socket)) error
	// Destroy aborts a socket if it still is as Each listed it, and reports whether it did.
	Destroy(s Socket) (bool, error)
	Close() error
}

// Records gives access to what the programs recorded about the sockets they connected, in all
// network namespaces.
type Records interface {
	// Each calls f for every record in socket storage, with the cookie of its socket.
	Each(f func(cookie uint64, record rows.SockOrigin)) error
	// Row returns the record that a TCP socket has in a map. It takes precedence over one in socket
	// storage.
	Row(cookie uint64) (record rows.SockOrigin, ok bool, err error)
}

// Config is what a Sweeper needs.
type Config struct {
	Records   Records
	Protocols []model.Protocol // whose sockets are aborted
	// Stale reports for each origin whether its backend is gone for good.
	Stale func(ctx context.Context, origins []rows.Origin) ([]bool, error)
	Log   *slog.Logger
}

// Stats counts what a Sweeper has done.
type Stats struct {
	Scans     uint64
	Errors    uint64
	Took      time.Duration             // by all looks, without calls of Stale
	Aborted   map[model.Protocol]uint64 // sockets
	LastError string                    // of the last look; empty if it succeeded
}

// Sweeper aborts the sockets whose backend is gone for good. It judges a socket twice, with a pause
// between, and aborts it only if peer and record were the same both times. It leaves alone a socket
// without a record, whatever the peer, and one that has connected elsewhere since.
type Sweeper struct {
	cfg  Config
	wake chan struct{}

	suspects map[sighting]struct{} // stale sockets of the previous look
	tired    time.Duration         // duration of the looks since the last rest

	listing sync.Mutex // guards spaces; held while a namespace is being listed or changed
	spaces  map[string]*space

	mu    sync.Mutex // guards stats, so that Stats never waits for a look
	stats Stats
}

type space struct {
	Namespace
	checked map[model.Protocol]bool
}

// sighting is a socket that is still connected to the backend a program chose for it.
type sighting struct {
	space  string
	socket Socket
	origin rows.Origin
}

// NewSweeper returns a Sweeper that has no namespaces yet.
func NewSweeper(cfg Config) *Sweeper {
	return &Sweeper{
		cfg: cfg, wake: make(chan struct{}, 1), suspects: map[sighting]struct{}{}, spaces: map[string]*space{},
		stats: Stats{Aborted: map[model.Protocol]uint64{}},
	}
}

// Add makes the Sweeper cover another network namespace and takes ownership of it. It replaces a
// namespace of the same name. Any namespace works in which a process opened a sock_diag socket; see
// Take.
func (s *Sweeper) Add(name string, ns Namespace) error {
	s.listing.Lock()
	defer s.listing.Unlock()
	err := s.remove(name)
	s.spaces[name] = &space{ns, map[model.Protocol]bool{}}
	return err
}

// Remove closes the namespace and stops covering it. It waits for a look into it to end.
func (s *Sweeper) Remove(name string) error {
	s.listing.Lock()
	defer s.listing.Unlock()
	return s.remove(name)
}

func (s *Sweeper) remove(name string) error {
	ns, ok := s.spaces[name]
	if !ok {
		return nil
	}
	delete(s.spaces, name)
	if err := ns.Close(); err != nil {
		return fmt.Errorf("leave network namespace %s: %w", name, err)
	}
	return nil
}

// Close closes all namespaces.
func (s *Sweeper) Close() error {
	s.listing.Lock()
	defer s.listing.Unlock()
	var errs []error
	for _, name := range slices.Collect(maps.Keys(s.spaces)) {
		errs = append(errs, s.remove(name))
	}
	return errors.Join(errs...)
}

// Left tells the Sweeper that backends of a protocol may be gone, so that it looks soon. It never
// blocks.
func (s *Sweeper) Left(protocol model.Protocol) {
	if !slices.Contains(s.cfg.Protocols, protocol) {
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Stats returns the counts.
func (s *Sweeper) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Aborted = maps.Clone(stats.Aborted)
	return stats
}

// Run looks after every call of Left, and at least every minute, until the context ends.
func (s *Sweeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-ticker.C:
		}
		s.sweep(ctx)
	}
}

// sweep looks twice, and goes on until no socket is left that was found stale only once. Newly
// found sockets do not wait for a rest; the rest comes before any further look, of this sweep or
// the next.
func (s *Sweeper) sweep(ctx context.Context) {
	clear(s.suspects)
	wait := max(firstWait, s.rest())
	for look := 0; ; look++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if look == 0 {
			s.drain() // both looks cover everything that left until now
		}
		fresh := s.abortStale(ctx)
		if look > 0 && !fresh {
			return
		}
		wait = secondWait
		if look > 0 {
			wait = max(wait, s.rest())
		}
	}
}

func (s *Sweeper) drain() {
	select {
	case <-s.wake:
	default:
	}
}

// rest returns how long the Sweeper has to rest before its next look.
func (s *Sweeper) rest() time.Duration {
	tired := s.tired
	s.tired = 0
	return idle * tired
}

// abortStale aborts the sockets that are stale now and were at the previous look, and reports whether it
// found further stale ones.
func (s *Sweeper) abortStale(ctx context.Context) (fresh bool) {
	start := time.Now()
	seen, err := s.list()
	took := time.Since(start)
	stale, staleErr := s.stale(ctx, seen) // may wait for the reconciler
	start = time.Now()
	suspects := map[sighting]struct{}{}
	aborted := map[model.Protocol]uint64{}
	var abortErr error
	for _, at := range stale {
		suspects[at] = struct{}{}
		if _, before := s.suspects[at]; !before {
			fresh = true
			continue
		}
		done, err := s.destroy(at)
		abortErr = cmp.Or(abortErr, err)
		if done {
			aborted[at.socket.Protocol]++
		}
	}
	took += time.Since(start)
	s.suspects, s.tired = suspects, s.tired+took
	if ctx.Err() == nil {
		s.account(took, aborted, cmp.Or(err, staleErr, abortErr))
	}
	return fresh
}

// list returns the sockets that are connected to the backend a program chose for them. If it
// returns an error, the list is incomplete.
func (s *Sweeper) list() (seen []sighting, first error) {
	// Read the records first: a socket that connects meanwhile has no record or one that doesn't
	// match, and is left alone.
	records := map[uint64]rows.SockOrigin{}
	if err := s.cfg.Records.Each(func(cookie uint64, record rows.SockOrigin) { records[cookie] = record }); err != nil {
		return nil, err
	}
	s.listing.Lock()
	spaces := slices.Sorted(maps.Keys(s.spaces))
	s.listing.Unlock()
	for _, protocol := range s.cfg.Protocols {
		if protocol != model.TCP && len(records) == 0 {
			continue
		}
		for _, in := range spaces {
			first = cmp.Or(first, s.listIn(in, protocol, func(socket Socket) {
				record, ok := records[socket.Cookie()]
				if protocol == model.TCP {
					row, better, err := s.cfg.Records.Row(socket.Cookie())
					if first = cmp.Or(first, err); better {
						record, ok = row, true
					}
				}
				if addr, port := socket.Remote(); ok && addr == record.Backend && port == record.BackendPort {
					seen = append(seen, sighting{in, socket, rows.OriginOf(record, protocol)})
				}
			}))
		}
	}
	return seen, first
}

func (s *Sweeper) listIn(name string, protocol model.Protocol, f func(Socket)) error {
	s.listing.Lock()
	defer s.listing.Unlock()
	ns, ok := s.spaces[name]
	if !ok {
		return nil // removed meanwhile
	}
	if !ns.checked[protocol] {
		if err := ns.Check(protocol); err != nil {
			return err
		}
		ns.checked[protocol] = true
	}
	return ns.Each(protocol, f)
}

// stale returns the sightings whose backend is gone.
func (s *Sweeper) stale(ctx context.Context, seen []sighting) ([]sighting, error) {
	var origins []rows.Origin
	at := map[rows.Origin]int{}
	for i := range seen {
		if _, ok := at[seen[i].origin]; !ok {
			at[seen[i].origin] = len(origins)
			origins = append(origins, seen[i].origin)
		}
	}
	if len(origins) == 0 {
		return nil, nil
	}
	gone, err := s.cfg.Stale(ctx, origins)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(seen, func(s sighting) bool { return !gone[at[s.origin]] }), nil
}

func (s *Sweeper) destroy(at sighting) (bool, error) {
	s.listing.Lock()
	defer s.listing.Unlock()
	ns, ok := s.spaces[at.space]
	if !ok {
		return false, nil
	}
	return ns.Destroy(at.socket)
}

// account adds a look to the counts and logs what it did. It logs an error once, when it first
// occurs.
func (s *Sweeper) account(took time.Duration, aborted map[model.Protocol]uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Scans++
	s.stats.Took += took
	for protocol, n := range aborted {
		s.stats.Aborted[protocol] += n
		s.cfg.Log.Info("aborted sockets whose backend is gone", "protocol", protocol.String(), "sockets", n, "took", took)
	}
	text := ""
	if err != nil {
		s.stats.Errors++
		text = err.Error()
	}
	if err != nil && text != s.stats.LastError {
		s.cfg.Log.Warn("cannot abort every socket whose backend is gone: trying again", "error", err)
	}
	s.stats.LastError = text
}
