package snapshot

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync/atomic"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/phrase"
)

// takeTries is how often a read is retried because the table changed meanwhile.
const takeTries = 4

// Take reads the tables. They may be written meanwhile: each service is read until its words are
// unchanged after the read, and all of them are checked once more at the end, so that comparisons
// across services are about one moment. The error is that of listing the frontends; damaged rows
// are part of the result.
func Take(t Tables) (*Snapshot, error) {
	r := reader{Tables: t, services: map[uint32]*Service{}}
	rows, err := r.frontends()
	if err != nil {
		return nil, err
	}
	for index := range min(len(t.Services), len(t.Names)) {
		r.read(uint32(index))
	}
	r.rereadChanged()
	dangling := r.assign(rows)
	if len(dangling) > 0 {
		// Rows that came or went meanwhile are no damage. Real damage is still there on a second
		// look.
		if rows, err = r.frontends(); err != nil {
			return nil, err
		}
		for i := range rows {
			if r.services[rows[i].Service] == nil {
				r.read(rows[i].Service)
			}
		}
		before := map[maps.SvcKey]maps.Svc{}
		for _, f := range dangling {
			before[f.Key] = f.Row
		}
		dangling = slices.DeleteFunc(r.assign(rows), func(f Frontend) bool {
			row, ok := before[f.Key]
			return !ok || row != f.Row
		})
	}
	s := r.snapshot(dangling)
	return s, s.readRanges(t.Ranges)
}

// reader collects the services of one Snapshot by index.
type reader struct {
	Tables
	services map[uint32]*Service
}

func (r *reader) frontends() ([]Frontend, error) {
	var list []Frontend
	err := r.Frontends.Each(func(key maps.SvcKey, row maps.Svc) {
		if maps.IsHosted(key) {
			return // a local backend, which its service shows
		}
		list = append(list, Frontend{
			Address: maps.AddrPort(key), Protocol: protocolWord(key.Proto), Kind: kindWord(row.Kind),
			Service: row.Service, Key: key, Row: row,
		})
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, compareFrontends)
	return slices.CompactFunc(list, func(a, b Frontend) bool { return a.Key == b.Key }), nil
}

func compareFrontends(a, b Frontend) int {
	return cmp.Or(cmp.Compare(a.Row.Kind, b.Row.Kind), a.Address.Compare(b.Address), cmp.Compare(a.Key.Proto, b.Key.Proto))
}

// assign gives the frontends to their services and returns those that lead to none.
func (r *reader) assign(rows []Frontend) []Frontend {
	for _, s := range r.services {
		s.Frontends = nil
	}
	var dangling []Frontend
	for _, row := range rows {
		if s := r.services[row.Service]; s != nil {
			s.Frontends = append(s.Frontends, row)
		} else {
			dangling = append(dangling, row)
		}
	}
	return dangling
}

// read reads one row of services, or forgets the service if the row is empty.
func (r *reader) read(index uint32) {
	if int(index) >= min(len(r.Services), len(r.Names)) {
		return
	}
	var s *Service
	stood := false
	for range takeTries {
		words, name := r.words(index), NameOf(&r.Names[index])
		if words[0].Len() == 0 && words[1].Len() == 0 && name == "" {
			delete(r.services, index)
			return
		}
		row := &r.Services[index]
		s = &Service{
			Name: name, Index: index, Turn: atomic.LoadUint32(&row.Turn), AffinityEpoch: row.AffinityEpoch, Algorithm: lb.Algorithm(row.Algorithm),
			Flags: flagWords(row.Flags), AffinitySeconds: row.AffinitySeconds,
			All:   r.scope(index, maps.ScopeAll, words),
			Local: r.scope(index, maps.ScopeLocal, words),
		}
		if stood = r.stands(s); stood {
			break
		}
	}
	if !stood {
		s.All.Changing, s.Local.Changing = true, true
		s.All.Damage, s.Local.Damage = "", ""
	}
	r.services[index] = s
}

func (r *reader) words(index uint32) (words [maps.Scopes]maps.Word) {
	for scope := range words {
		words[scope] = maps.Word(atomic.LoadUint64(&r.Services[index].Words[scope]))
	}
	return words
}

// stands reports whether a service is unchanged since it was read.
func (r *reader) stands(s *Service) bool {
	return r.words(s.Index) == [maps.Scopes]maps.Word{s.All.word, s.Local.word} && NameOf(&r.Names[s.Index]) == s.Name
}

// rereadChanged rereads services that changed since they were read, until a whole round finds no change.
func (r *reader) rereadChanged() {
	for round := range takeTries {
		moved := false
		for index, s := range r.services {
			if r.stands(s) {
				continue
			}
			moved = true
			r.read(index)
			if s = r.services[index]; s != nil && round == takeTries-1 {
				s.All.Changing, s.Local.Changing = true, true
			}
		}
		if !moved {
			return
		}
	}
}

func (r *reader) scope(index uint32, scope int, words [maps.Scopes]maps.Word) Scope {
	word := words[scope]
	s := Scope{Offset: word.Off(), Length: word.Len(), Tag: word.Tag(), word: word}
	if word.Len() == 0 {
		s.Offset = 0
		return s
	}
	end := uint64(word.Off()) + uint64(word.Len())
	if end > uint64(len(r.Slots)) {
		s.Damage = fmt.Sprintf("slots %d to %d lie outside the map", word.Off(), end-1)
		return s
	}
	for i := range word.Len() {
		at := int(word.Off()) + i
		slot := maps.Slot{Value: atomic.LoadUint64(&r.Slots[at].Value)}
		backend := maps.SlotBackend(slot)
		switch {
		case maps.SlotOwner(slot) != index || maps.SlotTag(slot) != word.Tag():
			s.Damage = fmt.Sprintf("slot %d belongs to service %d, tag %d", at, maps.SlotOwner(slot), maps.SlotTag(slot))
		case int(backend) >= len(r.Backends):
			s.Damage = fmt.Sprintf("slot %d leads to backend %d, outside the map", at, backend)
		case r.Backends[backend] == maps.Backend{}:
			s.Damage = fmt.Sprintf("slot %d leads to backend %d, which was never written", at, backend)
		default:
			s.Damage = r.disowned(at, backend, index, scope)
		}
		if s.Damage != "" {
			break
		}
		s.Slots = append(s.Slots, backend)
	}
	s.Backends = r.shares(s.Slots)
	return s
}

// disowned says what is wrong with the owner of a backend that a slot leads to, or "" if it is the
// slot's.
func (r *reader) disowned(slot int, backend, service uint32, scope int) string {
	row := maps.Backend{Owner: atomic.LoadUint32(&r.Backends[backend].Owner)}
	switch {
	case maps.BackendService(row) != service:
		return fmt.Sprintf("slot %d leads to backend %d, which belongs to service %d", slot, backend, maps.BackendService(row))
	case maps.BackendScopes(row)&(1<<scope) == 0:
		return fmt.Sprintf("slot %d leads to backend %d, which is not marked for the scope", slot, backend)
	}
	return ""
}

func (r *reader) shares(backends []uint32) []Share {
	counts := map[uint32]int{}
	for _, backend := range backends {
		counts[backend]++
	}
	var list []Share
	for backend, n := range counts {
		row := r.Backends[backend]
		list = append(list, Share{
			Address: maps.BackendAddrPort(row), Protocol: protocolWord(row.Proto), Slots: n, Backend: backend,
			Local: row.Flags&maps.BackendLocal != 0, Terminating: row.Flags&maps.BackendTerminating != 0,
		})
	}
	slices.SortFunc(list, func(a, b Share) int {
		return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Backend, b.Backend))
	})
	return list
}

