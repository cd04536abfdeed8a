package maps

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
)

// Room is how many rows the maps that evict rows should have: ct_pending, affinity and frags. No map
// gets fewer rows than its spec says.
type Room struct {
	HalfOpen, Clients, Datagrams uint32
}

// roomMost limits the rows of a map that evicts, because its memory is allocated when it is
// created.
const roomMost = 1 << 24

// of returns how many rows the named map should have; 1 for maps that don't evict.
func (r Room) of(name string) uint32 {
	want := map[string]uint32{"ct_pending": r.HalfOpen, "affinity": r.Clients, "frags": r.Datagrams}[name]
	return roundUp(max(1, min(want, roomMost)))
}

// Enlarged is Grown for the maps that evict rows, except that it copies nothing, since programs
// write to them all the time. CopyRows copies their rows, once right away, and again, to get what
// was written since, when no program uses the old maps any more.
func (m *Maps) Enlarged(room Room) (grown *Maps, names []string, err error) {
	if m.readOnly {
		return nil, nil, errors.New("enlarge maps: they are open read-only")
	}
	grown = &Maps{room: room}
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
		if PushesOut(f.Name) && f.Map.MaxEntries() < room.of(f.Name) {
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
	if err := grown.create(func(field) uint32 { return 0 }); err != nil {
		return grown, names, err
	}
	return grown, names, nil
}

// Exchange swaps the named maps of m and other.
func (m *Maps) Exchange(other *Maps, names []string) {
	theirs := other.fields()
	for i, f := range m.fields() {
		if slices.Contains(names, f.Name) {
			*f.at, *theirs[i].at = *theirs[i].at, *f.at
		}
	}
}

// CopyRows copies the rows of those named maps that evict to their counterparts, except rows that
// exist there.
func (m *Maps) CopyRows(to *Maps, names []string) error {
	target := to.fields()
	for i, f := range m.fields() {
		for _, name := range names {
			l, ok := lruOf(name)
			if !ok || f.Name != name {
				continue
			}
			if err := l.copyRows(f.Map, target[i].Map); err != nil {
				return fmt.Errorf("carry over rows of map %s: %w", name, err)
			}
		}
	}
	return nil
}

func copyAll[K, V any](from, to *ebpf.Map) error {
	var buffer rowBuffer[K, V]
	return eachRow(from, &buffer, func(keys []K, rows []V) error {
		for i := range keys {
			if err := to.Update(&keys[i], &rows[i], ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
				return err
			}
		}
		return nil
	})
}
