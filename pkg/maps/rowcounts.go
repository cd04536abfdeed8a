package maps

import (
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// CountRows counts the rows of the named map, if programs make them and nothing else counts them.
func CountRows(m *ebpf.Map, name string) (n int, counts bool, err error) {
	switch name {
	case "policy_flows", "policy_pending":
		n, err = countRows[Flow, PolicyFlow](m)
	case "policy_denials":
		n, err = countRows[bpf.MapsPolicyDenial, uint64](m)
	default:
		return 0, false, nil
	}
	if err != nil {
		return 0, true, fmt.Errorf("count the rows of map %s: %w", name, err)
	}
	return n, true, nil
}
