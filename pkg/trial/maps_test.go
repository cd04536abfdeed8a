package trial

import (
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// A trial has to see what the programs would see: of the maps that no program writes, it uses the
// live ones, unless what they say does not concern a packet that begins a flow and goes nowhere.
func TestTrialReadsWhatProgramsRead(t *testing.T) {
	other := []string{
		"route_epoch",      // it asks the kernel, whatever changed
		"range_epochs",     // a new flow is checked by the ranges themselves
		"conntrack_import", // no packet of a trial belongs to a connection of before
		"watch",            // nobody is told of a trial
	}
	writers := map[string]string{}
	for _, info := range (&maps.Maps{}).All() {
		writers[info.Name] = info.WrittenBy
	}
	tc, err := bpf.LoadTc()
	if err != nil {
		t.Fatal(err)
	}
	xdp, err := bpf.LoadXdp()
	if err != nil {
		t.Fatal(err)
	}
	pod, err := bpf.LoadPod()
	if err != nil {
		t.Fatal(err)
	}
	used := slices.Concat(pod.Programs["tc_from_pod"].Instructions, pod.Programs["tc_to_pod"].Instructions,
		tc.Programs["tc_from_netdev"].Instructions, xdp.Programs["xdp_from_netdev"].Instructions)
	seen := map[string]bool{}
	for i := range used {
		name := used[i].Reference()
		by, ok := writers[name]
		isProgram := func(word string) bool { return slices.Contains([]string{"tc", "xdp", "pod"}, word) }
		if !ok || seen[name] || slices.ContainsFunc(strings.Split(by, ", "), isProgram) {
			continue
		}
		seen[name] = true
		if slices.Contains(readByTrial(), name) == slices.Contains(other, name) {
			t.Errorf("a trial has an empty map %s, which %s writes", name, by)
		}
	}
	if len(seen) < 8 {
		t.Errorf("only %d maps were seen", len(seen))
	}
}
