package sockmap

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// checkRule is the rule of connections that the agent makes to itself.
	checkRule = 1 << 63
	// checkEvery is how often it does.
	checkEvery = 10 * time.Minute
	// checkRetry is for one that could not be made.
	checkRetry = time.Minute
)

// wrong is what a check found.
type wrong struct{ error }

func (w wrong) Unwrap() error { return w.error }

// Checked is what the checks of what goes past TCP came to.
type Checked struct {
	Last   time.Time // when one was made
	Passed uint64
	Failed uint64
	Fault  string // why all goes by TCP since; empty if nothing was wrong
	Unable string // why the last one could not be made; empty if it could
}

// Check has a connection of the agent's own go past TCP, by the programs and the maps that serve everybody, and compares all that comes. Who finds anything
// wrong has everybody go by TCP, until another agent starts.
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
		s.checked.Last = time.Now()
		s.checked.Passed++
	case errors.As(err, &found):
		s.checked.Last = time.Now()
		s.checked.Failed++
		s.checked.Fault = found.Error()
	default:
		s.checked.Unable = err.Error()
	}
	return err
}

func (s *Sockmap) check(ctx context.Context, netns uint64) error {
	if state, err := s.State(); err != nil || state.Held {
		return errors.Join(err, errors.New("an operator has everything go by TCP"))
	}
	listening, at, err := listener()
	if err != nil {
		return err
	}
	defer unix.Close(listening)
	port := portOf(at)
	if err := s.setOwn(map[Place]Rules{{Netns: netns}: {From: checkRule}, {Netns: netns, Port: port}: {To: checkRule}}); err != nil {
		return err
	}
	defer func() { _ = s.setOwn(nil) }() // it is set again whenever rules are
	for _, end := range []func(*exercise) error{
		func(e *exercise) error { return errors.Join(e.alternate(), e.endHalf()) },
		func(e *exercise) error {
			if _, err := e.hoard(math.MaxInt32 / 32); err != nil {
				return err
			}
			return e.endAtOnce()
		},
	} {
		if err := s.checkOne(ctx, listening, at, end); err != nil {
			return err
		}
	}
	return nil
}

// checkOne has a connection go past TCP and end.
func (s *Sockmap) checkOne(ctx context.Context, listening int, at unix.Sockaddr, end func(*exercise) error) error {
	e, err := connect(listening, at)
	if err != nil {
		return err
	}
	defer e.close()
	local, err := unix.Getsockname(e.client)
	if err != nil {
		return err
	}
	for until := time.Now().Add(patience); ; {
		if err := e.converse(toBeSeen, 100); err != nil {
			return wrong{err}
		}
		p, err := s.find(addrPortOf(local))
		if err != nil {
			return err
		}
		if p == nil {
			p = &Pair{State: "not seen"}
		}
		if p.State == "short" && p.Redirected[0] > 0 && p.Redirected[1] > 0 {
			break
		}
		if p.Exclusion != "" || time.Now().After(until) {
			return fmt.Errorf("the agent's own connection does not go past TCP: it is %s %s", p.State, p.Exclusion)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		time.Sleep(admitEvery)
	}
	if err := end(&e); err != nil {
		return wrong{err}
	}
	return nil
}

// find returns a connection by its client; nil if there is none.
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

// RunChecks makes a check now and then, until the context ends or one finds something wrong.
func (s *Sockmap) RunChecks(ctx context.Context, netns uint64) error {
	for {
		every := checkEvery
		err := s.Check(ctx, netns)
		var found wrong
		switch {
		case errors.As(err, &found):
			s.cfg.Log.Error("what goes past TCP is not what was sent: everything goes by TCP until the agent starts again", "error", err)
			return nil
		case err != nil && ctx.Err() == nil:
			s.cfg.Log.Debug("what goes past TCP could not be checked", "error", err)
			every = checkRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
	}
}

// Checked returns what the checks came to.
func (s *Sockmap) Checked() Checked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checked
}
