package reconcile

import "fairlead.io/fairlead/pkg/maps"

// RangeEpochs is told about changes of the clients allowed at load balancer addresses. While there is no
// change, the programs need not check existing flows again.
type RangeEpochs interface {
	// Begin is called before the first write of a change. From then on every packet is checked,
	// whatever happens to the rest of the change.
	Begin()
	// End is called after the last write. If it fails, the change counts as still in progress.
	End() error
}

// rangeEpochs tells RangeEpochs of the beginning and the end of changes.
type rangeEpochs struct {
	epochs RangeEpochs // nil if the programs check every packet
	begun  bool        // the beginning of a change was told, its end not yet
}

// begin must be called before writing anything that decides which clients are allowed:
// ranges, the SourceRanges flag of a service, and frontend rows of load balancer addresses.
func (g *rangeEpochs) begin() {
	if g.epochs != nil && !g.begun {
		g.begun = true
		g.epochs.Begin()
	}
}

// beginOf calls begin if one of the frontend rows that come, go or change is of a load
// balancer address.
func (g *rangeEpochs) beginOf(rows ...maps.Svc) {
	for _, row := range rows {
		if row.Kind == maps.LoadBalancer {
			g.begin()
		}
	}
}

// end reports the end of a change if one began. A change that failed half way counts too.
func (g *rangeEpochs) end() error {
	if !g.begun {
		return nil
	}
	if err := g.epochs.End(); err != nil {
		return err
	}
	g.begun = false
	return nil
}
