package observe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/pkg/maps"
)

// Pinned is what the maps pinned on a node show.
type Pinned struct {
	*Snapshot
	Maps      []MapStatus
	Fragments FragmentStatus
}

// Read opens the maps pinned in dir read-only, takes a Snapshot and the state of every map, and
// closes them again. It shares nothing with other users of the maps. The error wraps what maps.Open
// returns.
func Read(dir string) (pinned *Pinned, err error) {
	m, err := maps.Open(dir, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	s, err := readAll(m)
	if err != nil {
		return nil, err
	}
	list, err := mapStatuses(m, s, dir)
	if err != nil {
		return nil, err
	}
	fragments, err := readFragments(m.EarlyTally)
	if err != nil {
		return nil, err
	}
	return &Pinned{Snapshot: s, Maps: list, Fragments: fragments}, nil
}

// readAll takes a Snapshot of open maps, with everything that it may have.
func readAll(m *maps.Maps) (*Snapshot, error) {
	s, err := takeFrom(m)
	if err != nil {
		return nil, err
	}
	if s.Counters, err = ReadCounters(m.Counters); err != nil {
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

func mapStatuses(m *maps.Maps, s *Snapshot, dir string) ([]MapStatus, error) {
	used := s.Entries()
	var list []MapStatus
	for _, info := range m.All() {
		status := MapStatus{
			Name: info.Name, Type: info.Map.Type().String(), Row: info.Row, WrittenBy: info.WrittenBy, ReadBy: info.ReadBy,
			Capacity: info.Map.MaxEntries(), Pin: filepath.Join(dir, info.Name), Schema: filepath.Base(filepath.Dir(dir)),
		}
		if n, ok := used[info.Name]; ok && status.Capacity > 0 {
			status.SetEntries(n)
		}
		if maps.PushesOut(info.Name) {
			found, err := maps.TakeLruCounts(m.LruStats, info.Map, info.Name)
			if err != nil {
				return nil, err
			}
			status.fill(found, 0)
		}
		kernel, err := info.Map.Info()
		if err != nil {
			return nil, fmt.Errorf("inspect map %s: %w", info.Name, err)
		}
		status.Memory, _ = kernel.Memlock()
		list = append(list, status)
	}
	return list, nil
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

// ReadLinks reports on the links pinned in dir, as the kernel has them. A missing directory means
// no links.
func ReadLinks(dir string) ([]ProgramStatus, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	var list []ProgramStatus
	for _, entry := range entries {
		status, err := readLink(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, status)
	}
	return list, nil
}

func readLink(path string) (ProgramStatus, error) {
	pinned, err := link.LoadPinnedLink(path, nil)
	if err != nil {
		return ProgramStatus{}, fmt.Errorf("open link %s: %w", path, err)
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		return ProgramStatus{}, fmt.Errorf("inspect link %s: %w", path, err)
	}
	// The kernel keeps a link whose cgroup is gone, or that was detached by force, with cgroup ID
	// 0.
	cgroup := info.Cgroup()
	return ProgramStatus{
		Name: filepath.Base(path), ID: uint32(info.Program), Attached: cgroup == nil || cgroup.CgroupId != 0,
	}, nil
}
