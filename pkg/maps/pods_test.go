package maps

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.io/fairlead/test/rig"
)

// PodRows returns what SetPods wrote, and SetPods changes only the rows that differ.
func TestPodRows(t *testing.T) {
	rig.Root(t)
	m, err := Create(Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	addrs := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	web := Pod{Addrs: addrs("10.1.0.9", "fd01::9"), Index: 7, MAC: [6]byte{2, 7}, HostMAC: [6]byte{2, 107}}
	router := Pod{Addrs: addrs("10.1.0.10"), Index: 8, MAC: [6]byte{2, 8}, HostMAC: [6]byte{2, 108}, Unchecked: true}
	moved := Pod{Addrs: addrs("10.1.0.9"), Index: 9, MAC: [6]byte{2, 9}, HostMAC: [6]byte{2, 109}}
	meshed, audited, lost := web, moved, moved
	meshed.Proxy, audited.Proxy = Proxy{Asked: true, Port: 65535}, Proxy{Asked: true, Port: 15001, Optional: true}
	lost.Proxy = Proxy{Asked: true}
	paced := moved
	paced.BBR = true
	for _, step := range []struct {
		name    string
		want    []Pod
		changed int
	}{
		{"nobody", nil, 0}, {"two", []Pod{web, router}, 5}, {"the same", []Pod{web, router}, 0},
		{"one gets a proxy", []Pod{meshed, router}, 3},
		{"an address moves", []Pod{router, moved}, 4}, {"that gets one", []Pod{router, audited}, 2}, {"and loses it", []Pod{router, lost}, 2}, {"that gets BBR instead", []Pod{router, paced}, 2}, {"nobody is left", nil, 4},
	} {
		changed, err := m.SetPods(step.want)
		if err != nil || changed != step.changed {
			t.Errorf("%s: %d rows changed, %v, want %d", step.name, changed, err, step.changed)
		}
		have, err := PodRows(m.PodLinks, m.Pods)
		if diff := cmp.Diff(step.want, have, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
			t.Errorf("%s: %v, pods (-want +have):\n%s", step.name, err, diff)
		}
	}
	// If a device's row is gone, its address is listed without it.
	if err := m.AddPod(web); err != nil {
		t.Fatal(err)
	}
	if err := m.PodLinks.Delete(web.Index); err != nil {
		t.Fatal(err)
	}
	have, err := PodRows(m.PodLinks, m.Pods)
	if err != nil || len(have) != 2 || !slices.Equal(have[0].Addrs, addrs("10.1.0.9")) || !slices.Equal(have[1].Addrs, addrs("fd01::9")) {
		t.Errorf("addresses without a device: %+v, %v", have, err)
	}
}

func TestNativeRows(t *testing.T) {
	rig.Root(t)
	m, err := Create(Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("fd00::/16")}
	inner := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.1.2.3/32")}
	nested := slices.Concat(want[:1], inner, want[1:])
	for _, list := range [][]netip.Prefix{want, want[1:], nil, want[:1], inner, nested, want, nested, nil} {
		if _, err := m.SetNative(list); err != nil {
			t.Fatal(err)
		}
		if have, err := NativeRows(m.MasqSkip); err != nil || !slices.Equal(have, list) {
			t.Errorf("have %v, %v, want %v", have, err, list)
		}
	}
}