func (r *reader) snapshot(dangling []Frontend) *Snapshot {
	s := &Snapshot{Services: []Service{}, Backends: []Backend{}, Dangling: dangling}
	for _, service := range r.services {
		s.Services = append(s.Services, *service)
	}
	slices.SortFunc(s.Services, func(a, b Service) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Index, b.Index))
	})
	users := map[uint32]string{}
	for i := range s.Services {
		service := &s.Services[i]
		for _, scope := range service.Scopes() {
			for _, share := range scope.Backends {
				users[share.Backend] = service.Label()
			}
		}
	}
	for index, row := range r.Backends {
		if row == (maps.Backend{}) {
			continue
		}
		s.Backends = append(s.Backends, Backend{
			Address: maps.BackendAddrPort(row), Protocol: protocolWord(row.Proto), Index: uint32(index),
			Local: row.Flags&maps.BackendLocal != 0, owner: maps.BackendService(row), Service: users[uint32(index)],
		})
	}
	slices.SortFunc(s.Backends, func(a, b Backend) int {
		return cmp.Or(a.Address.Compare(b.Address), strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Index, b.Index))
	})
	return s
}

// order returns a short digest of which backend is in which slot.
func (s *Snapshot) order(scope *Scope) string {
	names := map[uint32]string{}
	for _, share := range scope.Backends {
		names[share.Backend] = share.Address.String() + "/" + share.Protocol + "\n"
	}
	sum := fnv.New32a()
	for _, backend := range scope.Slots {
		sum.Write([]byte(names[backend]))
	}
	return fmt.Sprintf("%08x", sum.Sum32())
}

// NameOf returns the text of a name. Text that is not printable is quoted, since it is written to
// terminals.
func NameOf(name *maps.NameText) string {
	b := make([]byte, 0, len(name.Text))
	for _, c := range name.Text {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return phrase.Printable(string(b))
}
