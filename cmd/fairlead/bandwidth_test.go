package main

import (
	"cmp"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	gocmp "github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/metrics"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/sysctl"
	"fairlead.io/fairlead/test/rig"
)

// pinRates creates the maps of an agent with this configuration, and gives pods their rates in
// them.
func pinRates(t *testing.T, cfg *config.Config, pods ...maps.Pod) *maps.Maps {
	t.Helper()
	rig.Root(t)
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if err := os.MkdirAll(mapsDir(cfg), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Pin(mapsDir(cfg)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.SetPods(pods); err != nil {
		t.Fatal(err)
	}
	return m
}

// has fills a row with what was sent or received.
func has[K any](t *testing.T, m *ebpf.Map, key K, row bpf.MapsPodPace) {
	t.Helper()
	if err := m.Put(&key, &row); err != nil {
		t.Fatal(err)
	}
}

// TestRateSamples checks whose the rates are: each pod has one however many interfaces it has, a
// pod that is being recreated is the sum of both, and namespaces and the node have their shared
// rates.
func TestRateSamples(t *testing.T) {
	cfg := &config.Config{BPFFS: rig.BPFFS(t)}
	share := maps.Share{Namespace: "shop", OfNamespace: 5000, OfNode: 9000}
	m := pinRates(t, cfg,
		maps.Pod{Index: 7, Rates: maps.Rates{Out: 1000, In: 2000, Share: share}}, maps.Pod{Index: 8, Pace: 7, Rates: maps.Rates{Out: 1000, In: 2000, Share: share}},
		maps.Pod{Index: 12, Rates: maps.Rates{Out: 1000, In: 2000, Share: share}},
		maps.Pod{Index: 9, Rates: maps.Rates{Share: maps.Share{OfNode: 9000}}}, maps.Pod{Index: 10, Rates: maps.Rates{Out: 77}},
		maps.Pod{Index: 11, Rates: maps.Rates{Out: 55, In: 66}},
	)
	in, out := uint32(bpf.MapsPaceKindPACE_IN), uint32(bpf.MapsPaceKindPACE_OUT)
	has(t, m.PodPaces, bpf.MapsPaceKey{Ifindex: 7, Kind: out}, bpf.MapsPodPace{Sent: 1, Dropped: 2, Marked: 3})
	has(t, m.PodPaces, bpf.MapsPaceKey{Ifindex: 12, Kind: out}, bpf.MapsPodPace{Sent: 10, Dropped: 20, Marked: 30})
	has(t, m.PodPaces, bpf.MapsPaceKey{Ifindex: 7, Kind: in}, bpf.MapsPodPace{Sent: 4, Dropped: 5, Marked: 6})
	has(t, m.PodPaces, bpf.MapsPaceKey{Ifindex: 11, Kind: out}, bpf.MapsPodPace{Sent: 7})
	has(t, m.SharePaces, maps.ShareOf("shop"), bpf.MapsPodPace{Sent: 100, Dropped: 200})
	has(t, m.SharePaces, uint64(maps.NodeShare), bpf.MapsPodPace{Sent: 1000, Dropped: 2000})
	web := cni.Pod{Namespace: "shop", Name: "web"}
	got := podnetwork.RateSamples(mapsDir(cfg), &podnet.Stats{Rated: map[uint32]cni.Pod{7: web, 8: web, 9: {Namespace: "other", Name: "db"}, 11: {}, 12: web}}) // 10 has just gone
	slices.SortFunc(got, func(x, y metrics.Rate) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.Direction, y.Direction))
	})
	want := []metrics.Rate{
		{RateOf: metrics.RateOf{Direction: "egress"}, Limit: 9000, Passed: 1000, Dropped: 2000},
		{RateOf: metrics.RateOf{Namespace: "shop", Direction: "egress"}, Limit: 5000, Passed: 100, Dropped: 200},
		{RateOf: metrics.RateOf{Namespace: "shop", Pod: "web", Direction: "egress"}, Limit: 2000, Passed: 11, Dropped: 22, Marked: 33},
		{RateOf: metrics.RateOf{Namespace: "shop", Pod: "web", Direction: "ingress"}, Limit: 4000, Passed: 4, Dropped: 5, Marked: 6},
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := podnetwork.RateSamples(mapsDir(cfg), &podnet.Stats{}); got != nil {
		t.Errorf("without a pod that has one: %v", got)
	}
}

// TestBandwidthList checks that the list says whose the rates are, also for pods with devices and
// addresses from another plugin.
func TestBandwidthList(t *testing.T) {
	cfg := &config.Config{BPFFS: rig.BPFFS(t), StateDir: t.TempDir()}
	share := maps.Share{Namespace: "shop", OfNamespace: 25e6, OfNode: 625e6}
	m := pinRates(t, cfg,
		maps.Pod{
			Index: 10007, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.7")}, MAC: [6]byte{2, 7}, HostMAC: [6]byte{2, 8},
			Rates: maps.Rates{Out: 1.25e6, In: 2.5e6, Share: share}, BBR: true, // programs know the pod by its address
		},
		maps.Pod{Index: 10008, Rates: maps.Rates{In: 125e6}},
		maps.Pod{Index: 10009, Rates: maps.Rates{Out: 125}}, maps.Pod{Index: 10010, Pace: 10008, Rates: maps.Rates{In: 125e6}},
	)
	in, out := uint32(bpf.MapsPaceKindPACE_IN), uint32(bpf.MapsPaceKindPACE_OUT)
	has(t, m.PodPaces, bpf.MapsPaceKey{Ifindex: 10007, Kind: out}, bpf.MapsPodPace{Sent: 1, Dropped: 2})
	has(t, m.PodPaces, bpf.MapsPaceKey{Ifindex: 10007, Kind: in}, bpf.MapsPodPace{Sent: 1, Dropped: 3, Marked: 4, Window: bpf.MapsReceiveWindow{Bytes: 500_000}})
	has(t, m.SharePaces, maps.ShareOf("shop"), bpf.MapsPodPace{Sent: 1, Dropped: 5})
	record := func(index int, device, ifName string, chained bool, pod cni.Pod) {
		t.Helper()
		r := podnet.Record{
			Owner: cni.Attachment{Network: "n", Container: pod.Name, IfName: ifName}, Pod: pod, Boot: "this",
			Device: cni.Device{Index: index, Name: device, MAC: "02:00:00:00:00:01", PodMAC: "02:00:00:00:00:02", Chained: chained},
		}
		if !chained {
			r.Device.Name = r.Owner.Device()
		}
		content, err := json.Marshal(r)
		if err == nil {
			err = os.MkdirAll(filepath.Join(cfg.StateDir, "pods"), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(cfg.StateDir, "pods", r.Owner.Device()), content, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	record(10007, "", "eth0", false, cni.Pod{Namespace: "shop", Name: "web"})
	record(10008, "cali0123456789a", "eth0", true, cni.Pod{Namespace: "data", Name: "db"})
	record(10010, "net1", "net1", true, cni.Pod{Namespace: "data", Name: "db"})
	got := fairlead(t, "bandwidth", "list", "--bpffs", cfg.BPFFS, "--state-dir", cfg.StateDir)
	if got.code != exitOK {
		t.Fatalf("%+v", got)
	}
	var text strings.Builder
	for line := range strings.Lines(got.stdout) {
		if !strings.HasPrefix(line, "shop/web") { // that pod has BBR, whatever this machine's default is
			line = strings.Replace(line, sysctl.CongestionControl(sysctl.Root), "cubic", 1)
		}
		text.WriteString(line)
	}
	golden(t, "bandwidth-list.txt", text.String())
}
