package enforce

import (
	"fmt"
	"maps"
	"net/netip"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// widened returns the pods to which the rows in the maps may accept what the tables do not. In both versions: who
// changes rows may have changed which version is in force.
func (w *Writer) widened(t *policy.Tables, devices map[netip.Addr][]uint32) (map[model.Name]struct{}, error) {
	out := map[model.Name]struct{}{}
	wanted := w.wantedPods(t, devices)
	for version := range uint32(2) {
		have, err := w.readPrevious(version)
		if err != nil {
			return nil, fmt.Errorf("read what was in force: %w", err)
		}
		have.tables.Subjects = maps.Clone(t.Subjects) // not those of pods whose rows are damaged
		narrowed := policy.Narrowed(have.tables, t)
		for addr, pod := range t.Pods {
			for _, index := range devices[addr] {
				// what a row accepted that is another pod's, or nobody's, is not looked at
				if is := wanted[index]; have.pods[index] != is || narrowed(is.Subject, is.Subject) {
					out[pod.Pod] = struct{}{}
				}
			}
		}
	}
	return out, nil
}
