package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/ticks"
	"fairlead.io/fairlead/test/rig"
)

// leaving is a node whose agent has ended, with a connection whose backend answers the client
// directly, and a local backend to which other nodes may forward connections.
type leaving struct {
	*node
	maps *maps.Maps
	svcs map[maps.SvcKey]maps.Svc // while the agent ran
}

func newLeaving(t *testing.T) *leaving {
	t.Helper()
	l := &leaving{node: newNode(t)}
	l.service("198.18.0.1")
	l.start()
	l.agent.Kill()
	l.svcs = l.content().svcs
	var err error
	if l.maps, err = maps.Open(datapath.MapsDir(l.bpffs), false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.maps.Close() })
	hosted := maps.HostedAddrKey(netip.MustParseAddr("198.18.0.1"))
	if err := l.maps.Svcs.Put(&hosted, &maps.Svc{Kind: maps.Hosted}); err != nil {
		t.Fatal(err)
	}
	l.flow(maps.FlowOpen)
	return l
}

// flow sets the state of the connection.
func (l *leaving) flow(state uint8) {
	l.t.Helper()
	tick, err := ticks.Measure()
	if err != nil {
		l.t.Fatal(err)
	}
	now, err := tick.Now()
	if err != nil {
		l.t.Fatal(err)
	}
	client, node, backend := maps.AddrOf(netip.MustParseAddr("192.0.2.9")), maps.AddrOf(netip.MustParseAddr("192.0.2.1")), maps.AddrOf(netip.MustParseAddr("10.2.0.5"))
	key := maps.Flow{Saddr: client, Daddr: node, Sport: maps.PortOf(4000), Dport: maps.PortOf(30080), Proto: unix.IPPROTO_TCP}
	row := maps.FlowRow{
		Saddr: node, Daddr: backend, Sport: key.Sport, Dport: maps.PortOf(8080),
		Seen: now, State: state, Kind: uint8(maps.FlowDSR) + uint8(lb.DirectIPIP),
	}
	row.Checksum = maps.ChecksumOf(key, row)
	if err := l.maps.CtPending.Put(&key, &row); err != nil {
		l.t.Fatal(err)
	}
}

// drain starts to wait, and returns when the frontends are closed.
func (l *leaving) drain(limit string) *rig.Process {
	l.t.Helper()
	p := rig.NewChild(l.t, nil, nil, "fairlead", append([]string{"cleanup", "--drain=" + limit}, l.flags...)...)
	key := maps.KeyOf(netip.MustParseAddr("10.96.0.10"), 80, 6)
	l.waitFor("the frontend is closed", func() bool {
		return errors.Is(l.maps.Svcs.Lookup(&key, &maps.Svc{}), unix.ENOENT)
	})
	return p
}

// isThere reports whether the programs and maps exist.
func (l *leaving) isThere() bool {
	_, err := os.Stat(datapath.MapsDir(l.bpffs))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.t.Error(err)
	}
	return err == nil
}

func wants(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("cleanup ended with %v; want %q", err, text)
	}
}

const oneLeft = "1 connection (1 with direct server return)"

// TestDrainWaits checks that a cleanup waits until the last such connection has ended.
func TestDrainWaits(t *testing.T) {
	l := newLeaving(t)
	p := l.drain("10m")
	if !l.isThere() {
		t.Fatal("the programs and maps are gone already")
	}
	l.flow(maps.FlowReset)
	if err := p.Wait(); err != nil || l.isThere() {
		t.Errorf("cleanup ended with %v; something is left: %t", err, l.isThere())
	}
}

// TestDrainEnds checks that a cleanup waits no longer than told, reports the connections that it
// breaks, and leaves nothing behind. Without --drain it does not wait.
func TestDrainEnds(t *testing.T) {
	l := newLeaving(t)
	wants(t, l.drain("1s").Wait(), oneLeft+" had not ended after 1s and will break")
	if l.isThere() {
		t.Error("something is left")
	}
	if out := newLeaving(t).run("cleanup"); !strings.Contains(out, oneLeft+" cannot be handed over and will break; --drain waits for them to end\n") {
		t.Errorf("without --drain it says %q", out)
	}
	_, err := rig.RunChild(nil, nil, "fairlead", append([]string{"cleanup", "--drain=1s", "--force"}, l.flags...)...)
	wants(t, err, "exit status 2")
}

// TestDrainGivesUp checks that a cleanup that is interrupted while it waits has removed nothing
// that connections need. An agent that starts serves as before, and ends a wait.
func TestDrainGivesUp(t *testing.T) {
	l := newLeaving(t)
	p := l.drain("10m")
	if err := unix.Kill(p.Pid(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wants(t, p.Wait(), "wait for "+oneLeft+": interrupted")
	l.start()
	l.served("after a wait that was interrupted")
	l.agent.Kill()
	p = l.drain("10m")
	l.start()
	wants(t, p.Wait(), "an agent has started")
	l.served("after a wait that the agent has ended")
	l.agent.Kill()
	l.flow(maps.FlowReset)
	if err := l.drain("10m").Wait(); err != nil || l.isThere() {
		t.Errorf("cleanup ended with %v; something is left: %t", err, l.isThere())
	}
}

// served checks that the agent serves all that the one before served.
func (l *leaving) served(when string) {
	l.t.Helper()
	if diff := cmp.Diff(l.svcs, l.content().svcs); diff != "" {
		l.t.Errorf("%s: frontends (-before +after):\n%s", when, diff)
	}
	if got := l.connect(10); got["198.18.0.1"] != 10 {
		l.t.Errorf("%s: 10 connections went %v", when, got)
	}
}

// TestDrainIsInterruptedWhileItScans checks that a cleanup that is interrupted while it counts
// connections ends like one that waits, even if none are left.
func TestDrainIsInterruptedWhileItScans(t *testing.T) {
	l := newLeaving(t)
	l.flow(maps.FlowReset)
	waiting, err := flowtable.NewDrain(datapath.MapsDir(l.bpffs), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := &drainer{cfg: l.config(), limit: time.Minute, out: io.Discard, node: waiting}
	_, err = d.wait(ctx)
	wants(t, err, "wait for 0 connections: interrupted")
}

// TestDrainedNodeHasAnAgent checks that an agent that starts when there is nothing left to wait for
// keeps its maps.
func TestDrainedNodeHasAnAgent(t *testing.T) {
	l := newLeaving(t)
	_, err := remove(l.config(), "", false, func() (flowtable.Stuck, error) {
		l.start()
		return flowtable.Stuck{}, nil
	})
	if !errors.Is(err, api.ErrInUse) {
		t.Errorf("removing the maps of an agent: %v", err)
	}
	l.served("after a cleanup that came too late")
}

func (l *leaving) config() *config.Config {
	return &config.Config{BPFFS: l.bpffs, StateDir: strings.TrimPrefix(l.flags[1], "--state-dir=")}
}
