// Package snapshot reads what is in the maps at one moment. It writes nothing, so it
// works beside a running agent and without one. Indexes are resolved to the names and addresses
// that they stand for; an index that cannot be resolved is reported as damage and never trusted.
package snapshot

import (
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/phrase"
	"fairlead.io/fairlead/pkg/reasons"
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

// Tables are what a Snapshot is taken of: the memory of the maps, or of anything that looks like
// them.
type Tables struct {
	Frontends Frontends
	Ranges    Ranges // may be nil
	Services  []maps.Service
	Slots     []maps.Slot
	Backends  []maps.Backend
	Names     []maps.NameText
}

// Snapshot is the content of the tables at one moment, resolved and sorted.
type Snapshot struct {
	Services []Service  `json:"services"` // by name
	Backends []Backend  `json:"backends"` // by address; every row that was ever written
	Dangling []Frontend `json:"dangling,omitempty"`
	// Inside lists the addresses that the programs treat as inside the cluster.
	Inside []netip.Prefix `json:"inside,omitempty"`
	// ClusterIPs lists the ranges in which what is sent to no Service is refused.
	ClusterIPs []netip.Prefix `json:"clusterIPs,omitempty"`
	// Strays are source ranges of services that do not check ranges, or that do not exist.
	Strays   []SourceRange     `json:"strayRanges,omitempty"`
	Counters []reasons.Counter `json:"counters,omitempty"`
	Optouts  []Optout          `json:"optouts,omitempty"`
	Pods     []LocalPod        `json:"pods,omitempty"`
	// Native lists the networks to which pods send under their own addresses.
	Native []netip.Prefix `json:"native,omitempty"`
	// Cluster has the nodes of the cluster and the sources that belong behind each.
	Cluster maps.Cluster `json:"-"`
}

// Service is one BPF service: one port of one object in one family.
type Service struct {
	Name            string       `json:"name"` // "shop/web:http/tcp4"; empty for a row that has slots but no name
	Index           uint32       `json:"index"`
	Algorithm       lb.Algorithm `json:"algorithm"`
	Flags           []string     `json:"flags,omitempty"`
	AffinitySeconds uint32       `json:"affinitySeconds,omitempty"`
	Frontends       []Frontend   `json:"frontends"`
	// SourceRanges are the clients admitted at the service's load balancer addresses. Without the
	// flag, all are.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	All          Scope          `json:"all"`
	Local        Scope          `json:"local"`

	Turn          uint32 `json:"-"` // of round robin
	AffinityEpoch uint32 `json:"-"` // entries of affinity with another are void
}

// Frontend is a row of svcs. Service is the index that it leads to.
type Frontend struct {
	Address  netip.AddrPort `json:"address"` // the unspecified address stands for every address of the node
	Protocol string         `json:"protocol"`
	Kind     string         `json:"kind"`
	Service  uint32         `json:"service"`

	Key maps.SvcKey `json:"-"`
	Row maps.Svc    `json:"-"`
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
	Backends []Share `json:"backends,omitempty"` // by address, without duplicates
	// Damage says what is wrong with the slots. Backends then covers only the slots before the
	// first bad one.
	Damage string `json:"damage,omitempty"`
	// Changing says that the table changed during every attempt to read it: the scope may be mixed
	// with its successor.
	Changing bool `json:"changing,omitempty"`

	word  maps.Word
	Slots []uint32 `json:"-"` // the backend of each slot
}

// Share is how many of a scope's slots lead to one backend.
type Share struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	Local    bool           `json:"local,omitempty"` // on this node
	// Terminating says that the backend is about to go. Such a backend gets connections only if no
	// other is left, or if the Service sets publishNotReadyAddresses.
	Terminating bool   `json:"terminating,omitempty"`
	Slots       int    `json:"slots"`
	Backend     uint32 `json:"backend"` // index
}

// Backend is a row of backends with the service that has a slot for it. A freed row keeps its
// content until it is reused, and has no service.
type Backend struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	Index    uint32         `json:"index"`
	Local    bool           `json:"local,omitempty"`   // on this node
	Service  string         `json:"service,omitempty"` // whose table has it; empty for a free row

	owner uint32
}

// Label returns the service's name, or a placeholder if it has none.
func (s *Service) Label() string {
	if s.Name == "" {
		return "(unnamed)"
	}
	return s.Name
}

// Scopes lists the service's tables with their names, in display order.
func (s *Service) Scopes() []NamedScope {
	return []NamedScope{{"all", &s.All}, {"local", &s.Local}}
}

// NamedScope is a Scope with its name: "all" or "local".
type NamedScope struct {
	Name string
	*Scope
}

// UsesAll reports whether any traffic uses the table of all backends. Only connections from inside
// to a ClusterIP can be restricted to the node.
func (s *Service) UsesAll() bool {
	if s.All.Length > 0 || !s.Has(FlagInternalLocal) {
		return true
	}
	for _, f := range s.Frontends {
		if f.Row.Kind != maps.ClusterIP {
			return true
		}
	}
	return false
}

// UsesLocal reports whether any traffic uses the table of this node's backends.
func (s *Service) UsesLocal() bool {
	return s.Local.Length > 0 || s.Has(FlagInternalLocal) || s.Has(FlagExternalLocal)
}

// Has reports whether the service has a flag.
func (s *Service) Has(flag string) bool { return slices.Contains(s.Flags, flag) }

// Names of a service's flags.
const (
	FlagInternalLocal = "internal-local"
	FlagExternalLocal = "external-local"
	FlagSourceRanges  = "source-ranges"
	FlagDSR           = "dsr-" // followed by the mode
)

func flagWords(flags uint8) []string {
	var words []string
	if flags&maps.InternalLocal != 0 {
		words = append(words, FlagInternalLocal)
	}
	if flags&maps.ExternalLocal != 0 {
		words = append(words, FlagExternalLocal)
	}
	if flags&maps.SourceRanges != 0 {
		words = append(words, FlagSourceRanges)
	}
	if mode := lb.Direct(maps.DirectMode(flags)); mode != lb.DirectOff {
		words = append(words, FlagDSR+mode.String())
	}
	if rest := flags &^ (maps.InternalLocal | maps.ExternalLocal | maps.SourceRanges | maps.DirectMask); rest != 0 {
		words = append(words, phrase.Unknown("flags", uint32(rest)))
	}
	return words
}

func kindWord(kind uint32) string {
	if int(kind) < len(maps.KindNames) {
		return maps.KindNames[kind]
	}
	return phrase.Unknown("kind", kind)
}

func protocolWord(proto uint8) string {
	switch p := model.Protocol(proto); p {
	case model.AnyProtocol, model.TCP, model.UDP, model.SCTP:
		return p.String()
	}
	return phrase.Unknown("protocol", uint32(proto))
}
