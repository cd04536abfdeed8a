package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
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
		if f.Grows && !f.byPrograms() && f.Map.MaxEntries() < f.size(sizes) {
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
	if err := grown.create(func(f field) uint32 { return f.size(sizes) }); err != nil {
		return grown, names, err
	}
	return grown, names, m.copyTo(grown, names)
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
