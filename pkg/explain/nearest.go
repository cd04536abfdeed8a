package explain

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/snapshot"
)

// Near is something that a client may have meant that dialed an address without a service.
type Near struct {
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	Kind     string         `json:"kind"`
	Service  string         `json:"service"`
	Why      string         `json:"why"`

	rank int
}

// maxNear bounds the number of suggestions.
const maxNear = 8

// nearest returns what is similar to a destination, the most likely first.
func nearest(s *snapshot.Snapshot, q Question) []Near {
	var list []Near
	for i := range s.Services {
		service := &s.Services[i]
		for _, f := range service.Frontends {
			if rank, why := nearness(&f, q); why != "" {
				list = append(list, Near{f.Address, f.Protocol, f.Kind, service.Label(), why, rank})
			}
		}
		if hasBackend(service, q) {
			list = append(list, Near{q.Destination, q.Protocol.String(), "backend", service.Label(),
				"its backend, which a client may also dial directly, without the service", 0})
		}
	}
	slices.SortStableFunc(list, func(a, b Near) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), a.Address.Compare(b.Address), strings.Compare(a.Protocol, b.Protocol))
	})
	return list[:min(len(list), maxNear)]
}

func hasBackend(s *snapshot.Service, q Question) bool {
	is := func(share snapshot.Share) bool {
		return share.Address == q.Destination && share.Protocol == q.Protocol.String()
	}
	return slices.ContainsFunc(s.All.Backends, is) || slices.ContainsFunc(s.Local.Backends, is)
}

// nearness says in what a frontend differs from a destination, if the difference is small, and how
// likely the frontend was meant. A row that matches entirely, such as one for clients outside only,
// is not a near miss.
func nearness(f *snapshot.Frontend, q Question) (rank int, why string) {
	addr, port := f.Address.Addr(), f.Address.Port() == q.Destination.Port()
	protocol := f.Protocol == q.Protocol.String()
	switch {
	case addr == q.Destination.Addr() && port && !protocol:
		return 1, "another protocol"
	case addr == q.Destination.Addr() && !port && protocol:
		return 2, "another port"
	case addr == q.Destination.Addr() && !port:
		return 3, "another port and protocol"
	case addr.IsUnspecified() && port && !protocol && f.Row.Kind >= maps.NodePort:
		return 4, "a port of the node with another protocol"
	case addr.IsUnspecified() && port && addr.Is4() == q.Destination.Addr().Is4() && f.Row.Kind >= maps.NodePort:
		return 5, "a port of the node, at the node's addresses"
	case port && protocol && oneEdit(addr.String(), q.Destination.Addr().String()):
		return 6, "another address"
	}
	return 0, ""
}

// oneEdit reports whether one mistyped, missing or duplicated character turns a into b.
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
