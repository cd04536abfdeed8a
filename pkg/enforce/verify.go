package enforce

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// Verify compares the maps with the tables and devices of the last Apply and, if repair is set, mends what
// differs. What the last Apply could not write is not looked at: the next one does. Rows are mended from where
// packets are judged last to where they are judged first, so that none leads to what is not there yet.
func (w *Writer) Verify(t *policy.Tables, devices map[netip.Addr][]uint32, repair bool) (policy.Comparison, error) {
	var found policy.Comparison
	if w.fresh {
		return found, nil
	}
	var err error
	if found.Damage, err = w.compare(t, devices, false); err != nil || !repair || len(found.Damage) == 0 {
		return found, err
	}
	if found.Widened, err = w.widened(t, devices); err != nil {
		return found, err
	}
	found.Damage, err = w.compare(t, devices, true)
	return found, err
}

func (w *Writer) compare(t *policy.Tables, devices map[netip.Addr][]uint32, repair bool) ([]policy.Damage, error) {
	v := &verification{repair: repair}
	w.verifyRuns(v, t)
	w.verifyDecisions(v, t)
	verifyRows(v, "policy_views", w.maps.PolicyViews, w.wantedViews(t), viewText)
	verifyRows(v, "policy_regions", w.maps.PolicyRegions, wantedRegions(t), func(key bpf.MapsPrefixKey) string { return kernel.PrefixOf(key).String() })
	verifyRows(v, "policy_peers", w.maps.PolicyPeers, wantedPeers(t), func(addr kernel.Addr) string { return kernel.NetipOf(addr).String() })
	w.verifyPods(v, t, devices)
	w.verifyState(v)
	return v.found, v.err
}

// verification is a comparison at work.
type verification struct {
	repair bool
	found  []policy.Damage
	err    error
}

// damaged notes a row, and mends it.
func (v *verification) damaged(name, where string, want, have any, mend func() error) {
	d := policy.Damage{Map: name, Where: where, Want: fmt.Sprint(want), Have: fmt.Sprint(have)}
	if v.repair {
		if err := mend(); err != nil {
			v.err = errors.Join(v.err, named(name, err))
		} else {
			d.Mended = true
		}
	}
	v.found = append(v.found, d)
}

