package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// CountRows counts the rows of the named map, if programs make them and nothing else counts them.
func CountRows(m *ebpf.Map, name string) (n int, counts bool, err error) {
	switch name {
	case "policy_flows", "policy_pending":
		n, err = countRows[Flow, PolicyFlow](m)
	case "policy_shares":
		n, err = countRows[uint32, bpf.MapsPolicyShare](m)
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

// CountPolicyRows counts the rows of the maps of policies that an agent writes, by the map's name. The agent itself
// knows them without listing any.
func (m *Maps) CountPolicyRows() (map[string]int, error) {
	pods, err := countRows[uint32, bpf.MapsPolicyPod](m.PolicyPods)
	peers, err2 := countRows[Addr, bpf.MapsPolicyClass](m.PolicyPeers)
	regions, err3 := countRows[bpf.MapsPrefixKey, bpf.MapsPolicyClass](m.PolicyRegions)
	views, err4 := countRows[bpf.MapsPolicyView, bpf.MapsPolicyClass](m.PolicyViews)
	decisions, runs, err5 := countDecisions(m.PolicyDecisions)
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return nil, fmt.Errorf("count the rows of the maps of policies: %w", err)
	}
	return map[string]int{
		"policy_pods": pods, "policy_peers": peers, "policy_regions": regions, "policy_views": views,
		"policy_decisions": decisions, "policy_runs": runs,
	}, nil
}

// countDecisions counts decisions, and the runs that these lead to. Many lead to the same.
func countDecisions(m *ebpf.Map) (decisions, runs int, err error) {
	places := map[bpf.MapsPolicyPorts]struct{}{{}: {}}
	var buffer rowBuffer[bpf.MapsPolicyDecisionKey, bpf.MapsPolicyDecision]
	err = eachRow(m, &buffer, func(keys []bpf.MapsPolicyDecisionKey, rows []bpf.MapsPolicyDecision) error {
		decisions += len(keys)
		for i := range rows {
			for _, ports := range rows[i].Ports {
				if _, known := places[ports]; !known {
					places[ports] = struct{}{}
					runs += int(ports.Count)
				}
			}
		}
		return nil
	})
	return decisions, runs, err
}
