package sockmap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// checkRule is the rule that admits the agent's connections to itself.
	checkRule = 1 << 63
	// checkEvery is the time between checks.
	checkEvery = 10 * time.Minute
	// checkRetry is the time to the next check if one could not be made.
	checkRetry = time.Minute
)

// wrong wraps a fault that a check found.
type wrong struct{ error }

func (w wrong) Unwrap() error { return w.error }

// Checked is the result of the checks so far.
type Checked struct {
	Passed   uint64    `json:"passed"`
	Failed   uint64    `json:"failed"`
	LastTime time.Time `json:"lastTime,omitzero"` // of the last completed check
	Fault    string    `json:"-"`                 // why everything has used TCP since; empty if nothing was wrong
	Unable   string    `json:"unable,omitempty"`  // why the last check could not be made; empty if it could
}

// Check makes connections of the agent's own bypass TCP, with the programs and maps that serve all
// connections, and verifies all data that arrives. If data is changed or missing, it switches
// everything to TCP until another agent starts.
func (s *Sockmap) Check(ctx context.Context, netns uint64) error {
	err := s.check(ctx, netns)
	var found wrong
	if errors.As(err, &found) {
		err = errors.Join(err, s.Switch(false))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked.Unable = ""
	switch {
	case err == nil:
		s.checked.LastTime = time.Now()
		s.checked.Passed++
	case errors.As(err, &found):
		s.checked.LastTime = time.Now()
		s.checked.Failed++
		s.checked.Fault = found.Error()
	default:
		s.checked.Unable = err.Error()
	}
	return err
}

func (s *Sockmap) check(ctx context.Context, netns uint64) error {
	switch state, err := s.State(); {
	case err != nil:
		return err
	case state.Held:
		return errors.New("an operator makes all connections use TCP")
	}
	listening, at, err := listener()
	if err != nil {
		return err
	}
	defer unix.Close(listening)
	port := portOf(at)
	if err := s.setOwn(map[Endpoint]Rules{{Netns: netns}: {From: checkRule}, {Netns: netns, Port: port}: {To: checkRule}}); err != nil {
		return err
	}
	// Nothing is lost if this fails: rules are written again whenever they change.
	defer func() { _ = s.setOwn(nil) }()
	for _, end := range []func(*exercise) error{
		func(e *exercise) error { return errors.Join(e.alternate(), e.endPending()) },
		func(e *exercise) error {
			if _, err := e.hoard(8<<10, math.MaxInt32/32); err != nil { // part of it by TCP, for the run
				return err
			}
			return e.endAtOnce()
		},
	} {
		if err := s.checkData(func() (fault, err error) { return s.attempt(ctx, listening, at, end) }); err != nil {
			return err
		}
	}
	return nil
}

// scarce returns the errors of calls for which the kernel had no memory: they move no data, and lose
// none. A call that may not wait for memory gets EAGAIN.
func scarce() []error { return []error{unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN} }

// checkData calls attempt, which returns what went wrong with its data, or else why it could not be
// made, and returns the error of the check. Data that does not come in time counts as lost only if
// that happens again at once, because the whole machine may have stood still.
func (s *Sockmap) checkData(attempt func() (fault, err error)) error {
	var first error
	for {
		fault, err := attempt()
		switch {
		case fault == nil:
			return err
		case errors.Is(fault, errWrong):
			return wrong{fault}
		case slices.ContainsFunc(scarce(), func(lack error) bool { return errors.Is(fault, lack) }):
			return fault
		case errors.Is(fault, errEnded):
			return wrong{fault}
		case first != nil:
			return wrong{fmt.Errorf("on two connections in a row: %w; %w", first, fault)}
		}
		s.cfg.Log.Warn("a check of connections that bypass TCP has failed, trying once more", "error", fault)
		first = fault
	}
}

// attempt makes one connection bypass TCP, and ends it.
func (s *Sockmap) attempt(ctx context.Context, listening int, at unix.Sockaddr, end func(*exercise) error) (fault, err error) {
	e, err := connect(listening, at)
	if err != nil {
		return nil, err
	}
	defer e.close()
	local, err := unix.Getsockname(e.client)
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(patience); ; {
		if fault := e.converse(toBeSeen, 100); fault != nil {
			return fault, nil
		}
		p, err := s.find(addrPortOf(local))
		if err != nil {
			return nil, err
		}
		if p == nil {
			p = &Pair{State: "not seen"}
		}
		if p.State == "accelerated" && p.Redirected[0] > 0 && p.Redirected[1] > 0 {
			return end(&e), nil
		}
		if p.Exclusion != "" || time.Now().After(until) {
			return nil, fmt.Errorf("the agent's own connection does not bypass TCP: it is %s %s", p.State, p.Exclusion)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		time.Sleep(admitEvery)
	}
}

// find returns the connection of a client, or nil if there is none.
func (s *Sockmap) find(client netip.AddrPort) (*Pair, error) {
	list, err := s.Pairs()
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if p.Client == client {
			return &p, nil
		}
	}
	return nil, nil
}

func portOf(at unix.Sockaddr) uint16 { return addrPortOf(at).Port() }

func addrPortOf(at unix.Sockaddr) netip.AddrPort {
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(at.Addr), uint16(at.Port))
	}
	return netip.AddrPort{}
}

// RunChecks makes checks at intervals, until the context ends or one finds something wrong.
func (s *Sockmap) RunChecks(ctx context.Context, netns uint64) error {
	for {
		every := checkEvery
		err := s.Check(ctx, netns)
		var found wrong
		switch {
		case errors.As(err, &found):
			s.cfg.Log.Error("data that bypassed TCP was corrupted or lost: all connections use TCP until the agent restarts",
				"error", err)
			return nil
		case err != nil && ctx.Err() == nil:
			s.cfg.Log.Debug("cannot check connections that bypass TCP", "error", err)
			every = checkRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// Checked returns the result of the checks so far.
func (s *Sockmap) Checked() Checked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checked
}
