package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
)

// adopt takes over what an earlier agent left in the maps, so that a restart without changes writes
// nothing. Rows that make no sense are kept apart and deleted when the sources are complete.
func (r *Reconciler) adopt() error {
	for index := 1; index < len(r.tables.Services); index++ {
		text := textOf(&r.tables.Names[index])
		if text == "" {
			continue
		}
		s, err := r.adoptService(uint32(index))
		if err != nil {
			return fmt.Errorf("adopt service %d (%s): %w", index, text, err)
		}
		if r.adopted[text] != nil {
			text = "#" + strconv.Itoa(index) // a second service of that name, left half installed
		}
		r.adopted[text] = s
	}
	var failed error
	err := r.tables.Frontends.Each(func(key maps.SvcKey, row maps.Svc) {
		if int(row.Service) < len(r.byIndex) && row.Service != 0 {
			if err := r.reserveOrphan(row.Service); err != nil {
				failed = err
				return
			}
			r.byIndex[row.Service].rows++
		}
		r.frontends.count(key, 1)
		r.frontends.keys[key] = frontend{row: row, present: true}
		r.orphans = append(r.orphans, key)
	})
	if err := cmp.Or(err, failed); err != nil {
		return fmt.Errorf("read the frontends: %w", err)
	}
	r.disownUnused()
	return r.adoptRanges()
}

// disownUnused clears the owner of backend rows that no table leads to. An agent killed in the
// middle of a switch leaves such rows behind, and clients and sockets that remember them would keep
// using them forever.
func (r *Reconciler) disownUnused() {
	used := make([]bool, len(r.tables.Backends))
	for _, s := range r.byIndex {
		if s == nil {
			continue
		}
		for _, index := range s.backends {
			used[index] = true
		}
	}
	for index := range r.tables.Backends {
		if !used[index] {
			r.setOwner(uint32(index), 0)
		}
	}
}

// reserveOrphan reserves the service index of a row that leads to a service without a name, as long
// as the row exists.
func (r *Reconciler) reserveOrphan(index uint32) error {
	if r.byIndex[index] != nil {
		return nil
	}
	if err := r.services.Reserve(index); err != nil {
		return fmt.Errorf("adopt service %d: %w", index, err)
	}
	s := &service{index: index}
	r.adopted["#"+strconv.Itoa(int(index))] = s
	r.byIndex[index] = s
	return nil
}

// adoptService takes over one row of services. A scope with a damaged extent or slots is treated as
// empty; the first compile of the service rewrites it.
func (r *Reconciler) adoptService(index uint32) (*service, error) {
	if err := r.services.Reserve(index); err != nil {
		return nil, err
	}
	s := &service{index: index}
	r.byIndex[index] = s
	var used []uint32
	for scope, value := range r.tables.Services[index].Words {
		word := maps.Word(value)
		s.words[scope] = maps.MakeWord(0, 0, word.Tag())
		if word.Len() == 0 {
			continue
		}
		found, ok := r.soundExtent(index, word)
		if !ok {
			r.cfg.Log.Warn("adopt: the table of a service is damaged and will be rewritten", "service", textOf(&r.tables.Names[index]))
			continue
		}
		s.words[scope] = word
		used = append(used, found...)
	}
	slices.Sort(used)
	s.backends = slices.Compact(used)
	for _, at := range s.backends {
		if err := r.backends.Reserve(at); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// soundExtent reserves a word's extent and returns the backends its slots lead to. It returns false
// if the slots do not belong to the word, or the backends not to the service.
func (r *Reconciler) soundExtent(index uint32, word maps.Word) ([]uint32, bool) {
	end := uint64(word.Off()) + uint64(word.Len())
	if end > uint64(len(r.tables.Slots)) {
		return nil, false
	}
	var found []uint32
	for _, slot := range r.tables.Slots[word.Off():end] {
		at := maps.SlotBackend(slot)
		if maps.SlotOwner(slot) != index || maps.SlotTag(slot) != word.Tag() || int(at) >= len(r.tables.Backends) {
			return nil, false
		}
		if maps.BackendService(r.tables.Backends[at]) != index {
			return nil, false
		}
		if len(found) == 0 || found[len(found)-1] != at {
			found = append(found, at)
		}
	}
	if r.extents.Reserve(word.Off(), uint32(word.Len())) != nil {
		return nil, false
	}
	return found, true
}

// adopts reports whether an object wants a service that was found in the maps.
func (r *Reconciler) adopts(wanted *lb.Wanted) bool {
	if len(r.adopted) == 0 {
		return false
	}
	return slices.ContainsFunc(wanted.Services, func(w lb.Service) bool { return r.adopted[nameText(w.ID)] != nil })
}

func textOf(name *maps.NameText) string {
	var b []byte
	for _, c := range name.Text {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
