package sockmap

import (
	"testing"

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
			// The first messages in each direction use TCP, because Go's readers use edge-triggered
			// epoll, and have to show how they read.
			for side := range 2 {
				if p.Redirected[side] < 99_000 || p.Passed[side]-before[side] > 1000 {
					t.Errorf("after a thousand requests more, with %d bytes by TCP before: %+v", before, p)
				}
			}
		})
	}
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
