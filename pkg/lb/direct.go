package lb

import (
	"fmt"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Direct is how packets from outside are encapsulated for a backend on another node that answers
// the client directly.
type Direct uint8

// The modes of direct server return.
const (
	DirectOff    = Direct(bpf.MapsDsrModeDSR_OFF)    // disabled: answers come back through this node
	DirectIPIP   = Direct(bpf.MapsDsrModeDSR_IPIP)   // IP in IP
	DirectGeneve = Direct(bpf.MapsDsrModeDSR_GENEVE) // Geneve
	DirectOpt    = Direct(bpf.MapsDsrModeDSR_OPT)    // an IPv4 option or an IPv6 destination options header
)

var directNames = [...]string{DirectOff: "off", DirectIPIP: "ipip", DirectGeneve: "geneve", DirectOpt: "opt"}

// String returns the name of the mode in the configuration.
func (d Direct) String() string {
	if int(d) < len(directNames) {
		return directNames[d]
	}
	return fmt.Sprintf("mode %d", uint8(d))
}

// ParseDirect returns the mode of that name.
func ParseDirect(name string) (Direct, error) {
	if at := slices.Index(directNames[:], name); at >= 0 {
		return Direct(at), nil
	}
	return DirectOff, fmt.Errorf("unknown mode %.64q of direct server return: use one of %s", name, strings.Join(directNames[:], ", "))
}

// direct returns the mode of a Service. A node that is not set up to accept forwarded packets does
// not forward any, since the other nodes are likely to be set up like it.
func (c *Compiler) direct(service *model.Service, wanted *Wanted) Direct {
	mode := c.facts.Direct
	if service.Direct != "" {
		var err error
		if mode, err = ParseDirect(service.Direct); err != nil {
			wanted.problem("UnsupportedDSR", "annotation fairlead.io/dsr: %v; using %s", err, c.facts.Direct)
			mode = c.facts.Direct // if what follows allows that
		}
	}
	switch {
	case mode != DirectOff && !c.facts.AcceptDirect:
		wanted.problem("UnsupportedDSR", "annotation fairlead.io/dsr: %s needs the agents' option dsr-accept; using %s", mode, DirectOff)
		return DirectOff
	case mode == DirectOpt && len(service.SourceRanges) > 0:
		wanted.problem("UnsupportedDSR", "direct server return by opt is not possible with source ranges, since clients could write the option; using %s", DirectOff)
		return DirectOff
	}
	return mode
}

// host adds the rows by which other nodes reach the service's backends on this node. It does so
// whatever this node's own mode is, since other nodes may run in another mode for a while.
func (s *Service) host(mode Direct) {
	s.Flags |= maps.DirectFlags(uint8(mode))
	for _, f := range s.Frontends {
		if !maps.IsHosted(f.Key) && !maps.IsPing(f.Key) {
			s.frontend(maps.FrontendAddrKey(f.Key.Addr), maps.Hosted)
		}
	}
	for i := range s.Backends {
		if b := &s.Backends[i]; b.Flags&maps.BackendLocal != 0 {
			at := maps.BackendAddrPort(*b)
			s.frontend(maps.HostedKey(at, 0), maps.Hosted)
			s.frontend(maps.HostedAddrKey(at.Addr()), maps.Hosted)
		}
	}
}
