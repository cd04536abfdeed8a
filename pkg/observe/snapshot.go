// Package observe reads what is in the maps and says it in words. It writes nothing, so it works beside a running agent
// and without one. Indexes are shown as the names and addresses that they stand for; what cannot be resolved is reported
// as damage and never trusted.
package observe

import (
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Frontends lists the rows of svcs, as maps.SvcTable does.
type Frontends interface {
	// Each calls visit for every row, in any order.
	Each(visit func(maps.SvcKey, maps.Svc)) error
}

// Tables are what a Snapshot is taken of: the memory of the maps, or of any likeness of them.
type Tables struct {
	Frontends Frontends
	Services  []maps.Service
	Slots     []maps.Slot
	Backends  []maps.Backend
	Names     []maps.NameText
}

// Snapshot is what the tables said at one moment, resolved and sorted.
type Snapshot struct {
	Services []Service  `json:"services"` // by name
	Backends []Backend  `json:"backends"` // by address; every row that was ever written
	Dangling []Frontend `json:"dangling,omitempty"`
	Counters []Counter  `json:"counters,omitempty"`
	Optouts  []Optout   `json:"optouts,omitempty"`
}

// Service is one BPF service: one port of one object in one family.
type Service struct {
	Name            string     `json:"name"` // "shop/web:http/tcp4"; empty for a row that has slots but no name
	Index           uint32     `json:"index"`
	Algorithm       string     `json:"algorithm"`
	Flags           []string   `json:"flags,omitempty"`
	AffinitySeconds uint32     `json:"affinitySeconds,omitempty"`
	Frontends       []Frontend `json:"frontends"`
	All             Scope      `json:"all"`
	Local           Scope      `json:"local"`

	algorithm uint8
	turn      uint32 // of round robin
}

// Frontend is a row of svcs. Service is the index that it leads to.
type Frontend struct {
	Address  netip.AddrPort `json:"address"` // the unspecified address for every address of the node
	Protocol string         `json:"protocol"`
	Kind     string         `json:"kind"`
	Service  uint32         `json:"service"`

	key maps.SvcKey
	row maps.Svc
}

// Scope is the table of backends for one kind of traffic.
type Scope struct {
	Offset   uint32  `json:"offset"`
	Length   int     `json:"length"`
	Tag      uint16  `json:"tag"`
	Backends []Share `json:"backends,omitempty"` // by address, each once
	// Damage says what is wrong with the slots; Backends then has only those before the first bad one.
	Damage string `json:"damage,omitempty"`
	// Unsettled says that the writer was faster than the reader on every try: the scope may be mixed with its successor.
	Unsettled bool `json:"unsettled,omitempty"`

	word  maps.Word
	slots []uint32 // the backend of each slot
}

// Share is the part of a scope's slots that lead to one backend.
type Share struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	Slots    int            `json:"slots"`
	Backend  uint32         `json:"backend"` // index
}

// Backend is a row of backends with the services that have a slot for it. A row that was freed keeps its content until
// it is used again, and has no services.
type Backend struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	Index    uint32         `json:"index"`
	Service  string         `json:"service,omitempty"` // that has it in a table; none for a row that is free

	owner uint32
}

// label returns the service's name, or words for one that has none.
func (s *Service) label() string {
	if s.Name == "" {
		return "(unnamed)"
	}
	return s.Name
}

// scopes lists the service's tables with their names, in the order in which they are shown.
func (s *Service) scopes() []namedScope {
	return []namedScope{{"all", &s.All}, {"local", &s.Local}}
}

type namedScope struct {
	name string
	*Scope
}

// UsesAll reports whether any traffic goes by the table of all backends. Only connections from inside to a ClusterIP
// can be held to the node.
func (s *Service) UsesAll() bool {
	if s.All.Length > 0 || !s.has(flagInternalLocal) {
		return true
	}
	for _, f := range s.Frontends {
		if f.row.Kind != maps.ClusterIP {
			return true
		}
	}
	return false
}

// UsesLocal reports whether any traffic goes by the table of this node's backends.
func (s *Service) UsesLocal() bool { return s.Local.Length > 0 || len(s.Flags) > 0 }

func (s *Service) has(flag string) bool { return slices.Contains(s.Flags, flag) }

// The words for a service's flags.
const (
	flagInternalLocal = "internal-local"
	flagExternalLocal = "external-local"
)

func flagWords(flags uint8) []string {
	var words []string
	if flags&maps.InternalLocal != 0 {
		words = append(words, flagInternalLocal)
	}
	if flags&maps.ExternalLocal != 0 {
		words = append(words, flagExternalLocal)
	}
	if rest := flags &^ (maps.InternalLocal | maps.ExternalLocal); rest != 0 {
		words = append(words, unknown("flags", uint32(rest)))
	}
	return words
}

func kindWord(kind uint32) string {
	if int(kind) < len(maps.KindNames) {
		return maps.KindNames[kind]
	}
	return unknown("kind", kind)
}

func protocolWord(proto uint8) string {
	switch p := model.Protocol(proto); p {
	case model.TCP, model.UDP, model.SCTP:
		return p.String()
	}
	return unknown("protocol", uint32(proto))
}
