package routes

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// report is a call that the programs get.
type report string

const (
	change report = "changed"
	renew  report = "renewed"
	end    report = "ended"
)

// fakeLease stands for the programs and records the calls. Its channel has a buffer, so a test may read
// them later.
type fakeLease struct{ said chan report }

func (w *fakeLease) say(t report) error {
	select {
	case w.said <- t:
		return nil
	default:
		return errors.New("the channel is full")
	}
}

func (w *fakeLease) Changed() error { return w.say(change) }
func (w *fakeLease) Renew() error   { return w.say(renew) }
func (w *fakeLease) End() error     { return w.say(end) }

// node is a namespace with eth0, in which a follower runs.
type node struct {
	t        *testing.T
	ns       *rig.Netns
	ways     *fakeLease
	follower *Follower
	device   int
	stop     func()
}

func newNode(t *testing.T, room int) *node {
	rig.Root(t)
	n := &node{t: t, ns: rig.NewNetns(t, "node"), ways: &fakeLease{make(chan report, 4096)}}
	rig.Veth(t, n.ns, "eth0", rig.NewNetns(t, "elsewhere"), "eth0")
	rig.Address(t, n.ns, "eth0", "192.0.2.1/24")
	n.do(func() error {
		link, err := net.InterfaceByName("eth0")
		n.device = link.Index
		return err
	})
	n.follower = NewFollower(Config{Lease: n.ways, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Room: room})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.ns.Do(func() error { return n.follower.Run(ctx) }) }()
	n.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(n.stop)
	return n
}

func (n *node) do(fn func() error) {
	n.t.Helper()
	if err := n.ns.Do(fn); err != nil {
		n.t.Fatal(err)
	}
}

// next returns the next call other than Renew.
func (n *node) next(what string) report {
	n.t.Helper()
	late := time.After(5 * time.Second)
	for {
		select {
		case t := <-n.ways.said:
			if t != renew {
				return t
			}
		case <-late:
			n.t.Fatalf("%s: no call within 5 seconds", what)
		}
	}
}

// waitQuiet returns when all changes were reported, and how many. It waits for three calls of Renew in
// a row, since one may have been on its way already.
func (n *node) waitQuiet() (changes int) {
	n.t.Helper()
	late := time.After(10 * time.Second)
	for vows := 0; vows < 3; {
		select {
		case t := <-n.ways.said:
			if vows++; t == change {
				changes, vows = changes+1, 0
			}
		case <-late:
			n.t.Fatal("the follower does not renew the lease")
		}
	}
	return changes
}

func (n *node) neighbor(mac string, state int) func() error {
	return func() error {
		link, err := net.ParseMAC(mac)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: n.device, IP: net.IPv4(192, 0, 2, 9), HardwareAddr: link, State: state})
	}
}

func cidr(text string) *net.IPNet {
	_, prefix, err := net.ParseCIDR(text)
	if err != nil {
		panic(err)
	}
	return prefix
}

// Every change that matters to routes is reported, and that before the next call of Renew.
func TestFollow(t *testing.T) {
	n := newNode(t, 0)
	if said := <-n.ways.said; said != change {
		t.Fatalf("the first call is %q, want a change since nobody followed before", said)
	}
	n.waitQuiet()
	route := &netlink.Route{LinkIndex: n.device, Dst: cidr("198.51.100.0/24"), Gw: net.IPv4(192, 0, 2, 9)}
	route6 := &netlink.Route{LinkIndex: n.device, Dst: cidr("2001:db8::/32"), Scope: netlink.SCOPE_LINK}
	rule := netlink.NewRule()
	rule.Table, rule.Src, rule.Family = 100, cidr("203.0.113.0/24"), netlink.FAMILY_V4
	link := func() netlink.Link {
		d, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Error(err)
		}
		return d
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 77), Mask: net.CIDRMask(32, 32)}}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"a route", func() error { return netlink.RouteAdd(route) }},
		{"a removed route", func() error { return netlink.RouteDel(route) }},
		{"an IPv6 route", func() error { return netlink.RouteAdd(route6) }},
		{"a rule", func() error { return netlink.RuleAdd(rule) }},
		{"an address", func() error { return netlink.AddrAdd(link(), address) }},
		{"a removed address", func() error { return netlink.AddrDel(link(), address) }},
		{"an MTU", func() error { return netlink.LinkSetMTU(link(), 1400) }},
		{"the device's MAC address", func() error { return netlink.LinkSetHardwareAddr(link(), net.HardwareAddr{2, 0, 0, 0, 7, 7}) }},
		{"a neighbor", n.neighbor("02:00:00:00:00:01", unix.NUD_STALE)},
		{"the neighbor's new MAC address", n.neighbor("02:00:00:00:00:02", unix.NUD_STALE)},
		{"a removed neighbor", func() error {
			return netlink.NeighDel(&netlink.Neigh{LinkIndex: n.device, IP: net.IPv4(192, 0, 2, 9)})
		}},
		{"forwarding", func() error { return n.ns.SetSysctl("net/ipv4/conf/eth0/forwarding", "1") }},
		{"the device goes down", func() error { return netlink.LinkSetDown(link()) }},
	} {
		before := n.follower.Status().Changes
		n.do(step.do)
		if said := n.next(step.name); said != change {
			t.Fatalf("%s: got %q, want a change", step.name, said)
		}
		n.waitQuiet()
		if after := n.follower.Status().Changes; after <= before {
			t.Errorf("%s: counted %d changes, before it %d", step.name, after, before)
		}
	}
	n.stop()
	for said := range n.ways.said {
		if said == end {
			break
		}
	}
	if n.follower.Status().Following {
		t.Error("stats say that it follows, after it has ended")
	}
}

