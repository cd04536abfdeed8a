package agent

import (
	"errors"
	"net/netip"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/pkg/source/file"
)

var errAuditing = errors.New("another audit of policies is running on this node: try again once it is over")

// Audit says what the policies in a file would cut among the flows of now. Only one runs at a time, since it
// takes as much memory and time as compiling everything.
func (e *enforcer) Audit(name string, text []byte) (policies.Audit, error) {
	if !e.auditing.TryLock() {
		return policies.Audit{}, errAuditing
	}
	defer e.auditing.Unlock()
	list, err := file.Policies(name, text)
	if err != nil {
		return policies.Audit{}, err
	}
	return e.Controller.Audit(list, func(visit func(*policy.Flow)) error { return policyFlows(e.maps(), visit) })
}

// policyFlows calls visit with the flows of pods that the maps have.
func policyFlows(m *maps.Maps, visit func(*policy.Flow)) error {
	if m == nil {
		return errors.New("there are no maps yet: try again once the agent is ready")
	}
	err := m.EachPolicyFlow(func(keys []maps.Flow, rows []maps.PolicyFlow) error {
		for i := range keys {
			if f := judgedFlow(&keys[i], &rows[i]); f != nil {
				visit(f)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return m.EachTranslatedFlow(func(keys []maps.Flow, rows []maps.FlowRow) error {
		for i := range keys {
			for _, f := range translatedFlows(&keys[i], &rows[i]) {
				visit(&f)
			}
		}
		return nil
	})
}

// judgedFlow returns the flow of a row, whose key is that of what the pod sends, or nil if it was denied.
func judgedFlow(key *maps.Flow, row *maps.PolicyFlow) *policy.Flow {
	flags := bpf.MapsPolicyFlowFlag(row.Flags)
	if flags&bpf.MapsPolicyFlowFlagPOLICY_FLOW_DENIED != 0 {
		return nil
	}
	pod, peer := maps.FlowSource(*key), maps.FlowDestination(*key)
	f := &policy.Flow{
		Subject: pod.Addr(), Peer: peer.Addr(), Protocol: protocolOf(key.Proto), Direction: model.Ingress, Port: pod.Port(), Source: peer, Destination: pod,
		Judged: true, ByNode: flags&bpf.MapsPolicyFlowFlagPOLICY_FLOW_NODE != 0,
	}
	if flags&bpf.MapsPolicyFlowFlagPOLICY_FLOW_EGRESS != 0 {
		f.Direction, f.Port, f.Source, f.Destination = model.Egress, peer.Port(), pod, peer
	}
	return f
}

// translatedFlows returns the flow of a row as both its ends see it, if they are pods of this node: the
// destination after the choice of a backend, and the source as the backend sees it.
func translatedFlows(key *maps.Flow, row *maps.FlowRow) []policy.Flow {
	if row.Kind&maps.FlowReply != 0 || maps.FlowKindOf(row.Kind) == maps.FlowPodSelf {
		return nil
	}
	from, seen := maps.FlowSource(*key), netip.AddrPortFrom(maps.NetipOf(row.Saddr), maps.PortOf(row.Sport))
	to := netip.AddrPortFrom(maps.NetipOf(row.Daddr), maps.PortOf(row.Dport))
	f := policy.Flow{Subject: from.Addr(), Direction: model.Egress, Peer: to.Addr(), Protocol: protocolOf(key.Proto), Port: to.Port(), Source: from, Destination: to}
	back := f
	back.Subject, back.Direction, back.Peer, back.Source = to.Addr(), model.Ingress, seen.Addr(), seen
	return []policy.Flow{f, back}
}

// protocolOf returns the protocol of packets; what has no ports is any for policies.
func protocolOf(number uint8) model.Protocol {
	switch p := model.Protocol(number); p {
	case model.TCP, model.UDP, model.SCTP:
		return p
	}
	return model.AnyProtocol
}
