package podnet

import (
	"log/slog"
	"testing"

	"fairlead.io/fairlead/pkg/cni"
)

// What is known of a pod decides; what is not leaves it as it was, also for the next agent.
func TestDecideChecks(t *testing.T) {
	dir := t.TempDir()
	unchecked, known := false, false
	cfg := Config{
		Dir: dir, Chained: true, Boot: "one", Log: slog.New(slog.DiscardHandler),
		Unchecked: func(pod cni.Pod) (bool, bool) { return unchecked && pod.Name == "web", known },
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
	for _, step := range []struct {
		name             string
		unchecked, known bool
		want             bool
	}{
		{"not known", true, false, false}, {"known", true, true, true}, {"not known any more", false, false, true},
		{"known to be checked", false, true, false}, {"and again", true, true, true},
	} {
		unchecked, known = step.unchecked, step.known
		if err := n.decideChecks(); err != nil {
			t.Fatal(err)
		}
		if got := podOf(n.records[name]).Unchecked; got != step.want || (n.Stats().Unchecked == 1) != step.want {
			t.Errorf("%s: unchecked is %t, %d of all", step.name, got, n.Stats().Unchecked)
		}
		next, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := next.records[name].Unchecked; got != step.want {
			t.Errorf("%s: to the next agent unchecked is %t", step.name, got)
		}
		if err := next.Close(); err != nil {
			t.Fatal(err)
		}
	}
	known = false
	was := &Record{Pod: record.Pod, Unchecked: true}
	if n.unchecked(cni.Pod{Namespace: "shop", Name: "web", UID: "another"}, was) || !n.unchecked(record.Pod, was) {
		t.Error("a pod that takes the interface over is not known, and is taken for the one before")
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
}
