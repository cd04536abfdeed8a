package sockmap

import (
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
)

// TestConverse checks that two ends that take turns bypass TCP once the programs have seen them do
// so, by IPv4 and IPv6: between pods, of which one may listen on IPv6 and be dialled by IPv4, and
// between an application and its sidecar in the same pod.
func TestConverse(t *testing.T) {
	for _, addr := range []string{server4, server6, "mapped", "127.0.0.1", "::1"} {
		t.Run(addr, func(t *testing.T) {
			w := newWorld(t, sockmap.DefaultLimits())
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
			w.Until("admission", func() bool { return w.only().State == "short" })
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

func (w *world) tallies() sockmap.Tallies {
	w.T.Helper()
	tallies, err := w.Tallies()
	w.Must(err)
	return tallies
}

// only returns the only connection there is.
func (w *world) only() sockmap.Pair {
	w.T.Helper()
	list := w.pairs()
	if len(list) != 1 {
		w.T.Fatalf("there are %d connections: %+v", len(list), list)
	}
	return list[0]
}

func (w *world) pairs() []sockmap.Pair {
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
	w.Until("admission of a conversation", func() bool { return w.only().State == "short" })
}
