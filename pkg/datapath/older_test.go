package datapath

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// age turns the pinned maps into maps of another version, which had the same fields and one unknown
// more.
func age(t *testing.T, dir string) {
	t.Helper()
	layouts, err := ebpf.LoadPinnedMap(filepath.Join(dir, "layouts"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer layouts.Close()
	texts := map[uint32][]byte{}
	var id uint32
	text := make([]byte, layouts.ValueSize())
	rows := layouts.Iterate()
	for rows.Next(&id, &text) {
		texts[id] = slices.Clone(text)
	}
	if err := rows.Err(); err != nil || len(texts) < len((&maps.Maps{}).All()) {
		t.Fatalf("found only %d layouts: %v", len(texts), err)
	}
	for id, text := range texts {
		other := bytes.Replace(text, []byte(`"Value":{`), []byte(`"Value":{"Name":"aged",`), 1)
		if err := layouts.Put(id, other[:len(text)]); err != nil {
			t.Fatal(err)
		}
	}
}

// An agent takes over from another version whose maps have other layouts. Meanwhile, established
// flows keep their ports and backends, through programs of both versions, and end up in the new
// maps, even if agents die on the way.
func TestTakeOver(t *testing.T) {
	for _, step := range []string{"none", "older: switched", "older: publish slots"} {
		t.Run(step, func(t *testing.T) {
			w := newForwardingNode(t, devices.Off)
			d := w.start(t)
			c := w.startTraffic(t, 1000, 1000+clientBatch)
			was := map[string]int{}
			for _, info := range d.Maps().All() {
				was[info.Name] = int(mapID(t, info.Map))
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			age(t, MapsDir(w.BPFFS))
			if _, err := maps.Open(MapsDir(w.BPFFS), true); !errors.Is(err, maps.ErrIncompatible) {
				t.Errorf("read-only Open of the other version's maps: %v", err)
			}
			if step != "none" {
				agent := rig.NewChild(t, nil, w.node, "growth", w.BPFFS, w.CgroupRoot, step)
				var died *exec.ExitError
				if err := agent.Wait(); !errors.As(err, &died) || died.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
					t.Fatalf("the agent was not killed: %v", err)
				}
			}
			d = w.start(t)
			c.stop(t, d)
			for _, info := range d.Maps().All() {
				if was[info.Name] == int(mapID(t, info.Map)) {
					t.Errorf("map %s is still that of the other version", info.Name)
				}
			}
			if left := files(t, filepath.Join(w.BPFFS, "fairlead", "v1")); slices.ContainsFunc(left, func(f string) bool { return strings.HasPrefix(f, "next") }) {
				t.Errorf("left behind: %q", left)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			again := w.start(t)
			if older := again.Maps().Older(); len(older) > 0 {
				t.Errorf("the next agent takes %q for maps of another version", older)
			}
		})
	}
}

// What programs of the other version write until this version's programs are attached is not lost.
func TestTakeOverLate(t *testing.T) {
	w := newForwardingNode(t, devices.Off)
	if err := w.start(t).Close(); err != nil {
		t.Fatal(err)
	}
	age(t, MapsDir(w.BPFFS))
	const clients = 2 * clientBatch
	var d *Datapath
	known := 0
	w.failpoint = func(step string) error {
		if step == "older: switched" {
			known = w.newCrowd(0).remembered(t, d.maps.Ct, clients)
		}
		return nil
	}
	d = open(t, w.Config) // copies the rows that exist
	c := w.newCrowd(clients)
	c.establish(t, clients)
	w.do(t, func() error { return errors.Join(d.Attach(), d.scanAddresses(func(*Local) {})) })
	for first := 0; first < clients; first += clientBatch {
		if err := c.talk(first, first+clientBatch); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.remembered(t, d.Maps().Ct, clients); n != clients || known != clients || len(c.wrong) > 0 {
		t.Errorf("the map has %d flows of %d, %d of them when the programs were switched; failures: %q", n, clients, known, c.wrong)
	}
}

// If the pins cannot be replaced, the new maps keep what is written to them until the next attempt.
func TestTakeOverAgain(t *testing.T) {
	w := newForwardingNode(t, devices.Off)
	if err := w.start(t).Close(); err != nil {
		t.Fatal(err)
	}
	age(t, MapsDir(w.BPFFS))
	boom, fails := errors.New("boom"), true
	w.failpoint = func(step string) error {
		if fails && step == "older: publish slots" {
			return boom
		}
		return nil
	}
	d := open(t, w.Config)
	w.do(t, func() error {
		if err := d.Attach(); !errors.Is(err, boom) {
			t.Errorf("attached: %v", err)
		}
		return d.scanAddresses(func(*Local) {})
	})
	const clients = clientBatch
	c := w.newCrowd(clients)
	c.establish(t, clients)
	fails = false
	w.do(t, d.Attach)
	if n := c.remembered(t, d.Maps().Ct, clients); n != clients || len(d.Maps().Older()) > 0 {
		t.Errorf("the map has %d flows of %d; maps of another version: %q", n, clients, d.Maps().Older())
	}
	w.wantWhole(t, d)
}

// During a takeover no connect to a service fails, and no connected socket loses its record.
func TestTakeOverUnderConnects(t *testing.T) {
	p := newMounts(t)
	if err := running(t, p).Close(); err != nil {
		t.Fatal(err)
	}
	load := startClient(t, p)
	age(t, MapsDir(p.BPFFS))
	for _, step := range []string{"older: stage", "older: publish svcs", "none"} {
		if err := p.runAgent(step); (err == nil) != (step == "none") {
			t.Fatalf("agent until %s: %v", step, err)
		}
	}
	if result := load.stop(t); len(result.Failed) > 0 || result.Tried == 0 {
		t.Errorf("%d of %d connects failed: %s", len(result.Failed), result.Tried, result.Failed[0])
	}
	checkWhole(t, p)
}
