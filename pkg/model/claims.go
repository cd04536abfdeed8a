package model

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
)

// claims knows which Services name an address, and what addresses nodes and their pods have.
type claims struct {
	*latest
	clusterIPs     map[netip.Addr]int32             // number of Services with the address
	external       map[netip.Addr]map[Name]struct{} // Services that list the address in externalIPs
	loadBalancer   map[netip.Addr]map[Name]struct{} // Services that have it in status.loadBalancer
	broadcasts     map[netip.Addr]struct{}          // of the networks of this node's interfaces
	nodeAddrs      map[netip.Addr]int               // number of Nodes with the address
	tunnelEnds     map[netip.Addr]map[Name]int      // endpoints that are refused at a node, by Service
	nodeIndex      nodeIndex
	servers        servers
	clusterIPMoves uint64 // counts changes of ClusterIPs
}

func newClaims(objects *latest) *claims {
	return &claims{
		latest:       objects,
		clusterIPs:   map[netip.Addr]int32{},
		external:     map[netip.Addr]map[Name]struct{}{},
		loadBalancer: map[netip.Addr]map[Name]struct{}{},
		nodeAddrs:    map[netip.Addr]int{},
		tunnelEnds:   map[netip.Addr]map[Name]int{},
	}
}

// nodeIndex finds the node that an address belongs to.
type nodeIndex struct {
	built    bool
	addrs    map[netip.Addr]string
	podCIDRs map[netip.Prefix]string
	lengths  []int // of the podCIDRs; a cluster has few
}

func (x *nodeIndex) build(nodes map[string]*Node) {
	*x = nodeIndex{built: true, addrs: make(map[netip.Addr]string, len(nodes)), podCIDRs: make(map[netip.Prefix]string, len(nodes))}
	for name, node := range nodes {
		for _, addr := range node.Addrs {
			if other, ok := x.addrs[addr]; !ok || name < other {
				x.addrs[addr] = name
			}
		}
		for _, cidr := range node.PodCIDRs {
			cidr = cidr.Masked()
			if other, ok := x.podCIDRs[cidr]; !ok || name < other {
				x.addCIDR(cidr, name)
			}
		}
	}
	slices.Sort(x.lengths)
}

func (x *nodeIndex) addCIDR(cidr netip.Prefix, node string) {
	x.podCIDRs[cidr] = node
	if !slices.Contains(x.lengths, cidr.Bits()) {
		x.lengths = append(x.lengths, cidr.Bits())
	}
}

// pod returns the node whose podCIDRs contain the address.
func (x *nodeIndex) pod(addr netip.Addr) (node string, ok bool) {
	for _, bits := range x.lengths {
		if prefix, err := addr.Prefix(bits); err == nil {
			if node, ok = x.podCIDRs[prefix]; ok {
				return node, true
			}
		}
	}
	return "", false
}

// claimAddrs records the addresses that a Service names, and makes due the Services whose claim to
// one of them may have changed thereby.
func (s *claims) claimAddrs(service *Service) {
	for _, addr := range service.ClusterIPs {
		if s.clusterIPs[addr]++; s.clusterIPs[addr] == 1 {
			s.clusterIPMoves++
		}
		s.markClaimants(addr)
	}
	for _, addr := range service.LoadBalancerIPs {
		addUser(s.loadBalancer, addr, service.Name)
		s.markUsers(s.external[addr])
	}
	for _, addr := range service.ExternalIPs {
		addUser(s.external, addr, service.Name)
		s.markUsers(s.loadBalancer[addr])
	}
}

func (s *claims) releaseAddrs(service *Service) {
	for _, addr := range service.ClusterIPs {
		s.clusterIPs[addr]--
		if s.clusterIPs[addr] == 0 {
			delete(s.clusterIPs, addr)
			s.clusterIPMoves++
		}
		s.markClaimants(addr)
	}
	for _, addr := range service.LoadBalancerIPs {
		dropUser(s.loadBalancer, addr, service.Name)
		s.markUsers(s.external[addr])
	}
	for _, addr := range service.ExternalIPs {
		dropUser(s.external, addr, service.Name)
		s.markUsers(s.loadBalancer[addr])
	}
}

func addUser(users map[netip.Addr]map[Name]struct{}, addr netip.Addr, name Name) {
	if users[addr] == nil {
		users[addr] = map[Name]struct{}{}
	}
	users[addr][name] = struct{}{}
}

func dropUser(users map[netip.Addr]map[Name]struct{}, addr netip.Addr, name Name) {
	delete(users[addr], name)
	if len(users[addr]) == 0 {
		delete(users, addr)
	}
}

