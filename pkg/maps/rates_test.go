package maps

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

// AddPod and SetPods both set a pod's rate, keep the counts when it changes, and leave no row of a
// pod without one.
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
		for index, of := range want { // devices that share a row
			if of.Of != index {
				paces += map[bool]int{true: 1}[of.Out != nil] + map[bool]int{true: 1}[of.In != nil]
			}
		}
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
			t.Errorf("%s: %d rows more than wanted", what, paces)
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

	sent := func(rate uint64) *Pace { return &Pace{Rate: rate, Passed: 6, Dropped: 7, Marked: 8, Window: 9} }
	check(m.AddPod(slow))
	require("added", map[uint32]Paced{7: {Of: 7, Out: &Pace{Rate: 1000}}})
	check(m.PodPaces.Put(&bpf.MapsPaceKey{Ifindex: 7}, &bpf.MapsPodPace{Next: 5, Sent: 6, Dropped: 7, Marked: 8, Window: bpf.MapsReceiveWindow{Bytes: 9}}))
	check(m.AddPod(fast))
	require("added at another rate", map[uint32]Paced{7: {Of: 7, Out: sent(2000), In: &Pace{Rate: 500}}})
	set(slow, other)
	require("set, with another", map[uint32]Paced{7: {Of: 7, Out: sent(1000)}, 8: {Of: 8, In: &Pace{Rate: 3000}}})
	set(free, other)
	require("set, without a rate", map[uint32]Paced{8: {Of: 8, In: &Pace{Rate: 3000}}})
	set(slow)
	require("set, without the other", map[uint32]Paced{7: {Of: 7, Out: &Pace{Rate: 1000}}})
	check(m.AddPod(free))
	require("added without a rate", map[uint32]Paced{})
	check(m.AddPod(fast))
	check(m.AddPod(slow))
	require("added without one of two", map[uint32]Paced{7: {Of: 7, Out: &Pace{Rate: 1000}}})
	check(m.RemovePod(slow))
	check(m.AddPod(other))
	check(m.RemovePod(other))
	require("removed", map[uint32]Paced{})

	second := Pod{Index: 9, Pace: 7, Rates: fast.Rates}
	both := func(of uint32) map[uint32]Paced {
		all := map[uint32]Paced{}
		for _, index := range []uint32{7, 9} {
			all[index] = Paced{Of: of, Out: sent(2000), In: &Pace{Rate: 500}}
		}
		return all
	}
	check(m.AddPod(fast))
	check(m.PodPaces.Put(&bpf.MapsPaceKey{Ifindex: 7}, &bpf.MapsPodPace{Next: 5, Sent: 6, Dropped: 7, Marked: 8, Window: bpf.MapsReceiveWindow{Bytes: 9}}))
	check(m.AddPod(second))
	require("a second device", both(7))
	set(fast, second)
	require("a second device, set", both(7))
	check(m.RemovePod(fast))
	rest := both(7)
	delete(rest, 7)
	if have, err := Paces(m.PodRates, m.PodPaces); err != nil || cmp.Diff(rest, have) != "" {
		t.Errorf("without the first: %v, %v", have, err)
	}
	second.Pace = 9
	set(second)
	require("without the first, set", map[uint32]Paced{9: {Of: 9, Out: sent(2000), In: &Pace{Rate: 500}}})
	second.Pace = 8
	set(second, Pod{Index: 8, Rates: fast.Rates})
	require("with one before it", map[uint32]Paced{8: {Of: 8, Out: sent(2000), In: &Pace{Rate: 500}}, 9: {Of: 8, Out: sent(2000), In: &Pace{Rate: 500}}})
	check(m.RemovePod(second))
	check(m.RemovePod(Pod{Index: 8}))
	require("both removed", map[uint32]Paced{})
}

// A share exists before the pods in it, keeps its counts and its turn, unless that is farther ahead
// than packets may wait, when its rate changes, and goes with its last pod.
func TestShares(t *testing.T) {
	rig.Root(t)
	m, err := Create(Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	shop, next := ShareOf("shop"), uint64(0)
	require := func(what string, err error, within uint64, want map[uint64]Pace) {
		t.Helper()
		have, err2 := SharePaces(m.ShareRates, m.SharePaces)
		if diff := cmp.Diff(want, have); diff != "" || err != nil || err2 != nil {
			t.Errorf("%s: %v, %v (-want +have):\n%s", what, err, err2, diff)
		}
		var row bpf.MapsShareRate
		if err := m.ShareRates.Lookup(&shop, &row); err != nil && len(want) > 0 || row.Within != within {
			t.Errorf("%s: %v, the namespace's share is within %d", what, err, row.Within)
		}
		var pace bpf.MapsPodPace
		if err := m.SharePaces.Lookup(&shop, &pace); (err == nil) != (len(want) > 0) || pace.Next != next {
			t.Errorf("%s: %v, the next packet may leave at %d, want %d", what, err, pace.Next, next)
		}
	}
	pod := func(index uint32, ofNamespace, ofNode uint64) Pod {
		return Pod{Index: index, Rates: Rates{Share: Share{Namespace: "shop", OfNamespace: ofNamespace, OfNode: ofNode}}}
	}
	add := func(p Pod) error { return m.AddPod(p) }
	set := func(pods ...Pod) error { _, err := m.SetPods(pods); return err }

	require("one pod", add(pod(7, 1000, 0)), 0, map[uint64]Pace{shop: {Rate: 1000}})
	var row bpf.MapsPodRate
	if index := uint32(7); m.PodRates.Lookup(&index, &row) != nil || row.Share != shop {
		t.Errorf("the pod's row is %+v", row)
	}
	next = 5
	if err := m.SharePaces.Put(&shop, &bpf.MapsPodPace{Next: next, Sent: 6, Dropped: 7}); err != nil {
		t.Fatal(err)
	}
	sent := func(rate uint64) Pace { return Pace{Rate: rate, Passed: 6, Dropped: 7} }
	require("another", add(pod(8, 1000, 0)), 0, map[uint64]Pace{shop: sent(1000)})
	require("within the node's", set(pod(7, 1000, 3000), pod(8, 1000, 3000)), NodeShare, map[uint64]Pace{shop: sent(1000), NodeShare: {Rate: 3000}})
	require("another rate", set(pod(7, 4000, 0), pod(8, 4000, 0)), 0, map[uint64]Pace{shop: sent(4000)})
	if err := m.SharePaces.Put(&shop, &bpf.MapsPodPace{Next: 1 << 60, Sent: 6, Dropped: 7}); err != nil {
		t.Fatal(err)
	}
	next = 0
	require("another rate after a low one", set(pod(7, 2000, 0), pod(8, 2000, 0)), 0, map[uint64]Pace{shop: sent(2000)})
	require("one has gone", m.RemovePod(pod(7, 2000, 0)), 0, map[uint64]Pace{shop: sent(2000)})
	require("the last has gone", set(Pod{Index: 9}), 0, map[uint64]Pace{})
	if err := add(Pod{Index: 9, Rates: Rates{Class: BestEffort}}); err != nil {
		t.Error(err)
	}
	if list, err := Paces(m.PodRates, m.PodPaces); len(list) != 0 || err != nil {
		t.Errorf("a pod that has only a class is listed: %v, %v", list, err)
	}
}
