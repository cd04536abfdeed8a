// Package sockmap lets two sockets of this node that converse hand each other their messages,
// bypassing TCP. Programs watch the connections that rules admit. The Sockmap puts suitable ones
// into a socket map, and takes them out again when they should use TCP. docs/design/socket-acceleration.md
// explains why that neither loses nor mixes up data, nor lets it pile up.
//
// Everything is pinned and keeps working while no agent runs. A socket leaves the map only when no
// data waits for it there, even when the feature is switched off or another version of the programs
// takes over: each version has maps of its own, and the former ones stay until they are empty.
package sockmap

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"fairlead.io/fairlead/pkg/bpf"
)

const (
	stageName = "next"
	// Connections that become suitable at about the same time are admitted together.
	admitEvery = 5 * time.Millisecond
	// The pause between sweeps for sockets whose other end has closed.
	restEvery = 30 * time.Second
	// The agent is not told when an operator calls Hold or Release, so it polls.
	askEvery = time.Second
)

// Dir returns the directory of the pins below a bpf filesystem.
func Dir(bpffs string) string { return filepath.Join(bpffs, "fairlead", "sockmap") }

// Config configures a Sockmap.
type Config struct {
	BPFFS  string // a mounted bpf filesystem
	Limits Limits
	Log    *slog.Logger

	tamper func(*ebpf.CollectionSpec) // lets tests break the programs
}

// Sockmap owns the pins. Run may be called once; the other methods may be called concurrently.
type Sockmap struct {
	// Differences are from TCP, beside those that Prove finds.
	Differences []string

	cfg Config

	mu    sync.Mutex
	now   *generation
	older []*generation
	on    bool
	rules map[Endpoint]Rules // set by SetRules
	own   map[Endpoint]Rules // of a check
	wake  chan struct{}      // wakes Run if sockets may have to leave

	checked Checked
}

// Open attaches the programs, or adopts those already attached if they are the same. No connection
// takes part before SetRules and Switch.
func Open(cfg Config) (s *Sockmap, err error) {
	if err := cfg.Limits.check(); err != nil {
		return nil, err
	}
	s = &Sockmap{cfg: cfg, wake: make(chan struct{}, 1)}
	root := Dir(cfg.BPFFS)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("create pin directory: %w", err)
	}
	dirs, err := generations(root, true)
	if err != nil {
		return nil, err
	}
	spec, name, err := cfg.programs()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, dir := range dirs {
		if err := s.take(dir, name, spec); err != nil {
			return s, err
		}
	}
	if s.now == nil {
		if s.now, err = create(root, s.free(root, name), spec, cfg); err != nil {
			return s, err
		}
	}
	if err := s.adoptHeld(); err != nil {
		return s, err
	}
	if s.now.isBlind() {
		cfg.Log.Warn("connections read by edge-triggered epoll use TCP, since the kernel does not show how they are read", "error", s.now.blind)
		s.Differences = []string{differsInEdges}
	}
	if err := s.adoptRules(); err != nil {
		return s, err
	}
	on, err := s.now.control(bpf.SockmapControlCONTROL_ON)
	s.on = on != 0
	s.note()
	return s, err
}

// take opens a generation of before, and adopts it if it is what is wanted, or else retires it.
func (s *Sockmap) take(dir, name string, spec *ebpf.CollectionSpec) error {
	g, err := open(dir)
	if err != nil {
		return err
	}
	if s.now == nil && strings.HasPrefix(filepath.Base(dir), name) && g.isWhole() {
		s.now = g
		if g.isBlind() {
			err = g.seeLate(spec)
		}
		return errors.Join(err, g.restoreHold(s.cfg.BPFFS))
	}
	s.older = append(s.older, g)
	if err := errors.Join(g.restoreHold(s.cfg.BPFFS), g.retire()); err != nil {
		return fmt.Errorf("retire %s: %w", dir, err)
	}
	return nil
}

// restoreHold makes the directory of a Hold by a version that told only the programs. It looks for the
// directory first, which Release removes after it has told the programs.
func (g *generation) restoreHold(bpffs string) error {
	held, err := isHeld(bpffs)
	if err != nil || held {
		return err
	}
	value, err := g.control(bpf.SockmapControlCONTROL_HELD)
	if err != nil || value == 0 {
		return err
	}
	return makeHeld(bpffs)
}

