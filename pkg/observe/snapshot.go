// Package observe reads what is in the maps and says it in words. It writes nothing, so it works beside a running agent
// and without one. Indexes are shown as the names and addresses that they stand for; what cannot be resolved is reported
// as damage and never trusted.
package observe

import (
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Frontends lists the rows of svcs, as maps.SvcTable does.
type Frontends interface {
	// Each calls visit for every row, in any order.
	Each(visit func(maps.SvcKey, maps.Svc)) error
}

// Ranges lists the rows of src_ranges, as maps.RangeTable does.
type Ranges interface {
	// Each calls visit for every range, in any order.
	Each(visit func(maps.Range)) error
}

// Tables are what a Snapshot is taken of: the memory of the maps, or of any likeness of them.
type Tables struct {
	Frontends Frontends
	Ranges    Ranges // nil for none
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
	// Inside is what the programs take for addresses inside of the cluster.
	Inside []netip.Prefix `json:"inside,omitempty"`
	// Strays are source ranges of services that heed none, or that are not there.
	Strays   []SourceRange `json:"strayRanges,omitempty"`
	Counters []Counter     `json:"counters,omitempty"`
	Optouts  []Optout      `json:"optouts,omitempty"`
	Pods     []LocalPod    `json:"pods,omitempty"`
	// Native is where pods are known by their own addresses.
	Native []netip.Prefix `json:"native,omitempty"`
}

// Service is one BPF service: one port of one object in one family.
type Service struct {
	Name            string     `json:"name"` // "shop/web:http/tcp4"; empty for a row that has slots but no name
	Index           uint32     `json:"index"`
	Algorithm       string     `json:"algorithm"`
	Flags           []string   `json:"flags,omitempty"`
	AffinitySeconds uint32     `json:"affinitySeconds,omitempty"`
	Frontends       []Frontend `json:"frontends"`
	// SourceRanges are the clients that get to the service's load balancer addresses; all, without the flag.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	All          Scope          `json:"all"`
	Local        Scope          `json:"local"`

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

// SourceRange is a row of src_ranges.
type SourceRange struct {
	Service uint32       `json:"service"` // index
	Range   netip.Prefix `json:"range"`
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
	Local    bool           `json:"local,omitempty"` // on this node
	// Terminating says that it is about to go. Such a backend gets connections where no other is left, or by the
	// Service's publishNotReadyAddresses.
	Terminating bool   `json:"terminating,omitempty"`
	Slots       int    `json:"slots"`
	Backend     uint32 `json:"backend"` // index
}

// Backend is a row of backends with the services that have a slot for it. A row that was freed keeps its content until
// it is used again, and has no services.
type Backend struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	Index    uint32         `json:"index"`
	Local    bool           `json:"local,omitempty"`   // on this node
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
func (s *Service) UsesLocal() bool {
	return s.Local.Length > 0 || s.has(flagInternalLocal) || s.has(flagExternalLocal)
}

func (s *Service) has(flag string) bool { return slices.Contains(s.Flags, flag) }

// The words for a service's flags.
const (
	flagInternalLocal = "internal-local"
	flagExternalLocal = "external-local"
	flagSourceRanges  = "source-ranges"
	flagDSR           = "dsr-" // and the mode
)

func flagWords(flags uint8) []string {
	var words []string
	if flags&maps.InternalLocal != 0 {
		words = append(words, flagInternalLocal)
	}
	if flags&maps.ExternalLocal != 0 {
		words = append(words, flagExternalLocal)
	}
	if flags&maps.SourceRanges != 0 {
		words = append(words, flagSourceRanges)
	}
	if mode := lb.Direct(maps.DirectMode(flags)); mode != lb.DirectOff {
		words = append(words, flagDSR+mode.String())
	}
	if rest := flags &^ (maps.InternalLocal | maps.ExternalLocal | maps.SourceRanges | maps.DirectMask); rest != 0 {
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
	case model.AnyProtocol, model.TCP, model.UDP, model.SCTP:
		return p.String()
	}
	return unknown("protocol", uint32(proto))
}
