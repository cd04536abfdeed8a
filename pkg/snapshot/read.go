package snapshot

import (
	"errors"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reasons"
)

// Read takes a Snapshot of open maps, with everything that it may have.
func Read(m *maps.Maps) (*Snapshot, error) {
	s, err := takeFrom(m)
	if err != nil {
		return nil, err
	}
	if s.Counters, err = reasons.ReadCounters(m.Counters); err != nil {
		return nil, err
	}
	if s.Optouts, err = readOptouts(m); err != nil {
		return nil, err
	}
	if s.Pods, err = readPods(m); err != nil {
		return nil, err
	}
	if s.Native, err = maps.NativeRows(m.MasqSkip); err != nil {
		return nil, err
	}
	if s.Cluster, err = maps.ClusterRows(m.ClusterNodes, m.NodeSources); err != nil {
		return nil, err
	}
	return s, nil
}

// takeFrom takes a Snapshot of the tables of open maps.
func takeFrom(m *maps.Maps) (s *Snapshot, err error) {
	tables, err := m.Tables()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, tables.Close()) }()
	return Take(Tables{
		Frontends: tables.Svcs, Ranges: tables.Ranges, Services: tables.Services, Slots: tables.Slots, Backends: tables.Backends, Names: tables.Names,
	})
}

// Entries counts the rows in use of the maps that a snapshot covers.
func (s *Snapshot) Entries() map[string]int {
	n := map[string]int{"svcs": len(s.Dangling), "services": len(s.Services), "slots": 0, "backends": 0, "names": 0,
		"optout": len(s.Optouts), "src_ranges": len(s.Ranges()), "pods": 0, "masq_skip": len(s.Native),
		"cluster_nodes": len(s.Cluster.Nodes), "node_sources": len(s.Cluster.Sources)}
	for i := range s.Pods {
		n["pods"] += len(s.Pods[i].Addresses)
	}
	for i := range s.Services {
		service := &s.Services[i]
		n["svcs"] += len(service.Frontends)
		if service.Name != "" {
			n["names"]++
		}
		for _, scope := range service.Scopes() {
			n["slots"] += scope.Length
		}
	}
	for i := range s.Backends {
		if s.Backends[i].Service != "" {
			n["backends"]++
		}
	}
	return n
}

// Counts returns how many services, frontends and backends are in use.
func (s *Snapshot) Counts() (services, frontends, backends int) {
	n := s.Entries()
	return n["services"], n["svcs"], n["backends"]
}