// adoptHeld makes the programs obey a Hold of before they were pinned. It repeats until they do,
// because the operator may change it meanwhile.
func (s *Sockmap) adoptHeld() error {
	for {
		held, err := isHeld(s.cfg.BPFFS)
		if err != nil {
			return fmt.Errorf("see whether an operator makes all connections use TCP: %w", err)
		}
		obeyed, err := s.now.control(bpf.SockmapControlCONTROL_HELD)
		if err != nil || held == (obeyed != 0) {
			return err
		}
		value := uint32(0)
		if held {
			value = 1
		}
		if err := s.now.setControl(bpf.SockmapControlCONTROL_HELD, value); err != nil {
			return err
		}
	}
}

// Retire returns connections to TCP that previous agents let bypass it. It returns a Sockmap whose
// Run keeps at it until none is left, or nil if there are none. With an error it has done so for all
// versions of the programs that it could; one that cannot be opened is switched off at least.
func Retire(bpffs string, log *slog.Logger) (*Sockmap, error) {
	s := &Sockmap{cfg: Config{BPFFS: bpffs, Log: log}, wake: make(chan struct{}, 1)}
	dirs, err := generations(Dir(bpffs), true)
	errs := []error{err}
	for _, dir := range dirs {
		g, err := open(dir)
		if err != nil {
			errs = append(errs, err, set(dir, bpf.SockmapControlCONTROL_ON, 0))
			continue
		}
		s.older = append(s.older, g)
		if err := g.retire(); err != nil {
			errs = append(errs, fmt.Errorf("retire %s: %w", dir, err))
		}
	}
	if len(s.older) == 0 {
		return nil, errors.Join(errs...)
	}
	s.note()
	return s, errors.Join(errs...)
}

// free returns a name that no former generation has: a retired generation may be wanted again
// before it is empty.
func (s *Sockmap) free(root, name string) string {
	first := name
	for n := 2; ; n++ {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			return name
		}
		name = fmt.Sprintf("%s-%d", first, n)
	}
}

// Fingerprint identifies the programs together with their settings.
func Fingerprint(limits Limits) (string, error) {
	_, name, err := Config{Limits: limits}.programs()
	return name, err
}

