package sockmap

import (
	"errors"
	"slices"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
)

// TestConverse checks that two ends that take turns bypass TCP once the programs have seen them do
// so, by IPv4 and IPv6: between pods, of which one may listen on IPv6 and be dialed by IPv4, and
// between an application and its sidecar in the same pod.
func TestConverse(t *testing.T) {
	for _, addr := range []string{server4, server6, "mapped", "127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			w := newTwoPods(t, sockmap.DefaultLimits())
			c := w.dial(addr)
			c.ask(3, 100)
			if list := w.pairs(); len(list) != 0 {
				t.Errorf("after three requests: %+v", list)
			}
			c.ask(3, 100)
			if p := w.only(); p.State != "watched" || p.Turns != 4 {
				t.Errorf("after six requests: %+v", p)
			}
			c.ask(5, 100)
			w.Until("admission", func() bool { return w.only().State == "accelerated" })
			// An end that entered the map before the other has counted what it sent since.
			before := w.only().Passed
			c.ask(1000, 100)
			p := w.only()
			// The first message in each direction uses TCP, because its reader may already have
			// been waiting.
			for side := range 2 {
				if p.Redirected[side] < 99_900 || p.Passed[side]-before[side] > 100 {
					t.Errorf("after a thousand requests more, with %d bytes by TCP before: %+v", before, p)
				}
			}
		})
	}
}

// TestShown checks that both sides of a long conversation send something by TCP every now and then, for those that
// remember connections by their packets, and the rest past it.
func TestShown(t *testing.T) {
	limits := sockmap.DefaultLimits()
	limits.Show = 300 * time.Millisecond
	w, c := short(t, limits)
	c.ask(20, 100)
	before, tallies := w.only(), w.tallies()
	began := time.Now()
	for time.Since(began) < 2*time.Second {
		c.ask(10, 100)
	}
	most := int64(time.Since(began)/limits.Show) + 1
	p, shown := w.only(), int64(w.tallies().Passed["shown"].Count-tallies.Passed["shown"].Count)
	if shown < 2*4 || shown > 2*most {
		t.Errorf("%d messages of both sides were shown in %v", shown, time.Since(began))
	}
	for side := range 2 {
		passed := int64(p.Passed[side] - before.Passed[side])
		if passed < 4*100 || passed > 2*most*100 || p.Redirected[side]-before.Redirected[side] < 10*uint64(passed) {
			t.Errorf("side %d: before %+v, then %+v", side, before, p)
		}
	}
}

func (w *twoPods) tallies() sockmap.Tallies {
	w.T.Helper()
	tallies, err := w.Tallies()
	w.Must(err)
	return tallies
}

// only returns the only connection there is.
func (w *twoPods) only() sockmap.Pair {
	w.T.Helper()
	list := w.pairs()
	if len(list) != 1 {
		w.T.Fatalf("there are %d connections: %+v", len(list), list)
	}
	return list[0]
}

func (w *twoPods) pairs() []sockmap.Pair {
	w.T.Helper()
	list, err := w.Pairs()
	w.Must(err)
	return list
}

// TestMingle checks that two ends that both stream, not waiting for each other, leave for TCP, and
// do not come back as long as neither answers the other.
func TestMingle(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	before := w.redirected()
	c.ok("babble 300")
	if past := w.redirected() - before; past > 2*uint64(w.Limits.Run) || past == 0 {
		t.Errorf("%d messages went past TCP, of at most %d from each side", past, w.Limits.Run)
	}
	c.ok("hark 300")
	w.Until("both left", func() bool { p := w.only(); return p.State == "watched" && p.Inside == 0 })
	before = w.redirected()
	for range 100 {
		c.ok("babble 20")
		c.ok("hark 20")
	}
	if p := w.only(); p.State != "watched" || w.redirected() != before {
		t.Errorf("they came back: %+v", p)
	}
	c.ask(100, 100)
	w.Until("admission of a conversation", func() bool { return w.only().State == "accelerated" })
}

// TestMutter checks that an end with something unread that came by TCP does not answer with what it
// sends, even if it has read all that bypassed TCP: the other end's stream goes on.
func TestMutter(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	c.ok("mutter %d %d", w.Limits.Run, 2*w.Limits.Stream)
	w.Until("return to TCP", func() bool { return w.only().Inside == 0 })
}

// mutter has the client send many bytes, of which the server reads the first, and the server send
// one now and then.
func (e ends) mutter(first, times int) error {
	for i, b := range pattern(0, times) {
		if _, err := e.client.Write([]byte{b}); err != nil {
			return err
		}
		if i < first {
			continue
		}
		if i == first {
			if err := hear(e.server, pattern(0, first)); err != nil {
				return err
			}
		}
		if i%8 == 0 {
			if err := say(e.server, e.client, i, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestBursts checks that a conversation whose answers come in many messages stays, with the first of
// them past TCP.
func TestBursts(t *testing.T) {
	w, c := short(t, sockmap.DefaultLimits())
	before := w.redirected()
	c.ok("burst 100 64")
	p := w.only()
	if past := w.redirected() - before; p.State != "accelerated" || w.tallies().Left > 0 || past < 100*uint64(w.Limits.Run) || past > 100*uint64(w.Limits.Run+1) {
		t.Errorf("%d messages went past TCP: %+v", past, p)
	}
}

// burst has the client ask, and the server answer in many messages.
func (e ends) burst(times, messages int) error {
	for i := range times {
		if err := say(e.client, e.server, i, 1); err != nil {
			return err
		}
		sent := make(chan error, 1)
		answer := pattern(i, 10*messages)
		go func() {
			var err error
			for piece := range slices.Chunk(answer, 10) {
				if _, err = e.server.Write(piece); err != nil {
					break
				}
			}
			sent <- err
		}()
		if err := errors.Join(hear(e.client, answer), <-sent); err != nil {
			return err
		}
	}
	return nil
}

// TestPeaks checks that a connection that streams again and again is left to TCP for good, but not
// if enough has bypassed TCP each time.
func TestPeaks(t *testing.T) {
	for name, a := range map[string]struct {
		requests int
		state    string
	}{"soon": {10, "excluded"}, "after long": {80, "accelerated"}} {
		t.Run(name, func(t *testing.T) {
			limits := sockmap.DefaultLimits()
			limits.Stream = 32 // four times as many messages past TCP make up for it
			w, c := short(t, limits)
			for range 8 {
				c.ask(a.requests, 100)
				c.ok("stream 100 100")
				w.Until("return to TCP", func() bool { return w.only().Inside == 0 })
				w.Until("admission or exclusion", func() bool {
					c.ask(10, 100)
					p := w.only()
					return p.State == "accelerated" || p.State == "excluded"
				})
			}
			if p := w.only(); p.State != a.state {
				t.Errorf("%+v", p)
			}
		})
	}
}
