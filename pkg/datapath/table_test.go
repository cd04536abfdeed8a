package datapath

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// traffic is a crowd that sends packets until it is stopped.
type traffic struct {
	*crowd
	flows, begun int
	done         chan struct{}
	ended        chan error
}

// startTraffic opens flows, and then continues them and opens more.
func (w *forwardingNode) startTraffic(t *testing.T, flows, most int) *traffic {
	t.Helper()
	c := &traffic{crowd: w.newCrowd(most), flows: flows, done: make(chan struct{}), ended: make(chan error, 1)}
	c.establish(t, flows)
	go func() {
		n, err := c.live(flows, c.done)
		c.begun = n
		c.ended <- err
	}()
	return c
}

// stop ends the traffic and fails the test unless every packet reached its flow's backend and the
// map has every flow.
func (c *traffic) stop(t *testing.T, d *Datapath) {
	t.Helper()
	close(c.done)
	if err := <-c.ended; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d rounds of packets, %d flows began", c.rounds, c.begun)
	if len(c.wrong) > 0 {
		t.Errorf("%d failures, the first: %s", len(c.wrong), c.wrong[0])
	}
	if n := c.remembered(t, d.Maps().Ct, c.flows+c.begun); n != c.flows+c.begun || c.begun == 0 {
		t.Errorf("the map has %d flows of %d", n, c.flows+c.begun)
	}
	c.wantWhole(t, d)
}

// wantWhole fails the test unless the programs of every device use the pinned maps and nothing of a
// growth is left.
func (w *forwardingNode) wantWhole(t *testing.T, d *Datapath) {
	t.Helper()
	pinned, err := maps.OpenFlowMap(d.pins.mapPin("ct"))
	if err != nil {
		t.Fatal(err)
	}
	defer pinned.Close()
	if mapID(t, pinned) != mapID(t, d.Maps().Ct) {
		t.Error("the map pinned as ct is not the one in use")
	}
	w.do(t, func() error {
		for _, s := range d.hooks.States() {
			if s.Err != nil || s.TC == "" {
				t.Errorf("device %s: %+v", s.Name, s)
			}
		}
		return nil
	})
	for _, prog := range d.outside.running() {
		id, err := program{Program: prog}.id()
		if err != nil {
			t.Fatal(err)
		}
		if used := mapsOf(t, id); used["ct"] != mapID(t, pinned) {
			t.Errorf("a program uses another ct: %v", used)
		}
	}
	if _, err := os.Stat(d.pins.table); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the pins of a growth are still there: %v", err)
	}
}

// The map of flows grows while packets of ten thousand flows pass in both directions and more flows
// begin. No packet is lost or reaches another backend or uses another port, and the map has every
// flow afterward.
func TestGrowFlowsUnderTraffic(t *testing.T) {
	for name, xdp := range map[string]devices.Mode{"tc at two devices": devices.Off, "tc and XDP": devices.Native} {
		t.Run(name, func(t *testing.T) {
			w := newForwardingNode(t, xdp)
			d := w.start(t)
			c := w.startTraffic(t, rig.Times(t, 10_000), 40_000)
			for range rig.Times(t, 2) {
				rows := d.Sizes().Flows
				w.do(t, func() error { return d.GrowFlows(2 * rows) })
				if have := d.Sizes().Flows; have != 2*rows {
					t.Errorf("there is room for %d rows, want %d", have, 2*rows)
				}
			}
			c.stop(t, d)
		})
	}
}

// runGrow starts an agent on a forwardingNode, prints "ready", and grows the map of flows when it reads a
// line, until the step at which it dies. Its arguments are the bpf filesystem, the cgroup and the
// step.
func runGrow(args []string) error {
	config := Config{BPFFS: args[0], CgroupRoot: args[1], Packets: clientPackets(devices.Off), Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	config.failpoint = func(step string) error {
		if step == args[2] {
			return errors.Join(unix.Kill(os.Getpid(), unix.SIGKILL), errors.New("survived"))
		}
		return nil
	}
	if err := checkLimited(); err != nil {
		return err
	}
	d, err := startForwardingNode(config, netip.MustParseAddr("10.244.2.5"))
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	return errors.Join(d.GrowFlows(2*d.Sizes().Flows), d.Close())
}

// tableSteps returns the steps of a growth of the map of flows.
func tableSteps(t *testing.T) (steps []string) {
	t.Helper()
	w := newForwardingNode(t, devices.Off)
	w.failpoint = func(step string) error {
		if strings.HasPrefix(step, "flows: ") {
			steps = append(steps, step)
		}
		return nil
	}
	d := w.start(t)
	w.do(t, func() error { return d.GrowFlows(2 * d.Sizes().Flows) })
	if len(steps) < 11 || !slices.Contains(steps, "flows: both") {
		t.Fatalf("only %q, which are too few to be all steps", steps)
	}
	return steps
}

// An agent is killed at every step of a growth, with the capabilities that it has in a cluster,
// while flows continue and begin. Flows are served until the next agent starts and after that, and
// none is lost.
func TestCrashWhileFlowsGrow(t *testing.T) {
	both := false
	for _, step := range tableSteps(t) {
		t.Run(step, func(t *testing.T) {
			w := newForwardingNode(t, devices.Off)
			agent := rig.NewChild(t, nil, w.node, "growth", w.BPFFS, w.CgroupRoot, step)
			if line, err := agent.ReadLine(); err != nil || line != "ready" {
				t.Fatalf("start the agent: %q, %v: %v", line, err, agent.Wait())
			}
			c := w.startTraffic(t, 500, 20_000)
			if _, err := fmt.Fprintln(agent.Stdin, "grow"); err != nil {
				t.Fatal(err)
			}
			var died *exec.ExitError
			if err := agent.Wait(); !errors.As(err, &died) || died.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
				t.Fatalf("the agent was not killed: %v", err)
			}
			d := w.start(t)
			want := maps.MinSizes().Flows
			if both {
				want *= 2
			}
			if have := d.Sizes().Flows; have != want {
				t.Errorf("there is room for %d rows, want %d", have, want)
			}
			c.stop(t, d)
		})
		both = both || step == "flows: both"
	}
}

// A growth that fails at any step leaves all flows where packets find them, and succeeds when it is
// tried again.
func TestGrowFlowsFails(t *testing.T) {
	boom := errors.New("boom")
	w := newForwardingNode(t, devices.Off)
	steps, fail := tableSteps(t), ""
	w.failpoint = func(step string) error {
		if step == fail {
			return boom
		}
		return nil
	}
	d := w.start(t)
	c := w.startTraffic(t, 500, 20_000)
	rows := d.Sizes().Flows
	for _, fail = range steps {
		err := w.node.Do(func() error { return d.GrowFlows(2 * rows) })
		last := slices.Index(steps, fail) > slices.Index(steps, "flows: publish")
		if !errors.Is(err, boom) && !last {
			t.Errorf("%s: GrowFlows: %v", fail, err)
		}
		if last {
			rows = d.Sizes().Flows
		}
	}
	fail = ""
	w.do(t, func() error { return d.GrowFlows(2 * rows) })
	c.stop(t, d)
}