// programs returns what to load, and the name of its generation.
func (c Config) programs() (*ebpf.CollectionSpec, string, error) {
	spec, err := bpf.LoadSockmap()
	if err != nil {
		return nil, "", fmt.Errorf("read program specs: %w", err)
	}
	settings, err := c.Limits.set(spec)
	if err != nil {
		return nil, "", err
	}
	if c.tamper != nil {
		c.tamper(spec)
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%x %q", settings, slices.Sorted(slices.Values(c.Limits.Except)))
	for _, name := range append(seeing(), forgetLink, readLink, admitIter, sweepIter, countIter, bpf.SockmapProgSockmapMessage) {
		program := spec.Programs[name]
		if program == nil {
			return nil, "", fmt.Errorf("read program specs: there is no %s", name)
		}
		fmt.Fprintf(sum, "%v", program.Instructions)
	}
	for _, name := range mapNames() {
		m := spec.Maps[name]
		if m == nil {
			return nil, "", fmt.Errorf("read map specs: there is no %s", name)
		}
		fmt.Fprintln(sum, m.Name, m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags)
	}
	return spec, fmt.Sprintf("%x", sum.Sum(nil)[:6]), nil
}

// create loads, attaches and pins a generation.
func create(root, name string, spec *ebpf.CollectionSpec, cfg Config) (*generation, error) {
	g, err := load(filepath.Join(root, name), spec, cfg.Limits.Except)
	if err != nil {
		return nil, err
	}
	if err := g.pinAll(filepath.Join(root, stageName)); err != nil {
		return nil, errors.Join(err, os.RemoveAll(filepath.Join(root, stageName)), g.close())
	}
	return g, nil
}

// Switch sets whether any connection may bypass TCP. Off takes effect with the next message.
func (s *Sockmap) Switch(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.now.setOn(on); err != nil {
		return err
	}
	if s.on != on {
		s.cfg.Log.Info("switched whether connections on this node may bypass TCP", "on", on)
	}
	s.on = on
	s.note()
	return nil
}

// note makes Run sweep soon.
func (s *Sockmap) note() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run admits sockets and lets them leave, until the context ends.
func (s *Sockmap) Run(ctx context.Context) error {
	admits, deaf := make(chan struct{}, 1), make(chan error, 1)
	if s.now != nil {
		wakes, err := ringbuf.NewReader(s.now.maps[wakesMap])
		if err != nil {
			return fmt.Errorf("wait for sockets: %w", err)
		}
		defer wakes.Close()
		go func() { deaf <- s.listen(wakes, admits) }()
	}
	s.logged("cannot admit sockets", s.admit()) // that became suitable while no agent ran
	rest := time.NewTicker(restEvery)
	defer rest.Stop()
	ask := time.NewTicker(askEvery)
	defer ask.Stop()
	var again <-chan time.Time
	held, sweeps := false, newPace()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-deaf:
			return fmt.Errorf("wait for sockets: %w", err)
		case <-admits:
			if again == nil {
				again = time.After(admitEvery)
			}
		case <-again:
			again = nil
			s.logged("cannot admit sockets", s.admit())
		case <-s.wake:
			sweeps.soon()
		case <-sweeps.timer.C:
			began := time.Now()
			left, err := s.sweep()
			s.logged("cannot sweep sockets", err)
			sweeps.done(time.Since(began), left == 0 && err == nil)
		case <-rest.C:
			sweeps.soon()
			s.logged("cannot admit sockets", s.admit()) // that nobody was woken for
		case <-ask.C:
			if is := s.isHeld(); is != held {
				held = is
				sweeps.soon()
			}
		}
	}
}

// isHeld reports whether an operator makes everything use TCP.
func (s *Sockmap) isHeld() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return false
	}
	held, err := isHeld(s.cfg.BPFFS)
	s.logged("cannot see whether an operator makes all connections use TCP", errors.Join(err, s.adoptHeld()))
	return held
}

func (s *Sockmap) logged(what string, err error) {
	if err != nil {
		s.cfg.Log.Error(what, "error", err)
	}
}

// listen handles the events with which programs wake the agent, until the reader is closed or fails.
func (s *Sockmap) listen(wakes *ringbuf.Reader, admits chan<- struct{}) error {
	for {
		record, err := wakes.Read()
		if err != nil {
			return err
		}
		if len(record.RawSample) == 0 {
			continue
		}
		switch bpf.SockmapWake(record.RawSample[0]) {
		case bpf.SockmapWakeWAKE_ADMIT:
			select {
			case admits <- struct{}{}:
			default:
			}
		case bpf.SockmapWakeWAKE_LEAVE:
			s.note()
		}
	}
}

func (s *Sockmap) admit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now == nil {
		return nil
	}
	return s.now.admit()
}

// sweep sweeps all generations and returns how many sockets still have to leave.
func (s *Sockmap) sweep() (left int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		left, err = s.now.sweep()
	}
	older, failed := s.sweepOlder()
	return left + older, errors.Join(err, failed)
}

// sweepOlder sweeps the former generations and removes those without sockets.
func (s *Sockmap) sweepOlder() (left int, err error) {
	var errs []error
	var kept []*generation
	for _, g := range s.older {
		inside, err := g.sweep()
		if err == nil && inside == 0 {
			inside, err = g.sockets()
		}
		switch {
		case err != nil:
			errs = append(errs, err)
			kept = append(kept, g)
		case inside > 0:
			left += inside
			kept = append(kept, g)
		default:
			errs = append(errs, g.remove())
		}
	}
	s.older = kept
	return left, errors.Join(errs...)
}

// Close releases everything. What is pinned keeps working. Methods that are called later return an
// error: who watches or checks connections may end a little after Run.
func (s *Sockmap) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, g := range s.older {
		errs = append(errs, g.close())
	}
	if s.now != nil {
		errs = append(errs, s.now.close())
	}
	s.older = nil
	return errors.Join(errs...)
}
