package observe

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
)

// Near is something that a client may have meant who dialled what is no service.
type Near struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	Kind     string         `json:"kind"`
	Service  string         `json:"service"`
	Why      string         `json:"why"`

	rank int
}

// maxNear bounds what is suggested.
const maxNear = 8

// nearest returns what lies next to a destination, the most likely first.
func nearest(s *Snapshot, q Question) []Near {
	var list []Near
	for i := range s.Services {
		service := &s.Services[i]
		for _, f := range service.Frontends {
			if rank, why := nearness(&f, q); why != "" {
				list = append(list, Near{f.Address, f.Protocol, f.Kind, service.label(), why, rank})
			}
		}
		if service.hasBackend(q) {
			list = append(list, Near{q.Destination, q.Protocol.String(), "backend", service.label(),
				"its backend: dialled directly, it gets the connection without a service", 0})
		}
	}
	slices.SortStableFunc(list, func(a, b Near) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), a.Address.Compare(b.Address), strings.Compare(a.Protocol, b.Protocol))
	})
	return list[:min(len(list), maxNear)]
}

func (s *Service) hasBackend(q Question) bool {
	is := func(share Share) bool { return share.Address == q.Destination && share.Protocol == q.Protocol.String() }
	return slices.ContainsFunc(s.All.Backends, is) || slices.ContainsFunc(s.Local.Backends, is)
}

// nearness says in what a frontend differs from a destination, if that is little, and how likely it is meant. The row
// that matched, such as one for clients from outside, is not near but there.
func nearness(f *Frontend, q Question) (rank int, why string) {
	addr, port := f.Address.Addr(), f.Address.Port() == q.Destination.Port()
	protocol := f.Protocol == q.Protocol.String()
	switch {
	case addr == q.Destination.Addr() && port && !protocol:
		return 1, "another protocol"
	case addr == q.Destination.Addr() && !port && protocol:
		return 2, "another port"
	case addr == q.Destination.Addr() && !port:
		return 3, "another port and protocol"
	case addr.IsUnspecified() && port && !protocol && f.row.Kind >= maps.NodePort:
		return 4, "a port of the node with another protocol"
	case addr.IsUnspecified() && port && addr.Is4() == q.Destination.Addr().Is4() && f.row.Kind >= maps.NodePort:
		return 5, "a port of the node, at the node's addresses"
	case port && protocol && oneEdit(addr.String(), q.Destination.Addr().String()):
		return 6, "another address"
	}
	return 0, ""
}

// oneEdit reports whether one character typed wrongly, missed or typed twice makes b of a.
func oneEdit(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if a == b || len(b)-len(a) > 1 {
		return false
	}
	at := 0
	for at < len(a) && a[at] == b[at] {
		at++
	}
	if len(a) == len(b) {
		return a[at+1:] == b[at+1:]
	}
	return a[at:] == b[at+1:]
}
