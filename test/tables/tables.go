// Package tables lays out services in memory as the maps have them, for tests of what reads the maps.
package tables

import (
	"fmt"
	"net/netip"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Rows are the rows of svcs.
type Rows map[maps.SvcKey]maps.Svc

// Each calls visit for every row.
func (r Rows) Each(visit func(maps.SvcKey, maps.Svc)) error {
	for key, row := range r {
		visit(key, row)
	}
	return nil
}

// Wants is a service in the notation of tests.
type Wants struct {
	Name       string
	Algorithm  uint8
	Flags      uint8
	Affinity   uint32
	Frontends  map[string]uint32 // "10.96.0.10:80" to kind
	All, Local []string          // one backend per slot
}

// Ranges are the rows of src_ranges.
type Ranges []maps.Range

// Each calls visit for every range.
func (r Ranges) Each(visit func(maps.Range)) error {
	for _, row := range r {
		visit(row)
	}
	return nil
}

// Layout lays services out in tables. Its fields control details that a dump must not depend on.
type Layout struct {
	Frontends Rows
	Ranges    Ranges
	Services  []maps.Service
	Slots     []maps.Slot
	Backends  []maps.Backend
	Names     []maps.NameText

	NextService, NextSlot, NextBackend uint32
	Tag                                uint16
	backends                           map[string]uint32
}

// NewLayout returns empty tables.
func NewLayout() *Layout {
	return &Layout{
		Frontends: Rows{},
		Services:  make([]maps.Service, 64), Names: make([]maps.NameText, 64),
		Slots: make([]maps.Slot, 512), Backends: make([]maps.Backend, 64),
		NextService: 1, Tag: 1, backends: map[string]uint32{},
	}
}

// Add lays out a service, and returns its index.
func (l *Layout) Add(w Wants) uint32 {
	index := l.NextService
	l.NextService++
	for i := range len(w.Name) {
		l.Names[index].Text[i] = int8(w.Name[i])
	}
	row := &l.Services[index]
	row.Algorithm, row.Flags, row.AffinitySeconds = w.Algorithm, w.Flags, w.Affinity
	row.Words[maps.ScopeAll] = uint64(l.table(index, maps.ScopeAll, w.All))
	row.Words[maps.ScopeLocal] = uint64(l.table(index, maps.ScopeLocal, w.Local))
	for text, kind := range w.Frontends {
		at := netip.MustParseAddrPort(text)
		l.Frontends[maps.KeyOf(at.Addr(), at.Port(), model.TCP)] = maps.Svc{Service: index, Kind: kind}
	}
	return index
}

func (l *Layout) table(index uint32, scope int, backends []string) maps.Word {
	off := l.NextSlot
	for i, text := range backends {
		backend := l.Backend(index, text)
		l.Backends[backend].Owner |= maps.MakeOwner(index, 1<<scope)
		l.Slots[int(off)+i] = maps.MakeSlot(backend, index, l.Tag)
	}
	l.NextSlot += uint32(len(backends))
	word := maps.MakeWord(off, len(backends), l.Tag)
	l.Tag++
	return word
}

// Backend returns the service's row of a backend.
func (l *Layout) Backend(service uint32, text string) uint32 {
	key := fmt.Sprint(service, " ", text)
	index, ok := l.backends[key]
	if !ok {
		at := netip.MustParseAddrPort(text)
		index = l.NextBackend
		l.NextBackend++
		l.backends[key] = index
		l.Backends[index] = maps.BackendOf(at.Addr(), at.Port(), model.TCP)
	}
	return index
}

// Shop returns services with everything that a dump can show.
func Shop() []Wants {
	return []Wants{
		{
			Name:      "shop/web:http/tcp4",
			Flags:     maps.ExternalLocal,
			Frontends: map[string]uint32{"10.96.0.10:80": maps.ClusterIP, "0.0.0.0:30080": maps.NodePort},
			All:       []string{"10.1.0.1:8080", "10.1.0.2:8080"},
			Local:     []string{"10.1.0.1:8080"},
		},
		{
			Name:      "shop/web:http/tcp6",
			Algorithm: 3, Affinity: 10800,
			Frontends: map[string]uint32{"[fd96::10]:80": maps.ClusterIP, "[2001:db8::1]:80": maps.LoadBalancer},
			All:       []string{"[fd01::1]:8080", "[fd01::2]:8080", "[fd01::1]:8080"},
		},
		{
			Name:  "shop/weighted/tcp4",
			All:   []string{"10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.2:8080"},
			Flags: 0, Frontends: map[string]uint32{"10.96.0.11:80": maps.ClusterIP},
		},
		{
			Name: "shop/empty/tcp4", Flags: maps.InternalLocal,
			Frontends: map[string]uint32{"10.96.0.12:80": maps.ClusterIP},
		},
		{
			Name:      "pod:shop/web-0:0.0.0.0:9000/tcp4",
			Frontends: map[string]uint32{"0.0.0.0:9000": maps.HostPort},
			All:       []string{"10.1.0.1:9000"},
		},
	}
}

// Spread returns a service whose table has three backends in mixed order.
func Spread() Wants {
	return Wants{
		Name: "shop/web:http/tcp4", Algorithm: uint8(bpf.MapsAlgorithmALGORITHM_MAGLEV),
		Frontends: map[string]uint32{"10.96.0.10:80": maps.ClusterIP, "0.0.0.0:30080": maps.NodePort},
		All: []string{"10.1.0.1:8080", "10.1.0.3:8080", "10.1.0.2:8080", "10.1.0.1:8080", "10.1.0.1:8080", "10.1.0.2:8080",
			"10.1.0.3:8080"},
	}
}
