package observe

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/goldenfile"
	"fairlead.io/fairlead/test/tables"
)

func dumpable(t *testing.T, l *tables.Layout) *Snapshot {
	t.Helper()
	s, err := Take(Tables{
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
	s.Counters = []Counter{{Hook: "sock", Reason: "none", Packets: 12}, {Hook: "sock", Reason: "no-backend", Packets: 3}}
	s.Optouts = []Optout{
		{Kind: "cgroup", ID: 77, Pod: "shop/agent", Why: "annotation of the pod"},
		{Kind: "netns", ID: 8779, Pod: "shop/web", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("fd01::9")},
			Why: "mesh"},
	}
	s.Pods = []LocalPod{
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
	for _, name := range DumpNames() {
		var out bytes.Buffer
		if err := Dump(&out, s, name); err != nil {
			t.Fatal(err)
		}
		goldenfile.Compare(t, name+".txt", out.String())
	}
	var out bytes.Buffer
	if err := DumpAll(&out, s); err != nil {
		t.Fatal(err)
	}
	goldenfile.Compare(t, "all.txt", out.String())
	if found := Check(s); len(found) > 0 {
		t.Errorf("sound tables are reported as damaged: %q", found)
	}
	if err := Dump(&out, s, "nope"); err == nil {
		t.Error("dumping an unknown map did not fail")
	}
}

func TestDumpReportsWriteErrors(t *testing.T) {
	l := tables.NewLayout()
	l.Add(tables.Shop()[0])
	s := dumpable(t, l)
	if err := DumpAll(fullDisk{}, s); !errors.Is(err, errFull) {
		t.Errorf("DumpAll to a full disk: %v", err)
	}
	if err := Dump(fullDisk{}, s, "svcs"); !errors.Is(err, errFull) {
		t.Errorf("Dump to a full disk: %v", err)
	}
}

type fullDisk struct{}

var errFull = errors.New("full")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// TestDumpAllIgnoresLayout lays out the same services in another order, at other indexes, offsets
// and tags.
func TestDumpAllIgnoresLayout(t *testing.T) {
	dump := func(l *tables.Layout, list []tables.Wants) string {
		for _, w := range list {
			l.Add(w)
			l.NextSlot += 3
		}
		s, err := Take(Tables{Frontends: l.Frontends, Services: l.Services, Slots: l.Slots, Backends: l.Backends, Names: l.Names})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := DumpAll(&out, s); err != nil {
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
		if err := DumpAll(&out, dumpable(t, l)); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	one, two := dump("10.1.0.1:1", "10.1.0.2:1", "10.1.0.1:1"), dump("10.1.0.1:1", "10.1.0.1:1", "10.1.0.2:1")
	if one == two || !strings.Contains(one, "10.1.0.1:1*2 10.1.0.2:1 order=") && !strings.Contains(one, "10.1.0.1:1*2 10.1.0.2:1*1 order=") {
		t.Errorf("two orders of the same slots:\n%s%s", one, two)
	}
}

func TestSnapshotBackends(t *testing.T) {
	l := tables.NewLayout()
	for _, w := range tables.Shop() {
		l.Add(w)
	}
	l.Backend(0, "10.1.0.99:1") // freed: no slot leads to it
	s := take(t, l)
	users := func(address string) (names []string) {
		for _, b := range s.Backends {
			if b.Address.String() == address {
				names = append(names, b.Service)
			}
		}
		return names
	}
	if diff := cmp.Diff([]string{"shop/web:http/tcp4", "shop/weighted/tcp4"}, users("10.1.0.1:8080")); diff != "" {
		t.Error(diff)
	}
	if got := users("10.1.0.99:1"); len(got) != 1 || got[0] != "" {
		t.Errorf("a freed backend is used by %q", got)
	}
	if services, frontends, backends := s.Counts(); services != 5 || frontends != 7 || backends != 7 {
		t.Errorf("counts: %d services, %d frontends, %d backends", services, frontends, backends)
	}
}

func TestTextOf(t *testing.T) {
	for text, want := range map[string]string{"shop/web": "shop/web", "\x1b[2Jx": `"\x1b[2Jx"`, "\xff": `"\xff"`, "": ""} {
		var name maps.NameText
		for i := range len(text) {
			name.Text[i] = int8(text[i])
		}
		if got := textOf(&name); got != want {
			t.Errorf("textOf(%q) = %s, want %s", text, got, want)
		}
	}
	var full maps.NameText
	for i := range full.Text {
		full.Text[i] = 'x'
	}
	if got := textOf(&full); len(got) != len(full.Text) {
		t.Errorf("an unterminated name is %d bytes long", len(got))
	}
}
