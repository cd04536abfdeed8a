package fabric

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/model"
)

// network is a destination in the node's routing table.
type network struct {
	prefix netip.Prefix
	device int // directly connected by this device; 0 if behind a router
}

// surroundings are the node's own routes and addresses, by which other nodes' claims are judged.
type surroundings struct {
	networks map[netip.Prefix]network // the main table, without our routes
	local    []netip.Addr             // the node's addresses, sorted
}

// near returns the device by which an address is directly reachable, or 0.
func (s *surroundings) near(addr netip.Addr) int {
	for bits := addr.BitLen(); bits >= 0; bits-- {
		if n, ok := s.networks[netip.PrefixFrom(addr, bits).Masked()]; ok {
			return n.device
		}
	}
	return 0
}

// plan is the desired state.
type plan struct {
	routes    map[netip.Prefix]route
	neighbors map[netip.Addr][6]byte
	owners    map[netip.Prefix]string // the node of each network, by routes of ours or not
	nodes     int                     // reached by the routes
	refused   []string                // rejected claims, and why
	left      []string                // networks without a route, and why
}

// claim is a node's statement that a network is its pods'.
type claim struct {
	cidr  netip.Prefix
	node  *model.Node
	route route
	why   string // why there is no route; empty if there is one
}

// planner makes plans.
type planner struct {
	mode   string
	self   *model.Node
	own    []netip.Prefix // networks of this node's pods
	device int            // of the tunnel
	has    func(route) bool
	surroundings
}

// make returns the plan for these other nodes, which are ordered by name. Nodes are not trusted:
// one that claims a network of another node, or one that this node needs to reach any of them, does
// not get it. A node that has its route already keeps it.
func (p *planner) make(others []*model.Node) *plan {
	made := &plan{routes: map[netip.Prefix]route{}, neighbors: map[netip.Addr][6]byte{}, owners: map[netip.Prefix]string{}}
	for _, cidr := range p.own {
		made.routes[cidr] = route{to: cidr}
	}
	addrs := slices.Clone(p.self.Addrs)
	for _, node := range others {
		addrs = append(addrs, node.Addrs...)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	var claims []claim
	for _, node := range others {
		for _, cidr := range node.PodCIDRs {
			c := claim{cidr: cidr.Masked(), node: node}
			c.route, c.why = p.way(node, c.cidr)
			if why := p.reject(c, addrs); why != "" {
				made.refuse(c, why)
				continue
			}
			claims = append(claims, c)
		}
	}
	nodes := map[string]bool{}
	for _, c := range p.withoutOverlaps(claims, made) {
		made.owners[c.cidr] = c.node.Name
		if c.why != "" {
			made.left = append(made.left, fmt.Sprintf("%s of node %s: %s", c.cidr, c.node.Name, c.why))
			continue
		}
		made.routes[c.cidr] = c.route
		nodes[c.node.Name] = true
		if p.mode == VXLAN {
			made.neighbors[c.route.via] = macOf(c.node.Name)
		}
	}
	made.nodes = len(nodes)
	slices.Sort(made.refused)
	slices.Sort(made.left)
	return made
}

func (m *plan) refuse(c claim, why string) {
	m.refused = append(m.refused, fmt.Sprintf("podCIDR %s of node %s: %s", c.cidr, c.node.Name, why))
}

// The widest networks that a node's pods may have.
const widest4, widest6 = 8, 32

// TooWide reports whether a network is too large to be one node's pods', so that such a claim is
// never accepted.
func TooWide(cidr netip.Prefix) bool {
	if cidr.Addr().Is4() {
		return cidr.Bits() < widest4
	}
	return cidr.Bits() < widest6
}

// reject returns why a claim is rejected regardless of other claims, or "" if it is not.
func (p *planner) reject(c claim, addrs []netip.Addr) string {
	switch first := c.cidr.Addr(); {
	case TooWide(c.cidr):
		return "no node has so many pods"
	case !first.IsGlobalUnicast() && first != netip.IPv4Unspecified():
		return "it is for other uses"
	}
	for _, cidr := range p.own {
		if cidr.Overlaps(c.cidr) {
			return fmt.Sprintf("it overlaps with %s, which is this node's", cidr)
		}
	}
	for _, n := range p.networks {
		if n.device != 0 && n.prefix.Bits() < n.prefix.Addr().BitLen() && n.prefix.Overlaps(c.cidr) {
			return fmt.Sprintf("it overlaps with %s, which this node is in", n.prefix)
		}
	}
	if addr, ok := within(c.cidr, p.local); ok {
		return fmt.Sprintf("%s is an address of this node", addr)
	}
	// An established route is exempt from the last check: otherwise a node could cut off another's
	// pods by claiming an address of theirs as its own.
	if c.why == "" && p.has(c.route) {
		return ""
	}
	if addr, ok := within(c.cidr, addrs); ok {
		return fmt.Sprintf("%s is an address of a node", addr)
	}
	return ""
}

// within returns one of the sorted addresses that is in the network, if there is one.
func within(cidr netip.Prefix, sorted []netip.Addr) (netip.Addr, bool) {
	at, _ := slices.BinarySearchFunc(sorted, cidr.Addr(), netip.Addr.Compare)
	if at < len(sorted) && cidr.Contains(sorted[at]) {
		return sorted[at], true
	}
	return netip.Addr{}, false
}

// withoutOverlaps returns the claims without those that overlap with a better one. Two networks overlap only
// if one contains the other, so overlapping ones are adjacent once sorted.
func (p *planner) withoutOverlaps(claims []claim, made *plan) []claim {
	slices.SortStableFunc(claims, func(a, b claim) int {
		return cmp.Or(a.cidr.Addr().Compare(b.cidr.Addr()), cmp.Compare(a.cidr.Bits(), b.cidr.Bits()))
	})
	var settled []claim
	for len(claims) > 0 {
		end := 1
		for end < len(claims) && claims[0].cidr.Overlaps(claims[end].cidr) {
			end++
		}
		settled = append(settled, p.decide(claims[:end], made)...)
		claims = claims[end:]
	}
	return settled
}

// decide resolves overlapping claims: those that have their route already win, then the first by
// node name.
func (p *planner) decide(claims []claim, made *plan) (kept []claim) {
	if len(claims) == 1 {
		return claims
	}
	rank := func(c claim) int {
		if c.why == "" && p.has(c.route) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.node.Name, b.node.Name))
	})
	for _, c := range claims {
		at := slices.IndexFunc(kept, func(k claim) bool { return k.cidr.Overlaps(c.cidr) })
		switch {
		case at < 0:
			kept = append(kept, c)
		case kept[at].node != c.node || kept[at].cidr != c.cidr:
			made.refuse(c, fmt.Sprintf("it overlaps with %s of node %s", kept[at].cidr, kept[at].node.Name))
		}
	}
	return kept
}

