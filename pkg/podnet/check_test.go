package podnet

import (
	"log/slog"
	"testing"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
)

// The traits in effect are the last that were known, also for the next agent. Config.Traits is
// passed the previous ones, and nil for a new pod.
func TestDecideTraits(t *testing.T) {
	dir := t.TempDir()
	var is Traits
	known := false
	fresh := Traits{Proxy: maps.Proxy{Asked: true}}
	cfg := Config{
		Dir: dir, Chained: true, Boot: "one", Log: slog.New(slog.DiscardHandler),
		Traits: func(pod cni.Pod, asked *cni.Bandwidth, was *Traits) Traits {
			switch {
			case known && pod.Name == "web":
				return is
			case was == nil && asked != nil:
				return Traits{Rates: maps.Rates{Out: asked.EgressRate / 8}}
			case was == nil:
				return fresh
			}
			return *was
		},
	}
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	name := owner(1).Device()
	record := &Record{
		Owner: owner(1), Pod: cni.Pod{Namespace: "shop", Name: "web"}, Boot: "one",
		Device: cni.Device{Index: 1, Name: "lo", Chained: true, MAC: "02:00:00:00:00:01", PodMAC: "02:00:00:00:00:02"},
	}
	if err := n.files.replace(name, record); err != nil {
		t.Fatal(err)
	}
	n.records[name] = record
	free, limited, proxied := Traits{Unchecked: true}, Traits{Rates: maps.Rates{Out: 125_000}, BBR: true}, Traits{Proxy: maps.Proxy{Asked: true, Port: 15001, Optional: true}}
	for _, step := range []struct {
		name  string
		is    Traits
		known bool
		want  Traits
	}{
		{"unknown", free, false, Traits{}}, {"known", free, true, free}, {"unknown again", Traits{}, false, free},
		{"known to be checked", Traits{}, true, Traits{}}, {"known again", free, true, free}, {"with a rate", limited, true, limited}, {"with a proxy", proxied, true, proxied},
		{"unknown once more", free, false, proxied}, {"with an unknown proxy", fresh, true, fresh},
	} {
		is, known = step.is, step.known
		if err := n.decideTraits(); err != nil {
			t.Fatal(err)
		}
		stats, pod := n.Stats(), podOf(n.records[name], 0)
		if got := (Traits{pod.Unchecked, pod.Proxy, pod.BBR, pod.Policy, pod.Rates}); got != step.want || (stats.Limited == 1) != (got.Rates != maps.Rates{}) || (stats.Unchecked == 1) != got.Unchecked || (stats.BBR == 1) != got.BBR || stats.Proxied[got.Proxy.Port] == 1 != got.Proxy.Asked {
			t.Errorf("%s: traits %+v, stats %+v", step.name, got, stats)
		}
		next, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := next.records[name].Traits; got != step.want {
			t.Errorf("%s: the next agent has traits %+v", step.name, got)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	}
	known = false
	was := &Record{Pod: record.Pod, Traits: free}
	another := &Record{Pod: cni.Pod{Namespace: "shop", Name: "web", UID: "another"}}
	if n.traits(another, was) != fresh || n.traits(record, was) != free || n.traits(record, nil) != fresh {
		t.Error("the traits of a pod passed to one that took over its interface, or were lost")
	}
	another.Device.Bandwidth = &cni.Bandwidth{EgressRate: 8000}
	if got := n.traits(another, was); got != (Traits{Rates: maps.Rates{Out: 1000}}) {
		t.Errorf("with the bandwidth that the runtime asked for: traits %+v", got)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}
