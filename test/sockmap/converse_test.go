package sockmap

import (
	"testing"

	"fairlead.io/fairlead/pkg/sockmap"
)

// Two that take turns speak past TCP, of either family, once they have been seen to: pods, one of which may listen by IPv6 and be
// dialled by IPv4, and an application and its sidecar in one.
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
			c.ask(1000, 100)
			p := w.only()
			// The first message of either goes by TCP: who reads may have been waiting since before. On a slow machine some of those that
			// made it a conversation come after that, too.
			for side := range 2 {
				if p.Redirected[side] < 99_900 || p.Passed[side] > 100 {
					t.Errorf("after a thousand requests more: %+v", p)
				}
			}
		})
	}
}

// only returns the one connection that there is.
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
