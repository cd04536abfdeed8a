package maps

import (
	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// PolicyFlow is the row of a flow that policies were asked about.
type PolicyFlow = bpf.MapsPolicyFlow

// EachPolicyFlow calls visit with all flows that policies were asked about, as EachFlow does.
func (m *PolicyMaps) EachPolicyFlow(visit func([]Flow, []PolicyFlow) error) error {
	for _, flows := range []*ebpf.Map{m.PolicyFlows, m.PolicyPending} {
		if err := eachRow(flows, &rowBuffer[Flow, PolicyFlow]{}, visit); err != nil {
			return err
		}
	}
	return nil
}

// EachTranslatedFlow calls visit with all flows that programs translate, in both directions.
func (m *Maps) EachTranslatedFlow(visit func([]Flow, []FlowRow) error) error {
	for _, flows := range []*ebpf.Map{m.Ct, m.CtPending} {
		if err := EachFlow(flows, &FlowBuffer{}, visit); err != nil {
			return err
		}
	}
	return nil
}
