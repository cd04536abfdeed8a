package reconcile

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strconv"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
)

// adoption takes over what an earlier agent left in the maps.
type adoption struct {
	*frontendRows
	log     *slog.Logger
	found   map[string]*service // by name: not yet claimed by an object
	orphans []maps.SvcKey       // rows of frontends
}

// adopt takes over what an earlier agent left in the maps, so that a restart without changes writes
// nothing. Rows that make no sense are kept apart and deleted when the sources are complete.
func (a *adoption) adopt() error {
	for index := 1; index < len(a.tables.Services); index++ {
		text := textOf(&a.tables.Names[index])
		if text == "" {
			continue
		}
		s, err := a.adoptService(uint32(index))
		if err != nil {
			return fmt.Errorf("adopt service %d (%s): %w", index, text, err)
		}
		if a.found[text] != nil {
			text = "#" + strconv.Itoa(index) // a second service of that name, left half installed
		}
		a.found[text] = s
	}
	var failed error
	err := a.tables.Frontends.Each(func(key maps.SvcKey, row maps.Svc) {
		if int(row.Service) < len(a.byIndex) && row.Service != 0 {
			if err := a.reserveOrphan(row.Service); err != nil {
				failed = err
				return
			}
			a.byIndex[row.Service].rows++
		}
		a.frontends.count(key, 1)
		a.frontends.keys[key] = frontend{row: row, present: true}
		a.orphans = append(a.orphans, key)
	})
	if err := cmp.Or(err, failed); err != nil {
		return fmt.Errorf("read the frontends: %w", err)
	}
	a.disownUnused()
	return a.adoptRanges()
}

// disownUnused clears the owner of backend rows that no table leads to. An agent killed in the
// middle of a switch leaves such rows behind, and clients and sockets that remember them would keep
// using them forever.
func (a *adoption) disownUnused() {
	used := make([]bool, len(a.tables.Backends))
	for _, s := range a.byIndex {
		if s == nil {
			continue
		}
		for _, index := range s.backends {
			used[index] = true
		}
	}
	for index := range a.tables.Backends {
		if !used[index] {
			a.setOwner(uint32(index), 0)
		}
	}
}

// reserveOrphan reserves the service index of a row that leads to a service without a name, as long
// as the row exists.
func (a *adoption) reserveOrphan(index uint32) error {
	if a.byIndex[index] != nil {
		return nil
	}
	if err := a.services.Reserve(index); err != nil {
		return fmt.Errorf("adopt service %d: %w", index, err)
	}
	s := &service{index: index}
	a.found["#"+strconv.Itoa(int(index))] = s
	a.byIndex[index] = s
	return nil
}

// adoptService takes over one row of services. A scope with a damaged extent or slots is treated as
// empty; the first compile of the service rewrites it.
func (a *adoption) adoptService(index uint32) (*service, error) {
	if err := a.services.Reserve(index); err != nil {
		return nil, err
	}
	s := &service{index: index}
	a.byIndex[index] = s
	var used []uint32
	for scope, value := range a.tables.Services[index].Words {
		word := maps.Word(value)
		s.words[scope] = maps.MakeWord(0, 0, word.Tag())
		if word.Len() == 0 {
			continue
		}
		found, ok := a.soundExtent(index, word)
		if !ok {
			a.log.Warn("adopt: the table of a service is damaged and will be rewritten", "service", textOf(&a.tables.Names[index]))
			continue
		}
		s.words[scope] = word
		used = append(used, found...)
	}
	slices.Sort(used)
	s.backends = slices.Compact(used)
	for _, at := range s.backends {
		if err := a.backends.Reserve(at); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// soundExtent reserves a word's extent and returns the backends its slots lead to. It returns false
// if the slots do not belong to the word, or the backends not to the service.
func (a *adoption) soundExtent(index uint32, word maps.Word) ([]uint32, bool) {
	end := uint64(word.Off()) + uint64(word.Len())
	if end > uint64(len(a.tables.Slots)) {
		return nil, false
	}
	var found []uint32
	for _, slot := range a.tables.Slots[word.Off():end] {
		at := maps.SlotBackend(slot)
		if maps.SlotOwner(slot) != index || maps.SlotTag(slot) != word.Tag() || int(at) >= len(a.tables.Backends) {
			return nil, false
		}
		if maps.BackendService(a.tables.Backends[at]) != index {
			return nil, false
		}
		if len(found) == 0 || found[len(found)-1] != at {
			found = append(found, at)
		}
	}
	if a.extents.Reserve(word.Off(), uint32(word.Len())) != nil {
		return nil, false
	}
	return found, true
}

// adopts reports whether an object wants a service that was found in the maps.
func (a *adoption) adopts(wanted *lb.Wanted) bool {
	if len(a.found) == 0 {
		return false
	}
	return slices.ContainsFunc(wanted.Services, func(w lb.Service) bool { return a.found[nameText(w.ID)] != nil })
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

// sweep retires adopted services that belong to no object, and touches adopted rows that nobody
// claims.
func (a *adoption) sweep() {
	if len(a.found) == 0 && len(a.orphans) == 0 {
		return
	}
	for _, s := range a.found {
		a.retired = append(a.retired, s)
	}
	clear(a.found)
	for _, key := range a.orphans {
		if state, ok := a.frontends.keys[key]; ok && !state.inMaps() {
			a.frontends.touched[key] = struct{}{}
		}
	}
	a.orphans = slices.Delete(a.orphans, 0, len(a.orphans))
}
