package datapath

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// held is a growth that stops at some of its steps until it is told to go on.
type held struct {
	at    []string
	steps chan string
	next  chan struct{}
}

func (h *held) failpoint(step string) error {
	if slices.Contains(h.at, step) {
		h.steps <- step
		<-h.next
	}
	return nil
}

// run starts a growth, calls visit at each of the steps, and returns the error of the growth.
func (h *held) run(grow func() error, visit func(step string)) (err error) {
	h.steps, h.next = make(chan string), make(chan struct{})
	go func() {
		err = grow()
		close(h.steps)
	}()
	for step := range h.steps {
		visit(step)
		h.next <- struct{}{}
	}
	return err
}

// While maps grow, at every step that may take long, Status returns, links are repaired, new
// devices are served, and Prepare returns for frontends that need nothing new. When the growth is
// over, new devices are served like the others.
func TestGrowthKeepsNobodyWaiting(t *testing.T) {
	for _, tt := range []struct {
		name string
		grow func(d *Datapath) error
		long []string // steps before anything that may take long
	}{
		{"flows", func(d *Datapath) error { return d.GrowFlows(2 * d.Sizes().Flows) }, []string{
			"flows: create", "flows: pin", "flows: load", "flows: devices", "flows: both", "flows: carry", "flows: new", "flows: publish",
			"flows: load last", "flows: devices last", "flows: close",
		}},
		{"tables", func(d *Datapath) error { return d.Grow(maps.Sizes{Svcs: 1 << 14}) }, []string{"grow: create", "grow: load"}},
		{"policies", func(d *Datapath) error {
			_, err := d.GrowPolicies("policy_peers", 0)
			return err
		}, []string{"grow: create", "grow: load"}},
		{"clients", func(d *Datapath) error { return d.Enlarge(maps.Room{Clients: 1 << 17}) }, []string{"grow: create", "grow: load"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newForwardingNode(t, devices.Off)
			h := held{at: tt.long}
			w.failpoint = h.failpoint
			d := w.start(t)
			var met []string
			err := h.run(func() error { return w.node.Do(func() error { return tt.grow(d) }) }, func(step string) {
				met = append(met, step)
				device := fmt.Sprintf("eth%d", 1+len(met))
				rig.Veth(t, w.backends, device, w.node, device)
				if err := w.within(func() error { return w.wantCare(d, device) }); err != nil {
					t.Errorf("%s: %v", step, err)
				}
			})
			if err != nil || !slices.Equal(met, tt.long) {
				t.Errorf("visited steps %q, want %q: %v", met, tt.long, err)
			}
			if served := len(d.hooks.States()); served != 2+len(met) {
				t.Errorf("%d devices are served, want %d", served, 2+len(met))
			}
			w.wantWhole(t, d)
			w.wantSame(t, d)
		})
	}
}

// within runs, on the node, something that must not wait for the growth. It allows much more time
// than that needs.
func (w *forwardingNode) within(care func() error) error {
	done := make(chan error, 1)
	go func() { done <- w.node.Do(care) }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		return errors.New("it seems to wait for the growth")
	}
}

// wantCare does what an agent does all the time, with a new device and a link that somebody
// detached.
func (w *forwardingNode) wantCare(d *Datapath, device string) error {
	if err := detach(d.pins.link("sock_connect4")); err != nil {
		return err
	}
	mended := d.CheckAttachment().Mended
	if err := d.scanAddresses(func(*Local) {}); err != nil {
		return err
	}
	status, err := d.Status()
	if err != nil {
		return err
	}
	for _, prog := range status.Programs {
		if !prog.Attached && !prog.Idle {
			return fmt.Errorf("%s is not attached after CheckAttachment, which has repaired %d links so far", prog.Name, mended)
		}
	}
	served := false
	for _, s := range status.Outside.Devices {
		served = served || s.Name == device && s.TC != "" && s.Error == ""
	}
	if !served {
		return fmt.Errorf("device %s is not served", device)
	}
	return d.Prepare([]maps.SvcKey{{}}, []maps.Svc{{Kind: maps.NodePort}})
}

// wantSame fails the test unless every link at a device runs one of the current programs. Filters
// have no links.
func (w *forwardingNode) wantSame(t *testing.T, d *Datapath) {
	t.Helper()
	want := map[ebpf.ProgramID]bool{}
	for _, prog := range d.outside.running() {
		id, err := program{Program: prog}.id()
		if err != nil {
			t.Fatal(err)
		}
		want[id] = true
	}
	links := 0
	for _, name := range files(t, d.pins.devs) {
		l, err := link.LoadPinnedLink(filepath.Join(d.pins.devs, name), nil)
		if err != nil {
			continue // a directory
		}
		info, err := l.Info()
		if err := errors.Join(err, l.Close()); err != nil {
			t.Fatal(err)
		}
		if links++; !want[info.Program] {
			t.Errorf("%s runs another program", name)
		}
	}
	if states := d.hooks.States(); states[0].TC == "tcx" && links != 2*len(states) {
		t.Errorf("%d links for %d devices", links, len(states))
	}
}
