package maps

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/rig"
)

func TestSetOptouts(t *testing.T) {
	rig.Root(t)
	m, err := Create(Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	addrs := []netip.Addr{netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("fd01::9")}
	web, moved := MakeOptout("shop/web", addrs, OptoutByPod), MakeOptout("shop/web", addrs[:1], OptoutByMesh)
	a, b := OptoutKey{Id: 1, Kind: OptoutNetns}, OptoutKey{Id: 1, Kind: OptoutCgroup}
	for _, step := range []struct {
		name    string
		want    map[OptoutKey]Optout
		remove  bool
		changed int
		have    map[OptoutKey]Optout
		kinds   uint32
	}{
		{"nothing", nil, true, 0, map[OptoutKey]Optout{}, 0},
		{"one", map[OptoutKey]Optout{a: web}, false, 1, map[OptoutKey]Optout{a: web}, OptoutNetns},
		{"the same", map[OptoutKey]Optout{a: web}, true, 0, map[OptoutKey]Optout{a: web}, OptoutNetns},
		{"changed", map[OptoutKey]Optout{a: moved}, true, 1, map[OptoutKey]Optout{a: moved}, OptoutNetns},
		{"another, keeping", map[OptoutKey]Optout{b: web}, false, 1, map[OptoutKey]Optout{a: moved, b: web}, OptoutNetns | OptoutCgroup},
		{"another, removing", map[OptoutKey]Optout{b: web}, true, 1, map[OptoutKey]Optout{b: web}, OptoutCgroup},
		{"none, keeping", nil, false, 0, map[OptoutKey]Optout{b: web}, OptoutCgroup},
		{"none", nil, true, 1, map[OptoutKey]Optout{}, 0},
	} {
		changed, err := m.SetOptouts(step.want, step.remove)
		if err != nil || changed != step.changed {
			t.Errorf("%s: %d rows changed, %v, want %d", step.name, changed, err, step.changed)
		}
		have, err := OptoutRows(m.Optout)
		if diff := cmp.Diff(step.have, have); diff != "" || err != nil {
			t.Errorf("%s: %v, rows (-want +got):\n%s", step.name, err, diff)
		}
		var kinds uint32
		if err := m.OptoutKinds.Lookup(uint32(0), &kinds); err != nil || kinds != step.kinds {
			t.Errorf("%s: kinds %d, %v, want %d", step.name, kinds, err, step.kinds)
		}
	}
}

func TestMakeOptout(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("10.1.0.9"), netip.MustParseAddr("fd01::9"), netip.MustParseAddr("10.1.0.10")}
	for _, name := range []string{"", "shop/web", strings.Repeat("a", 1000), "a" + strings.Repeat("\u00e9", 500)} {
		pod, got := OptoutPod(MakeOptout(name, addrs, OptoutByMesh))
		if !strings.HasPrefix(name, pod) || len(name) < 192 && pod != name || !utf8.ValidString(pod) || len(pod) < min(len(name), 190) {
			t.Errorf("%.20q became %.20q of %d bytes", name, pod, len(pod))
		}
		if !slices.Equal(got, addrs[:2]) {
			t.Errorf("addresses %v", got)
		}
	}
}
