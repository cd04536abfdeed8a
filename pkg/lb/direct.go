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
	DirectOff    = Direct(bpf.MapsDirectDIRECT_OFF)    // disabled: answers come back through this node
	DirectIPIP   = Direct(bpf.MapsDirectDIRECT_IPIP)   // IP in IP
	DirectGeneve = Direct(bpf.MapsDirectDIRECT_GENEVE) // Geneve
	DirectOpt    = Direct(bpf.MapsDirectDIRECT_OPT)    // an IPv4 option or an IPv6 destination options header
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

// direct returns the mode of a Service.
func (c *Compiler) direct(service *model.Service, wanted *Wanted) Direct {
	if service.Direct == "" {
		return c.facts.Direct
	}
	mode, err := ParseDirect(service.Direct)
	if err != nil {
		wanted.problem("UnsupportedDSR", "annotation fairlead.io/dsr: %v; using %s", err, c.facts.Direct)
		return c.facts.Direct
	}
	return mode
}

// host adds the rows by which other nodes reach the service's backends on this node. It does so
// whatever this node's own mode is, since other nodes may run in another mode for a while.
func (s *Service) host(mode Direct) {
	s.Flags |= maps.DirectFlags(uint8(mode))
	for i := range s.Backends {
		if b := &s.Backends[i]; b.Flags&maps.BackendLocal != 0 {
			at := maps.BackendAddrPort(*b)
			s.frontend(maps.HostedKey(at.Addr(), at.Port()), maps.Hosted)
			s.frontend(maps.HostedKey(at.Addr(), 0), maps.Hosted)
		}
	}
}
