package snapshot

import (
	"testing"

	"fairlead.io/fairlead/test/tables"
)

// tablesIn returns the tables of a layout, as Take reads them.
func tablesIn(l *tables.Layout) Tables {
	return Tables{Frontends: l.Frontends, Ranges: l.Ranges, Services: l.Services, Slots: l.Slots, Backends: l.Backends, Names: l.Names}
}

func take(t *testing.T, l *tables.Layout) *Snapshot {
	t.Helper()
	s, err := Take(tablesIn(l))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
