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

// policies are the acceleration policies.
type policies struct {
	queue  *queue
	byName map[Name]*Acceleration
	listed bool // all were delivered
}

// Accelerations returns the latest version of every policy, by name, and whether the list is
// complete. Until it is, the absence of a policy is no reason to take anything from a pod.
func (s *policies) Accelerations() (list []*Acceleration, all bool) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.byName), func(a, b *Acceleration) int { return a.Name.Compare(b.Name) }), s.listed
}

// SetAcceleration stores a new or changed policy.
func (s *policies) SetAcceleration(policy *Acceleration) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.setAcceleration(policy)
}

func (s *policies) setAcceleration(policy *Acceleration) {
	if reflect.DeepEqual(s.byName[policy.Name], policy) {
		return
	}
	s.byName[policy.Name] = policy
	signal(s.queue.short)
}

// DeleteAcceleration forgets a policy.
func (s *policies) DeleteAcceleration(name Name) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.deleteAcceleration(name)
}

func (s *policies) deleteAcceleration(name Name) {
	if s.byName[name] != nil {
		delete(s.byName, name)
		signal(s.queue.short)
	}
}

// ReplaceAccelerations makes the policies exactly the given ones. Services and pods do not depend
// on policies, so the Store counts as synced even if no source delivers any.
func (s *policies) ReplaceAccelerations(policies []*Acceleration) {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	keep := make(map[Name]struct{}, len(policies))
	for _, policy := range policies {
		keep[policy.Name] = struct{}{}
		s.setAcceleration(policy)
	}
	for name := range s.byName {
		if _, ok := keep[name]; !ok {
			s.deleteAcceleration(name)
		}
	}
	if !s.listed {
		s.listed = true
		signal(s.queue.short)
	}
}
