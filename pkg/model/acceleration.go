package model

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Acceleration is a policy that lets connections from some peers to others bypass TCP: between pods
// of its own namespace, and between those and processes of the node.
type Acceleration struct {
	Name
	UID      string
	Created  int64 // seconds since 1970
	From, To []Peer
	Ports    []uint16 // listening ports of the accepting side; empty for any
	Problems []Problem
}

// Peer is one end of a connection: either the node, meaning processes in its own network namespace,
// or the pods that a selector picks.
type Peer struct {
	Node bool
	Pods Selector
}

// CompareAge orders policies by age, the oldest first.
func (a *Acceleration) CompareAge(b *Acceleration) int {
	return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.UID, b.UID), a.Name.Compare(b.Name))
}

// Accelerations returns the latest version of every policy, by name, and whether the list is
// complete. Until it is, the absence of a policy is no reason to take anything from a pod.
func (s *Store) Accelerations() (list []*Acceleration, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.policies), func(a, b *Acceleration) int { return a.Name.Compare(b.Name) }), s.listed
}

// SetAcceleration stores a new or changed policy.
func (s *Store) SetAcceleration(policy *Acceleration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setAcceleration(policy)
}

func (s *Store) setAcceleration(policy *Acceleration) {
	if reflect.DeepEqual(s.policies[policy.Name], policy) {
		return
	}
	s.policies[policy.Name] = policy
	signal(s.short)
}

// DeleteAcceleration forgets a policy.
func (s *Store) DeleteAcceleration(name Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteAcceleration(name)
}

func (s *Store) deleteAcceleration(name Name) {
	if s.policies[name] != nil {
		delete(s.policies, name)
		signal(s.short)
	}
}

// ReplaceAccelerations makes the policies exactly the given ones. Services and pods do not depend
// on policies, so the Store counts as synced even if no source delivers any.
func (s *Store) ReplaceAccelerations(policies []*Acceleration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := make(map[Name]struct{}, len(policies))
	for _, policy := range policies {
		keep[policy.Name] = struct{}{}
		s.setAcceleration(policy)
	}
	for name := range s.policies {
		if _, ok := keep[name]; !ok {
			s.deleteAcceleration(name)
		}
	}
	if !s.listed {
		s.listed = true
		signal(s.short)
	}
}
