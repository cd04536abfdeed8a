package maps

import (
	"fmt"

	"fairlead.io/fairlead/pkg/bpf"
)

// SharesOfFlows are how many rows of policy_flows there are, and how many there may be.
type SharesOfFlows struct {
	Rows, Of int
	Pods     map[uint32]int // rows, by the host's end of the device of the pod that has them
}

// SharesOfFlows returns how the rows of policy_flows are shared among pods.
func (m *Maps) SharesOfFlows() (SharesOfFlows, error) {
	s := SharesOfFlows{Of: int(m.PolicyFlows.MaxEntries()), Pods: map[uint32]int{}}
	var owner uint32
	var row bpf.MapsPolicyShare
	rows := m.PolicyShares.Iterate()
	for rows.Next(&owner, &row) {
		if owner == 0 {
			s.Rows = int(row.Rows + row.Since)
		} else {
			s.Pods[owner] = int(row.Rows + row.Since)
		}
	}
	if err := rows.Err(); err != nil {
		return s, fmt.Errorf("read map policy_shares: %w", err)
	}
	return s, nil
}