// way returns the route to a node's pods, or why there is none.
func (p *planner) way(node *model.Node, to netip.Prefix) (route, string) {
	if p.mode == VXLAN {
		return p.tunnel(node, to)
	}
	for _, addr := range p.preferred(node, to.Addr().Is4()) {
		if to.Addr().Is6() && addr.Is4() {
			continue // an IPv6 route cannot have an IPv4 next hop
		}
		if device := p.near(addr); device != 0 {
			return route{to: to, device: device, via: addr}, ""
		}
	}
	return route{}, "the node has no address on a link of this one"
}

// tunnel returns the route through the tunnel. It leads to an address of the node in this node's
// primary family, if it has one.
func (p *planner) tunnel(node *model.Node, to netip.Prefix) (route, string) {
	has := map[bool]bool{}
	for _, addr := range p.self.Addrs {
		has[addr.Is4()] = true
	}
	for _, addr := range p.preferred(node, p.self.Addrs[0].Is4()) {
		if !has[addr.Is4()] {
			continue
		}
		r := route{to: to, device: p.device, tunnel: addr, via: linkLocal(macOf(node.Name)), source: ownIn(p.own, to.Addr().Is4())}
		if addr.Is4() && to.Addr().Is4() {
			r.via = addr // works without IPv6
		}
		return r, ""
	}
	return route{}, "the node has no address of a family that this one has"
}

// preferred returns the node's addresses that are plausible, and are neither this node's nor one of
// its pods', with those of one family first.
func (p *planner) preferred(node *model.Node, is4 bool) []netip.Addr {
	var list []netip.Addr
	for _, addr := range node.Addrs {
		_, local := slices.BinarySearchFunc(p.local, addr, netip.Addr.Compare)
		isPod := slices.ContainsFunc(p.own, func(cidr netip.Prefix) bool { return cidr.Contains(addr) })
		if addr.IsGlobalUnicast() && !local && !isPod {
			list = append(list, addr)
		}
	}
	slices.SortStableFunc(list, func(a, b netip.Addr) int {
		switch {
		case a.Is4() == b.Is4():
			return 0
		case a.Is4() == is4:
			return -1
		}
		return 1
	})
	return list
}

// surround separates our routes from the node's surroundings.
func surround(list []found, tunnel int) (ours []found, s surroundings) {
	s.networks = map[netip.Prefix]network{}
	local := map[netip.Addr]bool{}
	for _, f := range list {
		switch {
		case f.isOurs():
			ours = append(ours, f)
		case f.cloned || f.device == tunnel && tunnel != 0:
		case f.kind == unix.RTN_LOCAL && f.to.IsSingleIP() && !f.to.Addr().IsLoopback():
			local[f.to.Addr()] = true
		case f.kind == unix.RTN_UNICAST && f.table == unix.RT_TABLE_MAIN && !f.to.Addr().IsLinkLocalUnicast() && !f.to.Addr().IsMulticast():
			n := network{prefix: f.to}
			if !f.via.IsValid() && f.to.Bits() > 0 {
				n.device = f.device
			}
			if was, ok := s.networks[f.to]; !ok || was.device == 0 {
				s.networks[f.to] = n
			}
		}
	}
	s.local = slices.SortedFunc(maps.Keys(local), netip.Addr.Compare)
	return ours, s
}
