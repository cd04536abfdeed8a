package agent

import (
	"fmt"

	"fairlead.io/fairlead/pkg/nodes"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/reconcile"
)

// verifyNodes adds the differences in the rows about the cluster's nodes to a verification.
func verifyNodes(table *nodes.Table, v *observe.Verification) error {
	have, want, err := table.Verify(v.Repair)
	if err != nil {
		return err
	}
	differ := func(kind, where, want, have string) {
		v.Found++
		if v.Repair {
			v.Mended++
		}
		v.Differences = append(v.Differences, reconcile.Difference{Kind: kind, Where: where, Want: want, Have: have, Mended: v.Repair})
	}
	compareRows("cluster node", have.Nodes, want.Nodes, differ)
	compareRows("node source", have.Sources, want.Sources, differ)
	return nil
}

// compareRows calls differ for every row that is not as it should be.
func compareRows[K interface {
	comparable
	fmt.Stringer
}, V comparable](kind string, have, want map[K]V, differ func(kind, where, want, have string)) {
	for key, row := range want {
		if had, ok := have[key]; !ok {
			differ(kind, key.String(), fmt.Sprint(row), "none")
		} else if had != row {
			differ(kind, key.String(), fmt.Sprint(row), fmt.Sprint(had))
		}
	}
	for key, row := range have {
		if _, ok := want[key]; !ok {
			differ(kind, key.String(), "none", fmt.Sprint(row))
		}
	}
}
