package observe

import (
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// rows is a Frontends in memory.
type rows map[maps.SvcKey]maps.Svc

func (r rows) Each(visit func(maps.SvcKey, maps.Svc)) error {
	for key, row := range r {
		visit(key, row)
	}
	return nil
}

// wants is a service in the notation of tests.
type wants struct {
	name       string
	algorithm  uint8
	flags      uint8
	affinity   uint32
	frontends  map[string]uint32 // "10.96.0.10:80" to kind
	all, local []string          // one backend per slot
}

type ranges []maps.Range

func (r ranges) Each(visit func(maps.Range)) error {
	for _, row := range r {
		visit(row)
	}
	return nil
}

// layout lays services out in tables. Its fields control details that a dump must not depend on.
type layout struct {
	Tables
	nextService, nextSlot, nextBackend uint32
	tag                                uint16
	backends                           map[string]uint32
}

func newLayout() *layout {
	return &layout{
		Tables: Tables{
			Frontends: rows{},
			Services:  make([]maps.Service, 64), Names: make([]maps.NameText, 64),
			Slots: make([]maps.Slot, 512), Backends: make([]maps.Backend, 64),
		},
		nextService: 1, tag: 1, backends: map[string]uint32{},
	}
}

func (l *layout) add(w wants) uint32 {
	index := l.nextService
	l.nextService++
	for i := range len(w.name) {
		l.Names[index].Text[i] = int8(w.name[i])
	}
	row := &l.Services[index]
	row.Algorithm, row.Flags, row.AffinitySeconds = w.algorithm, w.flags, w.affinity
	row.Words[maps.ScopeAll] = uint64(l.table(index, maps.ScopeAll, w.all))
	row.Words[maps.ScopeLocal] = uint64(l.table(index, maps.ScopeLocal, w.local))
	for text, kind := range w.frontends {
		at := netip.MustParseAddrPort(text)
		l.Frontends.(rows)[maps.KeyOf(at.Addr(), at.Port(), model.TCP)] = maps.Svc{Service: index, Kind: kind}
	}
	return index
}

func (l *layout) table(index uint32, scope int, backends []string) maps.Word {
	off := l.nextSlot
	for i, text := range backends {
		backend := l.backend(index, text)
		l.Backends[backend].Owner |= maps.MakeOwner(index, 1<<scope)
		l.Slots[int(off)+i] = maps.MakeSlot(backend, index, l.tag)
	}
	l.nextSlot += uint32(len(backends))
	word := maps.MakeWord(off, len(backends), l.tag)
	l.tag++
	return word
}

// backend returns the service's row of a backend.
func (l *layout) backend(service uint32, text string) uint32 {
	key := fmt.Sprint(service, " ", text)
	index, ok := l.backends[key]
	if !ok {
		at := netip.MustParseAddrPort(text)
		index = l.nextBackend
		l.nextBackend++
		l.backends[key] = index
		l.Backends[index] = maps.BackendOf(at.Addr(), at.Port(), model.TCP)
	}
	return index
}

// shop returns services with everything that a dump can show.
func shop() []wants {
	return []wants{
		{
			name:      "shop/web:http/tcp4",
			flags:     maps.ExternalLocal,
			frontends: map[string]uint32{"10.96.0.10:80": maps.ClusterIP, "0.0.0.0:30080": maps.NodePort},
			all:       []string{"10.1.0.1:8080", "10.1.0.2:8080"},
			local:     []string{"10.1.0.1:8080"},
		},
		{
			name:      "shop/web:http/tcp6",
			algorithm: 3, affinity: 10800,
			frontends: map[string]uint32{"[fd96::10]:80": maps.ClusterIP, "[2001:db8::1]:80": maps.LoadBalancer},
			all:       []string{"[fd01::1]:8080", "[fd01::2]:8080", "[fd01::1]:8080"},
		},
		{
			name:  "shop/weighted/tcp4",
			all:   []string{"10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.2:8080"},
			flags: 0, frontends: map[string]uint32{"10.96.0.11:80": maps.ClusterIP},
		},
		{
			name: "shop/empty/tcp4", flags: maps.InternalLocal,
			frontends: map[string]uint32{"10.96.0.12:80": maps.ClusterIP},
		},
		{
			name:      "pod:shop/web-0:0.0.0.0:9000/tcp4",
			frontends: map[string]uint32{"0.0.0.0:9000": maps.HostPort},
			all:       []string{"10.1.0.1:9000"},
		},
	}
}

func take(t *testing.T, tables Tables) *Snapshot {
	t.Helper()
	s, err := Take(tables)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
