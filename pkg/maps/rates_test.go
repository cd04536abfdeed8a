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
	require := func(what string, want map[uint32]Paced) {
		t.Helper()
		have, err := Paces(m.PodRates, m.PodPaces)
		if diff := cmp.Diff(want, have); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +have):\n%s", what, err, diff)
		}
		paces := 0
		var key bpf.MapsPaceKey
		var row bpf.MapsPodPace
		for rows := m.PodPaces.Iterate(); rows.Next(&key, &row); {
			if of := want[key.Ifindex]; (key.Kind == 0 && of.Out == nil) || (key.Kind == 1 && of.In == nil) {
				t.Errorf("%s: a row is left of %+v", what, key)
			}
			paces++
		}
		for _, of := range want {
			for _, pace := range []*Pace{of.Out, of.In} {
				if pace != nil {
					paces--
				}
			}
		}
		if paces != 0 {
			t.Errorf("%s: %d rows too many", what, paces)
		}
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	slow, fast, free := Pod{Index: 7, Rates: Rates{Out: 1000}}, Pod{Index: 7, Rates: Rates{Out: 2000, In: 500}}, Pod{Index: 7}
	other := Pod{Index: 8, Rates: Rates{In: 3000}}
	set := func(pods ...Pod) { t.Helper(); _, err := m.SetPods(pods); check(err) }

	sent := func(rate uint64) *Pace { return &Pace{Rate: rate, Passed: 6, Dropped: 7, Marked: 8} }
	check(m.AddPod(slow))
	require("added", map[uint32]Paced{7: {Out: &Pace{Rate: 1000}}})
	check(m.PodPaces.Put(&bpf.MapsPaceKey{Ifindex: 7}, &bpf.MapsPodPace{Next: 5, Sent: 6, Dropped: 7, Marked: 8}))
	check(m.AddPod(fast))
	require("added at another rate", map[uint32]Paced{7: {Out: sent(2000), In: &Pace{Rate: 500}}})
	set(slow, other)
	require("set, with another", map[uint32]Paced{7: {Out: sent(1000)}, 8: {In: &Pace{Rate: 3000}}})
	set(free, other)
	require("set, without a rate", map[uint32]Paced{8: {In: &Pace{Rate: 3000}}})
	set(slow)
	require("set, without the other", map[uint32]Paced{7: {Out: &Pace{Rate: 1000}}})
	check(m.AddPod(free))
	require("added without a rate", map[uint32]Paced{})
	check(m.AddPod(fast))
	check(m.AddPod(slow))
	require("added without one of two", map[uint32]Paced{7: {Out: &Pace{Rate: 1000}}})
	check(m.RemovePod(slow))
	check(m.AddPod(other))
	check(m.RemovePod(other))
	require("removed", map[uint32]Paced{})
}
