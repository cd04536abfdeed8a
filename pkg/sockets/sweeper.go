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
	// every is how long a Sweeper waits when nobody wakes it. A listing may miss a socket that moves meanwhile, and a
	// program that was overtaken may write its record late.
	every = time.Minute
	// firstWait gathers what leaves at the same time: endpoints go one by one.
	firstWait = 100 * time.Millisecond
	// secondWait is how long a backend has to stay away before it is believed: an object that is replaced is deleted
	// first, and a record may be read while it is written.
	secondWait = 200 * time.Millisecond
	// idle is how many times as long as its looks took a Sweeper rests after them, however much leaves.
	idle = 10
)

// Namespace is the sockets of one network namespace; a Diag is one.
type Namespace interface {
	// Check returns an error if Each or Destroy cannot work for a protocol.
	Check(protocol model.Protocol) error
	// Each calls f for the connected sockets of a protocol.
	Each(protocol model.Protocol, f func(Socket)) error
	// Destroy aborts a socket if it is as Each gave it, and reports whether it was.
	Destroy(s Socket) (bool, error)
	Close() error
}

// Records are what the programs keep of the sockets that they connected, of all network namespaces.
type Records interface {
	// Each calls f for every record that hangs on its socket, with that one's cookie.
	Each(f func(cookie uint64, record rows.SockPeer)) error
	// Row returns the record that a TCP socket has elsewhere, which counts before one that hangs on it.
	Row(cookie uint64) (record rows.SockPeer, ok bool, err error)
}

// Config is what a Sweeper needs.
type Config struct {
	Records   Records
	Protocols []model.Protocol // whose sockets are aborted
	// Stale reports of each peer whether its backend is gone for good.
	Stale func(ctx context.Context, peers []rows.Peer) ([]bool, error)
	Log   *slog.Logger
}

// Stats are the counts that tell how a Sweeper is doing.
type Stats struct {
	Looks     uint64
	Errors    uint64
	Took      time.Duration             // all looks together, less the judging
	Aborted   map[model.Protocol]uint64 // sockets
	LastError string                    // of the last look; empty if it did its job
}

// Sweeper aborts the sockets whose backend is gone for good. A socket is judged twice, with a pause, and has to be as it
// was: the same peer, and the same record. One without a record is not ours, whomever it is connected to, and neither is
// one that was connected to something else since.
type Sweeper struct {
	cfg  Config
	wake chan struct{}

	suspects map[sighting]struct{} // of the look before
	tired    time.Duration         // what the looks took after which there was no rest yet

	looking sync.Mutex // guards the namespaces; a look holds it for as long as it is in one
	spaces  map[string]*space

	mu    sync.Mutex // guards the counts, which must be there for whoever asks
	stats Stats
}

type space struct {
	Namespace
	checked map[model.Protocol]bool
}

// sighting is a socket that is connected to the backend that it got from a program.
type sighting struct {
	space  string
	socket Socket
	peer   rows.Peer
}

// NewSweeper returns a Sweeper that looks nowhere yet.
func NewSweeper(cfg Config) *Sweeper {
	return &Sweeper{
		cfg: cfg, wake: make(chan struct{}, 1), suspects: map[sighting]struct{}{}, spaces: map[string]*space{},
		stats: Stats{Aborted: map[model.Protocol]uint64{}},
	}
}

// Add makes the Sweeper look into a network namespace too, which it takes over: a second one of that name takes the place
// of the first. It works for any namespace that somebody opened a sock_diag socket in; see Take.
func (s *Sweeper) Add(name string, ns Namespace) error {
	s.looking.Lock()
	defer s.looking.Unlock()
	err := s.remove(name)
	s.spaces[name] = &space{ns, map[model.Protocol]bool{}}
	return err
}

// Remove ends what Add began. It waits for the look that is under way there.
func (s *Sweeper) Remove(name string) error {
	s.looking.Lock()
	defer s.looking.Unlock()
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

// Close lets go of every network namespace.
func (s *Sweeper) Close() error {
	s.looking.Lock()
	defer s.looking.Unlock()
	var errs []error
	for _, name := range slices.Collect(maps.Keys(s.spaces)) {
		errs = append(errs, s.remove(name))
	}
	return errors.Join(errs...)
}

// Left makes the Sweeper look soon, since backends of a protocol may be gone. It never blocks.
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

// Run looks whenever something left, and now and then, until the context ends.
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

// sweep looks twice, and on until there is nobody left who was suspected only once. Who is suspected first must not wait
// for a rest; it comes before any further look, of this sweep or the next.
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
			s.drain() // what left until now is seen by both looks
		}
		fresh := s.look(ctx)
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

// rest returns how long the Sweeper has to rest now.
func (s *Sweeper) rest() time.Duration {
	tired := s.tired
	s.tired = 0
	return idle * tired
}

// look aborts what is stale and was so at the look before, and reports whether there is more that is stale.
func (s *Sweeper) look(ctx context.Context) (fresh bool) {
	start := time.Now()
	seen, err := s.list()
	took := time.Since(start)
	stale, staleErr := s.stale(ctx, seen) // may have to wait for somebody who is busy
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

// list returns the sockets that are connected to a backend that they got from a program. With an error it is what could
// be listed.
func (s *Sweeper) list() (seen []sighting, first error) {
	// The records come first: a socket that connects meanwhile has none, or one that does not fit, and is left alone.
	records := map[uint64]rows.SockPeer{}
	if err := s.cfg.Records.Each(func(cookie uint64, record rows.SockPeer) { records[cookie] = record }); err != nil {
		return nil, err
	}
	s.looking.Lock()
	spaces := slices.Sorted(maps.Keys(s.spaces))
	s.looking.Unlock()
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
					seen = append(seen, sighting{in, socket, rows.PeerOf(record, protocol)})
				}
			}))
		}
	}
	return seen, first
}

func (s *Sweeper) listIn(name string, protocol model.Protocol, f func(Socket)) error {
	s.looking.Lock()
	defer s.looking.Unlock()
	ns, ok := s.spaces[name]
	if !ok {
		return nil // removed since
	}
	if !ns.checked[protocol] {
		if err := ns.Check(protocol); err != nil {
			return err
		}
		ns.checked[protocol] = true
	}
	return ns.Each(protocol, f)
}

// stale returns those whose backend is gone.
func (s *Sweeper) stale(ctx context.Context, seen []sighting) ([]sighting, error) {
	var peers []rows.Peer
	at := map[rows.Peer]int{}
	for i := range seen {
		if _, ok := at[seen[i].peer]; !ok {
			at[seen[i].peer] = len(peers)
			peers = append(peers, seen[i].peer)
		}
	}
	if len(peers) == 0 {
		return nil, nil
	}
	gone, err := s.cfg.Stale(ctx, peers)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(seen, func(s sighting) bool { return !gone[at[s.peer]] }), nil
}

func (s *Sweeper) destroy(at sighting) (bool, error) {
	s.looking.Lock()
	defer s.looking.Unlock()
	ns, ok := s.spaces[at.space]
	if !ok {
		return false, nil
	}
	return ns.Destroy(at.socket)
}

// account counts a look, and tells what it did. What is wrong is told when it begins.
func (s *Sweeper) account(took time.Duration, aborted map[model.Protocol]uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Looks++
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
		s.cfg.Log.Warn("sockets whose backend is gone may be left waiting", "error", err)
	}
	s.stats.LastError = text
}