// markClaimants makes due the Services that name an address other than as their ClusterIP.
func (s *claims) markClaimants(addr netip.Addr) {
	s.markUsers(s.external[addr])
	s.markUsers(s.loadBalancer[addr])
}

func (s *claims) markUsers(users map[Name]struct{}) {
	for name := range users {
		s.mark(Key{KindService, name})
	}
}

// markNamed makes due the Services that name an address for which moved returns true.
func (s *claims) markNamed(moved func(netip.Addr) bool) {
	for _, users := range []map[netip.Addr]map[Name]struct{}{s.external, s.loadBalancer} {
		for addr, names := range users {
			if moved(addr) {
				s.markUsers(names)
			}
		}
	}
}

// Refusal says why a Service must not have an address. Why is "" if it may.
type Refusal struct {
	Why  string
	Node string // the node whose Node object lists the address, if that is the only reason
}

// RefusedExternalIP says whether a Service must not take over one of its externalIPs. Taking the
// address of a node, a pod or another Service would hand its traffic to anybody who may create a
// Service. Within one namespace a load balancer address may be shared.
func (s *claims) RefusedExternalIP(of Name, addr netip.Addr) Refusal {
	if why := Special(addr); why != "" {
		return Refusal{Why: why}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clusterIPs[addr] > 0 {
		return Refusal{Why: "a Service's ClusterIP"}
	}
	if owner, ok := foreign(s.loadBalancer[addr], of.Namespace); ok {
		return Refusal{Why: "a load balancer address of " + owner.String()}
	}
	if refusal := s.ofNode(addr, true); refusal.Why != "" {
		return refusal
	}
	if s.hasServer(addr) {
		return Refusal{Why: "an address of the cluster's API servers"}
	}
	return Refusal{}
}

// RefusedLoadBalancerIP says whether a Service must not have one of its load balancer addresses. Its
// own ClusterIP is allowed: small clusters route that to a node and put it into the status. What other
// Nodes list as their own does not count: who has taken over a node could otherwise switch off any
// load balancer address. Their podCIDRs do count, which a node cannot change.
func (s *claims) RefusedLoadBalancerIP(of *Service, addr netip.Addr) Refusal {
	if why := Special(addr); why != "" {
		return Refusal{Why: why}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(of.ClusterIPs, addr) {
		return Refusal{}
	}
	if s.clusterIPs[addr] > 0 {
		return Refusal{Why: "another Service's ClusterIP"}
	}
	return s.ofNode(addr, false)
}

// ofNode refuses an address of this node, of any node's pods or, if told so, of other nodes. This
// node also has addresses that no Node lists, such as that of a control plane which moves from node
// to node.
func (s *claims) ofNode(addr netip.Addr, others bool) Refusal {
	x := &s.nodeIndex
	if !x.built {
		x.build(s.nodes)
	}
	if self := s.nodes[s.self]; self != nil && slices.Contains(self.Addrs, addr) {
		return Refusal{"an address of node " + s.self, s.self}
	}
	if node, ok := x.addrs[addr]; ok && others {
		return Refusal{"an address of node " + node, node}
	}
	if _, ok := s.local[addr]; ok {
		return Refusal{Why: "an address on a device of node " + s.self}
	}
	if _, ok := s.broadcasts[addr]; ok {
		return Refusal{Why: "the first or last address of a network of node " + s.self}
	}
	if node, ok := x.pod(addr); ok {
		return Refusal{Why: "a pod address of node " + node}
	}
	return Refusal{}
}

// SetBroadcasts stores the addresses that mean all hosts, or all routers, of a network that an
// interface of this node is in. It makes due the Services that name one that came or went.
func (s *claims) SetBroadcasts(addrs iter.Seq[netip.Addr]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, is := s.broadcasts, map[netip.Addr]struct{}{}
	for addr := range addrs {
		is[addr] = struct{}{}
	}
	s.broadcasts = is
	if !maps.Equal(was, is) {
		s.markNamed(func(addr netip.Addr) bool {
			_, before := was[addr]
			_, after := is[addr]
			return before != after
		})
	}
}

// ExternalClaimant returns a Service of another namespace that lists a load balancer address of a
// Service in its externalIPs, where it is refused: the first by name.
func (s *claims) ExternalClaimant(of Name, addr netip.Addr) (Name, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return foreign(s.external[addr], of.Namespace)
}

// foreign returns the first of the Services, by name, that is in another namespace.
func foreign(users map[Name]struct{}, namespace string) (first Name, ok bool) {
	for name := range users {
		if name.Namespace != namespace && (!ok || name.Compare(first) < 0) {
			first, ok = name, true
		}
	}
	return first, ok
}
