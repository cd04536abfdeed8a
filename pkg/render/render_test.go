package render

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/pkg/snapshot"
	"fairlead.io/fairlead/test/goldenfile"
	"fairlead.io/fairlead/test/tables"
)

type fullDisk struct{}

var errFull = errors.New("full")

// TestTakeAnything reads tables of random bytes: nothing in them may cause a panic.
func TestTakeAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := tables.NewLayout()
		for i := range l.Services[:8] {
			l.Services[i].Words = [maps.Scopes]uint64{rapid.Uint64().Draw(t, "word"), uint64(maps.MakeWord(
				rapid.Uint32Range(0, 520).Draw(t, "off"), rapid.IntRange(0, 20).Draw(t, "len"), rapid.Uint16().Draw(t, "tag")))}
			l.Services[i].Algorithm, l.Services[i].Flags = rapid.Uint8().Draw(t, "algorithm"), rapid.Uint8().Draw(t, "flags")
			for at := range l.Names[i].Text {
				l.Names[i].Text[at] = rapid.Int8().Draw(t, "c")
			}
		}
		for i := range l.Slots {
			l.Slots[i].Value = rapid.Uint64().Draw(t, "slot")
		}
		key := maps.SvcKey{Proto: rapid.Uint8().Draw(t, "proto"), Port: rapid.Uint16().Draw(t, "port")}
		l.Frontends[key] = maps.Svc{Service: rapid.Uint32().Draw(t, "service"), Kind: rapid.Uint32().Draw(t, "kind")}
		s, err := snapshot.Take(snapshot.Tables{
			Frontends: l.Frontends, Ranges: l.Ranges, Services: l.Services, Slots: l.Slots, Backends: l.Backends, Names: l.Names,
		})
		if err != nil {
			t.Fatal(err)
		}
		snapshot.Check(s)
		for _, name := range Names() {
			if err := Map(io.Discard, s, name); err != nil {
				t.Fatal(err)
			}
		}
		if err := All(io.Discard, s); err != nil {
			t.Fatal(err)
		}
	})
}

func dumpable(t *testing.T, l *tables.Layout) *snapshot.Snapshot {
	t.Helper()
	s, err := snapshot.Take(snapshot.Tables{
		Frontends: l.Frontends, Ranges: l.Ranges, Services: l.Services, Slots: l.Slots, Backends: l.Backends, Names: l.Names,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDump(t *testing.T) {
	l := tables.NewLayout()
	for _, w := range tables.Shop() {
		l.Add(w)
	}
	s := dumpable(t, l)
	s.Counters = []reasons.Counter{{Hook: "sock", Reason: "none", Packets: 12}, {Hook: "sock", Reason: "no-backend", Packets: 3}}
	s.Optouts = []snapshot.Optout{
		{Kind: "cgroup", ID: 77, Pod: "shop/agent", Why: "annotation of the pod"},
		{Kind: "netns", ID: 8779, Pod: "shop/web", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("fd01::9")},
			Why: "mesh"},
	}
	s.Pods = []snapshot.LocalPod{
		{Interface: 7, Device: "fl0011aabbccdd", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("fd01::9")}, MAC: "02:00:00:00:00:07"},
		{Interface: 8, MAC: "02:00:00:00:00:08", Unchecked: true, Proxy: maps.Proxy{Asked: true, Port: 15001}},
		{Interface: 9, MAC: "02:00:00:00:00:09", Proxy: maps.Proxy{Asked: true, Port: 15002, Optional: true}},
		{Interface: 10, MAC: "02:00:00:00:00:0a", Proxy: maps.Proxy{Asked: true}, BBR: true},
	}
	s.Native = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd01::/48")}
	s.Cluster.Nodes = map[netip.Addr]maps.ClusterNode{
		netip.MustParseAddr("192.0.2.1"): {Name: 5, Number: 1, Self: true}, netip.MustParseAddr("2001:db8::2"): {Name: 6, Number: 2},
	}
	s.Cluster.Sources = map[netip.Prefix]maps.ClusterNode{netip.MustParsePrefix("10.1.0.0/24"): {Number: 1}, netip.MustParsePrefix("fd01::/64"): {Number: 2}}
	for _, name := range Names() {
		var out bytes.Buffer
		if err := Map(&out, s, name); err != nil {
			t.Fatal(err)
		}
		goldenfile.Compare(t, name+".txt", out.String())
	}
	var out bytes.Buffer
	if err := All(&out, s); err != nil {
		t.Fatal(err)
	}
	goldenfile.Compare(t, "all.txt", out.String())
	if found := snapshot.Check(s); len(found) > 0 {
		t.Errorf("sound tables are reported as damaged: %q", found)
	}
	if err := Map(&out, s, "nope"); err == nil {
		t.Error("dumping an unknown map did not fail")
	}
}

func TestDumpReportsWriteErrors(t *testing.T) {
	l := tables.NewLayout()
	l.Add(tables.Shop()[0])
	s := dumpable(t, l)
	if err := All(fullDisk{}, s); !errors.Is(err, errFull) {
		t.Errorf("DumpAll to a full disk: %v", err)
	}
	if err := Map(fullDisk{}, s, "svcs"); !errors.Is(err, errFull) {
		t.Errorf("Dump to a full disk: %v", err)
	}
}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// TestDumpAllIgnoresLayout lays out the same services in another order, at other indexes, offsets
// and tags.
func TestDumpAllIgnoresLayout(t *testing.T) {
	dump := func(l *tables.Layout, list []tables.Wants) string {
		for _, w := range list {
			l.Add(w)
			l.NextSlot += 3
		}
		s, err := snapshot.Take(snapshot.Tables{Frontends: l.Frontends, Services: l.Services, Slots: l.Slots, Backends: l.Backends, Names: l.Names})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := All(&out, s); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	want := dump(tables.NewLayout(), tables.Shop())
	rapid.Check(t, func(t *rapid.T) {
		l := tables.NewLayout()
		l.NextService = rapid.Uint32Range(1, 40).Draw(t, "service")
		l.NextSlot = rapid.Uint32Range(0, 300).Draw(t, "slot")
		l.NextBackend = rapid.Uint32Range(0, 40).Draw(t, "backend")
		l.Tag = rapid.Uint16().Draw(t, "tag")
		got := dump(l, rapid.Permutation(tables.Shop()).Draw(t, "order"))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestDumpAllSeesTheOrderOfSlots(t *testing.T) {
	dump := func(backends ...string) string {
		l := tables.NewLayout()
		l.Add(tables.Wants{Name: "a/b/tcp4", Algorithm: 3, All: backends})
		var out bytes.Buffer
		if err := All(&out, dumpable(t, l)); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	one, two := dump("10.1.0.1:1", "10.1.0.2:1", "10.1.0.1:1"), dump("10.1.0.1:1", "10.1.0.1:1", "10.1.0.2:1")
	if one == two || !strings.Contains(one, "10.1.0.1:1*2 10.1.0.2:1 order=") && !strings.Contains(one, "10.1.0.1:1*2 10.1.0.2:1*1 order=") {
		t.Errorf("two orders of the same slots:\n%s%s", one, two)
	}
}
