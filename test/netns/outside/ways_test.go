package outside

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/routes"
)

// What an agent can be told about changes of ways.
const (
	waysFollow = "follow" // start, and return when it follows, long after the last change
	waysBlind  = "blind"  // say that it follows, and do not
	waysAway   = "away"   // say nothing any more
)

// follow does what an order says.
func (a *agent) follow(order string) error {
	if a.stop != nil {
		if err := a.stop(); err != nil {
			return err
		}
		a.stop = nil
	}
	switch order {
	case waysFollow:
		if err := a.startFollower(); err != nil {
			return err
		}
		return a.pretend(false)
	case waysBlind:
		return a.pretend(true)
	case waysAway:
		return a.ways.Revoke()
	}
	return fmt.Errorf("an order about ways: %q", order)
}

func (a *agent) startFollower() error {
	follower := routes.NewFollower(routes.Config{Ways: a.ways, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- follower.Run(ctx) }()
	a.stop = func() error {
		cancel()
		return <-ended
	}
	// A follower tells nobody that it begins to follow, as nobody but status wants to know; so it is asked. How long that
	// takes is not judged.
	for late := time.Now().Add(patience); !follower.Stats().Following; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			return errors.New("it does not follow")
		}
	}
	return nil
}

// pretend has the last change be long ago, so that there is nothing to wait for; and, if it is blind, that changes are
// followed for hours.
func (a *agent) pretend(blind bool) error {
	var row maps.Ways
	if err := a.ways.Vouch(); err != nil {
		return err
	}
	if err := a.Maps().Ways.Lookup(uint32(0), &row); err != nil {
		return err
	}
	if row.Changed = row.Until - 1000; blind {
		row.Until += 10000
	}
	return a.Maps().Ways.Put(uint32(0), &row)
}

// moveB gives node b another address of the link, which node a is told of.
func (w *world) moveB(last byte) {
	w.t.Helper()
	mac := net.HardwareAddr{2, 0, 0, 0, 0xb, last}
	err := w.b.Do(func() error {
		device, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(device, mac)
	})
	if err == nil {
		err = w.a.Do(func() error {
			device, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			return netlink.NeighSet(&netlink.Neigh{
				LinkIndex: device.Index, IP: nodeB[0].AsSlice(), HardwareAddr: mac, State: netlink.NUD_PERMANENT,
			})
		})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// soon is a tick, and what TCP waits for before it sends again what was lost until then.
const soon = 4 * time.Second

// ask has a connection be used that is open, and returns how long that took.
func (w *world) ask(hold int) (time.Duration, error) {
	w.t.Helper()
	began := time.Now()
	_, err := w.user.try(order{Hold: hold, Bytes: 100})
	return time.Since(began), err
}

// A node of backends gets another address of the link. Flows that are open follow at once if the agent does, and without one
// a moment after it last gave its word; with an agent that says so and is wrong they would not.
func TestWayChanges(t *testing.T) {
	for _, xdp := range []string{"off", "native"} {
		t.Run("xdp "+xdp, func(t *testing.T) {
			w := newWorld(t, settings{xdp: xdp, services: true})
			w.user.do(order{Dial: nodeA.at(false, toPodB), Bytes: 100}) // the neighbour is known from now on
			for hold := 1; hold <= 3; hold++ {
				w.user.do(order{Dial: nodeA.at(false, toPodB), Hold: hold, Bytes: 100})
			}
			used := func(hold int, what string, most time.Duration) {
				t.Helper()
				if took, err := w.ask(hold); err != nil || took > most {
					t.Errorf("%s: an open connection takes %v: %v", what, took, err)
				}
			}
			w.onA.do(nodeOrder{Ways: waysFollow})
			used(1, "nothing changed", time.Second)
			w.moveB(1)
			used(1, "with an agent that follows", soon)
			used(2, "with an agent that follows", soon)

			w.onA.do(nodeOrder{Ways: waysBlind})
			used(1, "nothing changed", time.Second)
			used(2, "nothing changed", time.Second)
			w.moveB(2)
			if _, err := w.user.try(order{Hold: 1, Bytes: 100, Brief: true}); err == nil {
				t.Error("a change is followed that nobody told of: then this test shows nothing")
			}
			w.onA.do(nodeOrder{Ways: waysAway})
			used(2, "with an agent that takes back its word", soon)
			used(3, "with an agent that takes back its word", soon)

			w.onA.do(nodeOrder{Ways: waysFollow})
			used(2, "nothing changed", time.Second)
			w.onA.process.Kill()
			w.moveB(3)
			used(2, "with an agent that was killed", soon+5*time.Second)
			w.moveB(4)
			used(2, "without an agent", soon)
		})
	}
}
