package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// Grown returns a set of at least the given sizes with the same content, and the names of those
// maps in it that are new and larger; the others are the same maps, opened again. Only the turn
// counters may be written meanwhile. Maps whose rows programs insert do not grow here. The set is
// nil if there is nothing to grow. The caller must close it.
func (m *Maps) Grown(sizes Sizes) (grown *Maps, names []string, err error) {
	if m.readOnly {
		return nil, nil, errors.New("grow maps: they are open read-only")
	}
	sizes, err = sizes.Round()
	if err != nil {
		return nil, nil, err
	}
	grown = &Maps{}
	defer func() {
		if err != nil {
			err = errors.Join(err, grown.Close())
			grown, names = nil, nil
		}
	}()
	if err = grown.shareLayouts(m); err != nil {
		return grown, nil, err
	}
	target := grown.fields()
	for i, f := range m.fields() {
		if !f.byPrograms() && f.Map.MaxEntries() < f.rows(sizes) {
			names = append(names, f.Name)
			continue
		}
		if *target[i].at, err = f.Map.Clone(); err != nil {
			return grown, names, fmt.Errorf("duplicate map %s: %w", f.Name, err)
		}
	}
	if len(names) == 0 {
		return nil, nil, grown.Close()
	}
	if err := grown.create(func(f field) uint32 { return f.rows(sizes) }); err != nil {
		return grown, names, err
	}
	return grown, names, m.copyTo(grown, names)
}

// policyRows returns how many rows a map of policies gets at most, 0 if it does not grow. Views and decisions get
// fewer: each is for one of many sets of pods in one of many namespaces, so there may be far more than objects.
func policyRows(name string) uint32 {
	return map[string]uint32{
		"policy_peers": 1 << 22, "policy_regions": 1 << 22, "policy_runs": 1 << 22, "policy_views": 1 << 20, "policy_decisions": 1 << 20,
	}[name]
}

// copyPolicies copies the rows of a map of policies to one that has none.
func copyPolicies(name string, from, to *ebpf.Map) error {
	return map[string]func(from, to *ebpf.Map) error{
		"policy_peers":     copyRows[Addr, bpf.MapsPolicyClass],
		"policy_regions":   copyRows[bpf.MapsPrefixKey, bpf.MapsPolicyClass],
		"policy_views":     copyRows[bpf.MapsPolicyView, bpf.MapsPolicyClass],
		"policy_decisions": copyRows[bpf.MapsPolicyDecisionKey, bpf.MapsPolicyDecision],
		"policy_runs":      copyRows[uint32, bpf.MapsPolicyRun],
	}[name](from, to)
}

// GrownPolicies is Grown for one of the maps of policies, which gets at least so many rows, and at least twice
// as many as it has. Nobody may write to it meanwhile. The set is nil if the map does not grow, or no further.
func (m *Maps) GrownPolicies(name string, rows uint32) (grown *Maps, names []string, err error) {
	if m.readOnly {
		return nil, nil, errors.New("grow maps: they are open read-only")
	}
	grown = &Maps{}
	defer func() {
		if err != nil {
			err = errors.Join(err, grown.Close())
			grown, names = nil, nil
		}
	}()
	if err = grown.shareLayouts(m); err != nil {
		return grown, nil, err
	}
	target, at := grown.fields(), -1
	for i, f := range m.fields() {
		if f.Name == name && f.Map.MaxEntries() < policyRows(name) {
			at = i
			continue
		}
		if *target[i].at, err = f.Map.Clone(); err != nil {
			return grown, nil, fmt.Errorf("duplicate map %s: %w", f.Name, err)
		}
	}
	if at < 0 {
		return nil, nil, grown.Close()
	}
	from := m.fields()[at].Map
	size := roundUp(min(max(rows, 2*from.MaxEntries()), policyRows(name)))
	if err = grown.create(func(field) uint32 { return size }); err != nil {
		return grown, nil, err
	}
	if err = copyPolicies(name, from, *target[at].at); err != nil {
		return grown, nil, fmt.Errorf("copy map %s: %w", name, err)
	}
	return grown, []string{name}, nil
}

// copyRows copies rows to a map that has none.
func copyRows[K, V any](from, to *ebpf.Map) error {
	var buffer rowBuffer[K, V]
	return eachRow(from, &buffer, func(keys []K, rows []V) error {
		_, err := to.BatchUpdate(keys, rows, nil)
		return err
	})
}

// copyTo copies the rows of the named maps to their larger counterparts in grown.
func (m *Maps) copyTo(grown *Maps, names []string) error {
	copies := map[string]func() error{
		"svcs":     func() error { return copySvcs(m.Svcs, grown.Svcs) },
		"services": func() error { return copyArray[Service](m.Services, grown.Services) },
		"slots":    func() error { return copyArray[Slot](m.Slots, grown.Slots) },
		"backends": func() error { return copyArray[Backend](m.Backends, grown.Backends) },
		"names":    func() error { return copyArray[NameText](m.Names, grown.Names) },
	}
	for _, name := range names {
		if err := copies[name](); err != nil {
			return fmt.Errorf("copy map %s: %w", name, err)
		}
	}
	return nil
}

func copySvcs(from, to *ebpf.Map) error {
	var keys []SvcKey
	var rows []Svc
	err := (&SvcTable{from}).Each(func(key SvcKey, row Svc) {
		keys, rows = append(keys, key), append(rows, row)
	})
	if err != nil {
		return err
	}
	return (&SvcTable{to}).Insert(keys, rows)
}

func copyArray[T any](from, to *ebpf.Map) error {
	src, err := MapArray[T](from, false)
	if err != nil {
		return err
	}
	dst, err := MapArray[T](to, true)
	if err != nil {
		return errors.Join(err, src.Close())
	}
	copy(dst.Rows(), src.Rows())
	return errors.Join(src.Close(), dst.Close())
}
