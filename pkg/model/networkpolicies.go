package model

import (
	"maps"
	"reflect"
	"slices"
)

// networkPolicies are the policies of both APIs. Those of administrators have no namespace.
type networkPolicies struct {
	shared *queue
	all    map[Name]*NetworkPolicy
	listed [2]bool // all NetworkPolicies, and all ClusterNetworkPolicies, were delivered
}

// kindOf returns 0 for the names of NetworkPolicies, and 1 for those of ClusterNetworkPolicies.
func kindOf(name Name) int {
	if name.Namespace == "" {
		return 1
	}
	return 0
}

// NetworkPolicies returns the latest version of every policy, in the order in which they decide, and
// whether the list is complete. Until it is, the absence of a policy is no reason to let anything
// through.
func (s *networkPolicies) NetworkPolicies() (list []*NetworkPolicy, complete bool) {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.all), (*NetworkPolicy).Compare), s.listed[0] && s.listed[1]
}

// AnyNetworkPolicy reports whether there is a policy, and whether all were delivered.
func (s *networkPolicies) AnyNetworkPolicy() (any, complete bool) {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	return len(s.all) > 0, s.listed[0] && s.listed[1]
}

// SetNetworkPolicy stores a new or changed policy.
func (s *networkPolicies) SetNetworkPolicy(policy *NetworkPolicy) {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	s.setNetworkPolicy(policy)
}

func (s *networkPolicies) setNetworkPolicy(policy *NetworkPolicy) {
	if !reflect.DeepEqual(s.all[policy.Name], policy) {
		s.all[policy.Name] = policy
		signal(s.shared.policy)
	}
}

// DeleteNetworkPolicy forgets a policy.
func (s *networkPolicies) DeleteNetworkPolicy(name Name) {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	s.deleteNetworkPolicy(name)
}

func (s *networkPolicies) deleteNetworkPolicy(name Name) {
	if s.all[name] != nil {
		delete(s.all, name)
		signal(s.shared.policy)
	}
}

// ReplaceNetworkPolicies makes the NetworkPolicies exactly the given ones. Services and pods do not
// depend on policies, so the Store counts as synced even if no source delivers any.
func (s *networkPolicies) ReplaceNetworkPolicies(policies []*NetworkPolicy) { s.replace(policies, 0) }

// ReplaceClusterNetworkPolicies makes the ClusterNetworkPolicies exactly the given ones.
func (s *networkPolicies) ReplaceClusterNetworkPolicies(policies []*NetworkPolicy) {
	s.replace(policies, 1)
}

func (s *networkPolicies) replace(policies []*NetworkPolicy, kind int) {
	s.shared.mu.Lock()
	defer s.shared.mu.Unlock()
	keep := make(map[Name]struct{}, len(policies))
	for _, policy := range policies {
		keep[policy.Name] = struct{}{}
		s.setNetworkPolicy(policy)
	}
	for name := range s.all {
		if _, ok := keep[name]; !ok && kindOf(name) == kind {
			s.deleteNetworkPolicy(name)
		}
	}
	if !s.listed[kind] {
		s.listed[kind] = true
		signal(s.shared.policy)
	}
}
