package maps

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

// Who has a rate has it by either way to write pods, and keeps what was sent when it changes; who has none any more leaves nothing.
func TestRates(t *testing.T) {
	rig.Root(t)
	m, err := Create(Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	require := func(what string, want map[uint32]Pace) {
		t.Helper()
		have, err := Paces(m.PodRates, m.PodPaces)
		if diff := cmp.Diff(want, have); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +have):\n%s", what, err, diff)
		}
		paces := 0
		var index uint32
		var row bpf.MapsPodPace
		for rows := m.PodPaces.Iterate(); rows.Next(&index, &row); {
			paces++
		}
		if paces != len(want) {
			t.Errorf("%s: %d pods have sent something", what, paces)
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	slow, fast, free := Pod{Index: 7, Rate: 1000}, Pod{Index: 7, Rate: 2000}, Pod{Index: 7}
	other := Pod{Index: 8, Rate: 3000}
	set := func(pods ...Pod) { t.Helper(); _, err := m.SetPods(pods); check(err) }

	check(m.AddPod(slow))
	require("added", map[uint32]Pace{7: {Rate: 1000}})
	check(m.PodPaces.Put(&slow.Index, &bpf.MapsPodPace{Next: 5, Sent: 6, Dropped: 7}))
	check(m.AddPod(fast))
	require("added at another rate", map[uint32]Pace{7: {Rate: 2000, Sent: 6, Dropped: 7}})
	set(slow, other)
	require("set, with another", map[uint32]Pace{7: {Rate: 1000, Sent: 6, Dropped: 7}, 8: {Rate: 3000}})
	set(free, other)
	require("set, without a rate", map[uint32]Pace{8: {Rate: 3000}})
	set(slow)
	require("set, without the other", map[uint32]Pace{7: {Rate: 1000}})
	check(m.AddPod(free))
	require("added without a rate", map[uint32]Pace{})
	check(m.AddPod(other))
	check(m.RemovePod(other))
	require("removed", map[uint32]Pace{})
}
