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

// The orders to an agent about changes of ways, the routes and neighbors to backends.
const (
	// Start following, and return once it follows, as if the last change were long ago.
	waysFollow = "follow"
	waysBlind  = "blind" // claim to follow, but do not
	waysAway   = "away"  // make no claim any more
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
		return a.ways.End()
	}
	return fmt.Errorf("unknown order about ways: %q", order)
}

func (a *agent) startFollower() error {
	follower := routes.NewFollower(routes.Config{Lease: a.ways, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- follower.Run(ctx) }()
	a.stop = func() error {
		cancel()
		return <-ended
	}
	// The follower announces nothing when it begins to follow, because only status needs to know,
	// so poll it. The test does not judge how long that takes.
	for late := time.Now().Add(patience); !follower.Status().Following; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			return errors.New("the follower does not follow")
		}
	}
	return nil
}

// pretend sets the last change to long ago, so that there is nothing to wait for; and, if blind,
// claims that changes are followed for hours to come.
func (a *agent) pretend(blind bool) error {
	var row maps.RouteEpoch
	if err := a.ways.Renew(); err != nil {
		return err
	}
	if err := a.Maps().RouteEpoch.Lookup(uint32(0), &row); err != nil {
		return err
	}
	if row.Changed = row.Until - 1000; blind {
		row.Until += 10000
	}
	return a.Maps().RouteEpoch.Put(uint32(0), &row)
}

// moveB gives node b another MAC address, and tells node a.
func (w *nodesBehindRouter) moveB(last byte) {
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

// soon is a tick plus the time after which TCP retransmits what was lost until then.
const soon = 4 * time.Second

// ask uses an open connection, and returns how long that took.
func (w *nodesBehindRouter) ask(hold int) (time.Duration, error) {
	w.t.Helper()
	began := time.Now()
	_, err := w.user.try(order{Hold: hold, Bytes: 100})
	return time.Since(began), err
}

// A node with backends gets another MAC address. Open flows follow at once if the agent does.
// Without an agent they follow a moment after its last claim that it follows ends. With an agent
// that claims so wrongly they would not.
func TestWayChanges(t *testing.T) {
	for _, xdp := range []string{"off", "native"} {
		t.Run("xdp "+xdp, func(t *testing.T) {
			w := newNodesBehindRouter(t, settings{xdp: xdp, services: true})
			w.user.do(order{Dial: nodeA.at(false, toPodB), Bytes: 100}) // resolves the neighbor
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
				t.Error("flows follow a change that the agent was not told of, so this test shows nothing")
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
