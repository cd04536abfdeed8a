package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// PolicyMaps are the maps of policies: what the agent compiled, and the flows that were judged by it.
type PolicyMaps struct {
	PolicyState     *ebpf.Map
	PolicyPods      *ebpf.Map
	PolicyPeers     *ebpf.Map
	PolicyRegions   *ebpf.Map
	PolicyViews     *ebpf.Map
	PolicyDecisions *ebpf.Map
	PolicyRuns      *ebpf.Map
	PolicyFlows     *ebpf.Map
	PolicyShares    *ebpf.Map
	PolicyPending   *ebpf.Map
	PolicyDenials   *ebpf.Map
}

// EnforceMaps are the maps that enforcing policies takes. They stay open when a Maps is closed because some of
// its maps have grown.
type EnforceMaps struct {
	PolicyMaps
	PodLinks *ebpf.Map
}

// OpenEnforceMaps opens maps of m again. The caller must close them.
func (m *Maps) OpenEnforceMaps() (*EnforceMaps, error) {
	opened := &EnforceMaps{}
	var err error
	if opened.PodLinks, err = m.PodLinks.Clone(); err != nil {
		return nil, fmt.Errorf("duplicate map pod_links: %w", err)
	}
	target := opened.fields()
	for i, f := range m.PolicyMaps.fields() {
		if *target[i].at, err = (*f.at).Clone(); err != nil {
			return nil, errors.Join(fmt.Errorf("duplicate map %s: %w", f.Name, err), opened.Close())
		}
	}
	return opened, nil
}

// Close closes what is open.
func (m *EnforceMaps) Close() error {
	errs := []error{m.PodLinks.Close()}
	for _, f := range m.fields() {
		errs = append(errs, (*f.at).Close())
	}
	return errors.Join(errs...)
}

// fields lists them.
func (m *PolicyMaps) fields() []field {
	return []field{
		{Info{Name: "policy_state", Row: "0 -> version in force, number of pods that policies may be about", WrittenBy: "enforce", ReadBy: "tc, pod"}, &m.PolicyState, nil},
		{Info{Name: "policy_pods", Row: "interface -> subject, scope and generation of its pod, in both versions", WrittenBy: "enforce", ReadBy: "tc, pod"}, &m.PolicyPods, nil},
		{Info{Name: "policy_peers", Row: "address -> its class, in both versions", WrittenBy: "enforce", ReadBy: "tc, pod"}, &m.PolicyPeers, nil},
		{Info{Name: "policy_regions", Row: "prefix -> class of its addresses, in both versions", WrittenBy: "enforce", ReadBy: "tc, pod"}, &m.PolicyRegions, nil},
		{Info{Name: "policy_views", Row: "scope, class -> what the scope's policies tell apart of it, in both versions", WrittenBy: "enforce", ReadBy: "tc, pod"}, &m.PolicyViews, nil},
		{Info{Name: "policy_decisions", Row: "subject, class, direction -> first run, runs, in both versions", WrittenBy: "enforce", ReadBy: "tc, pod"}, &m.PolicyDecisions, nil},
		{Info{Name: "policy_runs", Row: "index -> protocol and port from which it holds, verdict, rule", WrittenBy: "enforce", ReadBy: "tc, pod"}, &m.PolicyRuns, nil},
		{Info{Name: "policy_flows", Row: "flow of a pod -> generation by which it was accepted, who began it, last seen, interface of the pod, tag of the receiver's acceptance", WrittenBy: "tc, pod", ReadBy: "tc, pod"}, &m.PolicyFlows, nil},
		{Info{Name: "policy_shares", Row: "interface, or 0 for all -> rows of policy_flows that its pod has", WrittenBy: "tc, pod, datapath", ReadBy: "tc, pod, datapath"}, &m.PolicyShares, nil},
		{Info{Name: "policy_pending", Row: "flow of which one end has sent something -> the same", WrittenBy: "tc, pod", ReadBy: "tc, pod"}, &m.PolicyPending, nil},
		{Info{Name: "policy_denials", Row: "rule, direction -> packets that it denied", WrittenBy: "tc, pod", ReadBy: "enforce"}, &m.PolicyDenials, nil},
	}
}
