package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// Check returns what is wrong with the structure of a snapshot, one sentence each, and nothing for
// a sound one. It leaves out scopes that changed while they were read.
func Check(s *Snapshot) []string {
	var found []string
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	for _, f := range s.Dangling {
		report("frontend %s/%s leads to service %d, which does not exist", f.Address, f.Protocol, f.Service)
	}
	names := map[string]uint32{}
	for i := range s.Services {
		service := &s.Services[i]
		if service.Index == 0 {
			report("service 0 is in use, but slots that were never written belong to it")
		}
		if service.Name == "" {
			report("service %d has frontends or slots, but no name", service.Index)
		} else if other, ok := names[service.Name]; ok {
			report("services %d and %d are both named %s", other, service.Index, service.Name)
		}
		names[service.Name] = service.Index
		for _, scope := range service.Scopes() {
			if scope.Damage != "" && !scope.Changing {
				report("service %s, scope %s: %s", service.Label(), scope.Name, scope.Damage)
			}
		}
		checkProtocols(service, report)
	}
	checkOverlaps(s, report)
	checkBackends(s, report)
	return found
}

// checkProtocols finds backends that a frontend's clients could not talk to.
func checkProtocols(service *Service, report func(string, ...any)) {
	protocol := ""
	for _, f := range service.Frontends {
		if f.Protocol == model.AnyProtocol.String() { // the row that makes the address answer pings
			continue
		}
		protocol = cmp.Or(protocol, f.Protocol)
		if f.Protocol != protocol {
			report("service %s has frontends of %s and %s", service.Label(), protocol, f.Protocol)
			return
		}
	}
	if protocol == "" {
		return
	}
	for _, scope := range service.Scopes() {
		for _, share := range scope.Backends {
			if share.Protocol != protocol && !scope.Changing {
				report("service %s, scope %s: backend %s is %s, the frontends are %s",
					service.Label(), scope.Name, share.Address, share.Protocol, protocol)
			}
		}
	}
}

// checkOverlaps finds slots that two scopes claim.
func checkOverlaps(s *Snapshot, report func(string, ...any)) {
	type extent struct {
		off, end uint64
		owner    string
	}
	var extents []extent
	for i := range s.Services {
		service := &s.Services[i]
		for _, scope := range service.Scopes() {
			if scope.Length == 0 || scope.Changing {
				continue
			}
			off := uint64(scope.Offset)
			extents = append(extents, extent{off, off + uint64(scope.Length), service.Label() + ", scope " + scope.Name})
		}
	}
	slices.SortFunc(extents, func(a, b extent) int { return cmp.Or(cmp.Compare(a.off, b.off), cmp.Compare(a.end, b.end)) })
	var last extent
	for _, e := range extents {
		if e.off < last.end {
			report("slots %d to %d are claimed by %s and by %s", e.off, min(e.end, last.end)-1, last.owner, e.owner)
		}
		if e.end > last.end {
			last = e
		}
	}
}

// checkBackends finds a backend that has two rows in one service: it would be chosen twice as
// often, and only half removed.
func checkBackends(s *Snapshot, report func(string, ...any)) {
	type row struct {
		owner    uint32
		address  netip.AddrPort
		protocol string
	}
	rows := map[row]uint32{}
	for i := range s.Backends {
		b := &s.Backends[i]
		if b.Service == "" {
			continue
		}
		key := row{b.owner, b.Address, b.Protocol}
		if other, ok := rows[key]; ok {
			report("backend %s/%s of %s has two rows, %d and %d", b.Address, b.Protocol, b.Service, other, b.Index)
		}
		rows[key] = b.Index
	}
}
