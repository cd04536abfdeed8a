package enforce

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/policy"
)

// class is how the class of a row changes.
type class struct {
	was, is uint32
	gone    bool // there is no row of it any longer
}

// ports is the same for a decision, and subject for a pod.
type ports struct {
	was, is bpf.MapsPolicyPorts
	gone    bool
}

type subject struct {
	was, is bpf.MapsPolicySubject
	adopts  adoption
	gone    bool
}

// adoption is until when a pod may have flows from before a policy was about it, as in a row of policy_pods.
type adoption struct{ connections, answers uint32 }

// changes are what has to be written so that a version says what tables say.
type changes struct {
	version   uint32 // that will be in force
	peers     map[kernel.Addr]class
	regions   map[bpf.MapsPrefixKey]class
	views     map[bpf.MapsPolicyView]class
	decisions map[bpf.MapsPolicyDecisionKey]ports
	pods      map[uint32]subject
	runs      map[extent][]policy.Run
	placed    map[uint32]extent // where the runs of decisions will be
	unplaced  []uint32          // decisions that are gone
	freed     []extent          // what nothing leads to when the version is in force
}

func (c *changes) empty() bool {
	return len(c.peers)+len(c.regions)+len(c.views)+len(c.decisions)+len(c.pods) == 0
}

// decision and pod note rows of which one version is stale.
func (c *changes) decision(key bpf.MapsPolicyDecisionKey, is bpf.MapsPolicyPorts, row bpf.MapsPolicyDecision) {
	if row.Ports[0] != row.Ports[1] {
		put(&c.decisions, key, ports{is: is, was: is, gone: is.Count == 0})
	}
}

func (c *changes) pod(index uint32, is bpf.MapsPolicySubject, row bpf.MapsPolicyPod) {
	if row.Subject[0] != row.Subject[1] {
		put(&c.pods, index, subject{is: is, was: is, adopts: adoptionOf(row), gone: is == bpf.MapsPolicySubject{}})
	}
}

func adoptionOf(row bpf.MapsPolicyPod) adoption { return adoption{row.Adopts, row.Answers} }

func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// release gives back the runs that were reserved for changes that are not made.
func (c *changes) release(e *extents) {
	if c != nil {
		for reserved := range c.runs {
			e.give(reserved)
		}
	}
}

// write writes the version that is not in force.
func (c *changes) write(m *kernel.EnforceMaps) error {
	for at, runs := range c.runs {
		for i, run := range runs {
			if err := m.PolicyRuns.Put(at.first+uint32(i), runRow(run)); err != nil {
				return err
			}
		}
	}
	return c.rows(m, false)
}

// settle makes the other version the same, and deletes what is gone.
func (c *changes) settle(m *kernel.EnforceMaps) error { return c.rows(m, true) }

func (c *changes) rows(m *kernel.EnforceMaps, settled bool) error {
	err := errors.Join(
		named("policy_regions", classes(m.PolicyRegions, c.regions, c.version, settled)),
		named("policy_peers", classes(m.PolicyPeers, c.peers, c.version, settled)),
		named("policy_views", classes(m.PolicyViews, c.views, c.version, settled)))
	for key, p := range c.decisions {
		row := bpf.MapsPolicyDecision{Ports: [2]bpf.MapsPolicyPorts{p.was, p.was}}
		row.Ports[c.version] = p.is
		if settled {
			row.Ports[1-c.version] = p.is
		}
		if failed := store(m.PolicyDecisions, key, row, settled && p.gone); failed != nil {
			err = errors.Join(err, named("policy_decisions", failed))
			break
		}
	}
	if err != nil { // what is new about pods may be in force at once
		return err
	}
	for index, s := range c.pods {
		row := bpf.MapsPolicyPod{Subject: [2]bpf.MapsPolicySubject{s.was, s.was}, Adopts: s.adopts.connections, Answers: s.adopts.answers}
		row.Subject[c.version] = s.is
		if settled {
			row.Subject[1-c.version] = s.is
		}
		if err := store(m.PolicyPods, index, row, settled && s.gone); err != nil {
			return named("policy_pods", err)
		}
	}
	return nil
}

// named says which map cannot be written, and what to do if it is full.
func named(name string, err error) error {
	switch {
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ENOSPC):
		return fullError{name}
	case err != nil:
		return fmt.Errorf("map %s: %w", name, err)
	}
	return nil
}

func classes[K comparable](m *ebpf.Map, list map[K]class, version uint32, settled bool) error {
	for key, c := range list {
		row := bpf.MapsPolicyClass{Class: [2]uint32{c.was, c.was}}
		row.Class[version] = c.is
		if settled {
			row.Class[1-version] = c.is
		}
		if err := store(m, key, row, settled && c.gone); err != nil {
			return err // the others would fail too, one by one
		}
	}
	return nil
}

func store[K, V any](m *ebpf.Map, key K, row V, gone bool) error {
	if !gone {
		return m.Put(key, row)
	}
	if err := m.Delete(key); !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}