// Confirming a neighbor changes nothing, so it is not reported.
func TestConfirmedNeighbor(t *testing.T) {
	n := newNode(t, 0)
	n.do(n.neighbor("02:00:00:00:00:01", unix.NUD_REACHABLE))
	n.waitQuiet()
	before := n.follower.Status()
	for i := range 20 {
		n.do(n.neighbor("02:00:00:00:00:01", []int{unix.NUD_STALE, unix.NUD_REACHABLE, unix.NUD_DELAY}[i%3]))
	}
	if changes := n.waitQuiet(); changes != 0 {
		t.Errorf("%d changes were reported, want none", changes)
	}
	if after := n.follower.Status(); after.Changes != before.Changes || after.Flaps < before.Flaps+10 {
		t.Errorf("stats %+v, before %+v", after, before)
	}
}

// Many changes at once are reported as a few.
func TestManyChanges(t *testing.T) {
	n := newNode(t, 0)
	n.waitQuiet()
	const routes = 2000
	began := time.Now()
	n.do(func() error {
		for i := range routes {
			route := &netlink.Route{LinkIndex: n.device, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: net.IPv4(10, 0, byte(i>>8), byte(i)), Mask: net.CIDRMask(32, 32)}}
			if err := netlink.RouteAdd(route); err != nil {
				return err
			}
		}
		return nil
	})
	changes := n.waitQuiet()
	if most := int(time.Since(began)/apart) + 2; changes == 0 || changes > most {
		t.Errorf("%d routes were reported as %d changes, want 1 to %d", routes, changes, most)
	}
}

// After losing events the follower cannot know what they were: it ends the lease and begins again, with a
// change.
func TestLostEvents(t *testing.T) {
	rig.Root(t)
	ns := rig.NewNetns(t, "node")
	err := ns.Do(func() error {
		s, err := subscribe()
		if err != nil {
			return err
		}
		defer s.Close()
		if err := s.SetReceiveBufferSize(1, false); err != nil { // rounded up to the kernel's minimum
			return err
		}
		w := watcher{Follower: NewFollower(Config{Lease: &fakeLease{make(chan report, 64)}, Log: slog.Default()}), socket: s,
			known: &neighbors{list: map[neighbor]string{}, room: 2}}
		link, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for i := range 200 {
			if err := netlink.LinkSetMTU(link, 2000+i); err != nil {
				return err
			}
		}
		for err == nil {
			err = w.turn()
		}
		if !errors.Is(err, unix.ENOBUFS) {
			t.Errorf("turn ended with %v, want ENOBUFS", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(ns)
}

// While the programs cannot be told of changes, the stats say so, and the follower tries until it
// works.
func TestFailure(t *testing.T) {
	n := newNode(t, 0)
	n.waitQuiet()
	for range cap(n.ways.said) { // fill the channel
		_ = n.ways.say(renew)
	}
	for n.follower.Status().Errors == 0 {
		runtime.Gosched()
	}
	if s := n.follower.Status(); s.Following || s.Error == "" {
		t.Errorf("stats after a failure: %+v", s)
	}
	for len(n.ways.said) > 0 {
		<-n.ways.said
	}
	for said := range n.ways.said {
		if said == change {
			break
		}
		if said == renew {
			t.Fatal("renewed before reporting a change")
		}
	}
	n.waitQuiet()
	if s := n.follower.Status(); !s.Following || s.Error != "" {
		t.Errorf("stats after recovery: %+v", s)
	}
}
