package model

import "net/netip"

// servers of the API that agents or clients in the cluster use. Whoever takes their connections from
// a node separates it from the cluster.
type servers struct {
	given map[netip.AddrPort]struct{}
	addrs map[netip.Addr]struct{} // of these
}

// SetServers stores the API servers that the agent itself may use.
func (s *claims) SetServers(list []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.servers = servers{map[netip.AddrPort]struct{}{}, map[netip.Addr]struct{}{}}
	for _, at := range list {
		s.servers.given[at] = struct{}{}
		s.servers.addrs[at.Addr()] = struct{}{}
		s.markUsers(s.external[at.Addr()])
	}
}

// IsServer reports whether an API server of the cluster is at an address and port.
func (s *claims) IsServer(at netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, given := s.servers.given[at]; given {
		return true
	}
	return s.listsServer(func(addr netip.Addr, port uint16) bool { return addr == at.Addr() && port == at.Port() })
}

// hasServer reports whether an API server of the cluster is at an address.
func (s *claims) hasServer(addr netip.Addr) bool {
	if _, given := s.servers.addrs[addr]; given {
		return true
	}
	return s.listsServer(func(at netip.Addr, _ uint16) bool { return at == addr })
}

// apiService is the Service whose endpoints are the API servers, as these say themselves.
func apiService() Name { return Name{"default", "kubernetes"} }

func (s *latest) listsServer(wanted func(netip.Addr, uint16) bool) bool {
	e := s.services[apiService()]
	if e == nil {
		return false
	}
	for _, slice := range e.slices {
		for _, port := range slice.Ports {
			for i := range slice.Endpoints {
				if port.Protocol == TCP && wanted(slice.Endpoints[i].Addr, port.Port) {
					return true
				}
			}
		}
	}
	return false
}

// markServers makes due the Services whose externalIPs are refused, or no longer, since a slice
// lists API servers.
func (s *claims) markServers(service Name, slice *Slice) {
	if service != apiService() {
		return
	}
	for i := range slice.Endpoints {
		s.markUsers(s.external[slice.Endpoints[i].Addr])
	}
}