// verifyRows compares all rows of a map.
func verifyRows[K, V comparable](v *verification, name string, m *ebpf.Map, want map[K]V, text func(K) string) {
	have, err := all[K, V](m)
	if err != nil {
		v.err = errors.Join(v.err, fmt.Errorf("read map %s: %w", name, err))
		return
	}
	byText := func(a, b K) int { return cmp.Compare(text(a), text(b)) }
	for _, key := range slices.SortedFunc(maps.Keys(want), byText) {
		row, found := have[key]
		switch {
		case !found:
			v.damaged(name, text(key), want[key], "none", func() error { return m.Put(key, want[key]) })
		case row != want[key]:
			v.damaged(name, text(key), want[key], row, func() error { return m.Put(key, want[key]) })
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(have), byText) {
		if _, wanted := want[key]; !wanted {
			v.damaged(name, text(key), "none", have[key], func() error { return store(m, key, have[key], true) })
		}
	}
}

func both(class uint32) bpf.MapsPolicyClass {
	return bpf.MapsPolicyClass{Class: [2]uint32{class, class}}
}

func viewText(v bpf.MapsPolicyView) string {
	return fmt.Sprintf("scope %d, class %d", v.Scope, v.Class)
}

func (w *Writer) wantedViews(t *policy.Tables) map[bpf.MapsPolicyView]bpf.MapsPolicyClass {
	want := map[bpf.MapsPolicyView]bpf.MapsPolicyClass{}
	for view, class := range t.Views {
		want[bpf.MapsPolicyView{Scope: view.Scope, Class: view.Class}] = both(class)
	}
	return want
}

func wantedRegions(t *policy.Tables) map[bpf.MapsPrefixKey]bpf.MapsPolicyClass {
	want := map[bpf.MapsPrefixKey]bpf.MapsPolicyClass{}
	for _, root := range roots() {
		want[kernel.PrefixKey(root)] = both(0)
	}
	for prefix, class := range t.Regions {
		want[kernel.PrefixKey(prefix)] = both(class)
	}
	return want
}

func wantedPeers(t *policy.Tables) map[kernel.Addr]bpf.MapsPolicyClass {
	want := map[kernel.Addr]bpf.MapsPolicyClass{}
	for addr, class := range t.Peers {
		want[kernel.AddrOf(addr)] = both(class)
	}
	return want
}

// verifyRuns compares the runs that decisions lead to.
func (w *Writer) verifyRuns(v *verification, t *policy.Tables) {
	for _, number := range slices.Sorted(maps.Keys(w.at)) {
		runs, at := t.Decisions[number], w.at[number]
		if number == 0 {
			runs = everything
		}
		for i, run := range runs {
			index, want := at.first+uint32(i), runRow(run)
			var have bpf.MapsPolicyRun
			if err := w.maps.PolicyRuns.Lookup(index, &have); err != nil {
				v.err = errors.Join(v.err, fmt.Errorf("read map policy_runs: %w", err))
				return
			}
			if have != want {
				v.damaged("policy_runs", fmt.Sprint(index), want, have, func() error { return w.maps.PolicyRuns.Put(index, want) })
			}
		}
	}
}

func runRow(run policy.Run) bpf.MapsPolicyRun {
	row := bpf.MapsPolicyRun{From: run.Key, Verdict: run.Rule}
	if run.Accept {
		row.Verdict |= 1 << 31
	}
	return row
}

func (w *Writer) verifyDecisions(v *verification, t *policy.Tables) {
	want := map[bpf.MapsPolicyDecisionKey]bpf.MapsPolicyDecision{}
	add := func(row policy.Row, number uint32) {
		at := w.at[number]
		ports := bpf.MapsPolicyPorts{First: at.first, Count: at.count}
		want[bpf.MapsPolicyDecisionKey{Subject: row.Subject, Class: row.Reduced, Direction: uint32(row.Direction)}] = bpf.MapsPolicyDecision{Ports: [2]bpf.MapsPolicyPorts{ports, ports}}
	}
	for subject := range t.Subjects {
		for direction := range model.Direction(model.Directions) {
			row := policy.Row{Subject: subject, Direction: direction}
			add(row, t.Rows[row])
		}
	}
	for row, number := range t.Rows {
		if number != 0 {
			add(row, number)
		}
	}
	verifyRows(v, "policy_decisions", w.maps.PolicyDecisions, want, func(key bpf.MapsPolicyDecisionKey) string {
		return fmt.Sprintf("subject %d, class %d, %s", key.Subject, key.Class, model.Direction(key.Direction))
	})
}

// verifyPods compares what devices lead to. Until when pods may have flows from before cannot be known.
func (w *Writer) verifyPods(v *verification, t *policy.Tables, devices map[netip.Addr][]uint32) {
	have, err := all[uint32, bpf.MapsPolicyPod](w.maps.PolicyPods)
	if err != nil {
		v.err = errors.Join(v.err, fmt.Errorf("read map policy_pods: %w", err))
		return
	}
	want := map[uint32]bpf.MapsPolicyPod{}
	for index, s := range w.wantedPods(t, devices) {
		want[index] = bpf.MapsPolicyPod{Subject: [2]bpf.MapsPolicySubject{s, s}, Adopts: have[index].Adopts, Answers: have[index].Answers}
	}
	verifyRows(v, "policy_pods", w.maps.PolicyPods, want, func(index uint32) string { return fmt.Sprintf("interface %d", index) })
}

func (w *Writer) verifyState(v *verification) {
	var have bpf.MapsPolicyState
	if err := w.maps.PolicyState.Lookup(uint32(0), &have); err != nil {
		v.err = errors.Join(v.err, fmt.Errorf("read map policy_state: %w", err))
		return
	}
	want := bpf.MapsPolicyState{Version: w.version}
	if w.any {
		want.Pods = 1
	}
	if have != want {
		v.damaged("policy_state", "0", want, have, func() error { return w.maps.PolicyState.Put(uint32(0), want) })
	}
}
