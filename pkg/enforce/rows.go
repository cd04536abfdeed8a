package enforce

import (
	"net/netip"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// Rows returns how many rows of each map the policies in force take, by the map's name. They are counted
// from what was written: to list 100,000 rows would take too long.
func (w *Writer) Rows() map[string]int {
	free := uint32(0)
	for _, e := range w.runs.free {
		free += e.count
	}
	return map[string]int{
		"policy_pods": w.rows.pods, "policy_peers": w.rows.peers, "policy_regions": w.rows.regions, "policy_views": w.rows.views,
		"policy_decisions": w.rows.decisions, "policy_runs": int(w.maps.PolicyRuns.MaxEntries() - free),
	}
}

// rowsOf returns about how many rows tables take in a map.
func rowsOf(name string, t *policy.Tables) uint32 {
	rows := 0
	switch name {
	case "policy_peers":
		rows = len(t.Peers)
	case "policy_regions":
		rows = len(t.Regions)
	case "policy_views":
		rows = len(t.Views)
	case "policy_decisions":
		rows = len(t.Rows) + model.Directions*len(t.Subjects)
	case "policy_runs":
		for _, runs := range t.Decisions {
			rows += len(runs)
		}
	}
	return uint32(min(rows, 1<<30))
}

// rows are how many rows the maps have of a version that is in force.
type rows struct{ pods, peers, regions, views, decisions int }

// follow counts the rows after a change, which may be whole. Only one of rules has it list decisions.
func (r *rows) follow(change *policy.Change, whole bool, t *policy.Tables, devices map[netip.Addr][]uint32) {
	r.peers, r.regions, r.views = len(t.Peers), len(t.Regions), len(t.Views)
	for _, root := range roots() {
		if _, listed := t.Regions[root]; !listed {
			r.regions++
		}
	}
	if whole || len(change.Rows)+len(change.Subjects) > 0 {
		r.decisions = 2 * len(t.Subjects) // each has a row of class 0 for both directions
		for row, number := range t.Rows {
			if number != 0 && row.Reduced != 0 {
				r.decisions++
			}
		}
	}
	known := map[uint32]struct{}{}
	for addr := range t.Pods {
		for _, index := range devices[addr] {
			known[index] = struct{}{}
		}
	}
	r.pods = len(known)
}
