package lb

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"unique"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// candidate is an endpoint of one port that may or may not get traffic.
type candidate struct {
	backend    maps.Backend
	hints      *model.Hints
	weight     uint16
	conditions model.Conditions
	local      bool // on this node, as traffic policies mean it
	here       bool // its packets need not leave the node
}

func (c *candidate) ready() bool { return c.conditions&model.Ready != 0 }

// draining reports whether the endpoint is terminating but still serving. Such endpoints are the
// last resort.
func (c *candidate) draining() bool {
	const both = model.Serving | model.Terminating
	return c.conditions&both == both
}

// compareBackends orders backends by address, port and protocol as they appear on the wire.
func compareBackends(a, b maps.Backend) int {
	for i := range a.Addr.Word {
		if a.Addr.Word[i] != b.Addr.Word[i] {
			return cmp.Compare(wire32(a.Addr.Word[i]), wire32(b.Addr.Word[i]))
		}
	}
	return cmp.Or(cmp.Compare(maps.PortOf(a.Port), maps.PortOf(b.Port)), cmp.Compare(a.Proto, b.Proto))
}

func wire32(word uint32) uint32 {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], word)
	return binary.BigEndian.Uint32(b[:])
}

// row returns the endpoint as it appears in the maps. Before that, the backend carries no flags:
// where it runs and whether it terminates are no part of its identity.
func (c *candidate) row() maps.Backend {
	row := c.backend
	if c.here {
		row.Flags |= maps.BackendLocal
	}
	if c.conditions&model.Terminating != 0 {
		row.Flags |= maps.BackendTerminating
	}
	return row
}

// slicePort is what a port of a Service looks for in the slices.
type slicePort struct {
	name     string
	protocol model.Protocol
	family   model.Family
}

// found is a port of a slice.
type found struct {
	slice *model.Slice
	port  uint16
}

// selection decides which endpoints of a port get traffic.
type selection struct {
	facts      Facts
	ports      map[slicePort][]found // of the slices
	candidates []candidate
	scopes     [maps.Scopes][]Weighted
}

// index finds all ports of the slices at once, so that a Service with many ports and slices is not
// searched for each port.
func (c *selection) index(endpoints []*model.Slice) {
	if len(c.ports) > usualFrontends {
		c.ports = nil // clearing it would cost every Service after this one as much
	}
	if c.ports == nil {
		c.ports = map[slicePort][]found{}
	}
	clear(c.ports)
	for _, slice := range endpoints {
		for _, p := range slice.Ports {
			key := slicePort{p.Name, p.Protocol, slice.Family}
			c.ports[key] = append(c.ports[key], found{slice, p.Port})
		}
	}
}

// endpoints returns how many endpoints the slices list for a port.
func (c *selection) endpoints(name string, protocol model.Protocol, family model.Family) (n int) {
	for _, f := range c.ports[slicePort{name, protocol, family}] {
		n += len(f.slice.Endpoints)
	}
	return n
}

// gather collects the endpoints of a port, sorted and deduplicated by address. An endpoint that
// appears twice is moving between slices, or its address passed from a terminating pod to a new
// one. The one that is not terminating counts; of several such, the last, as in kube-proxy.
func (c *selection) gather(name string, protocol model.Protocol, family model.Family) (refused netip.AddrPort) {
	self := unique.Make(c.facts.Node.Name)
	named := c.facts.Node.Name != ""
	list := c.candidates[:0]
	for _, f := range c.ports[slicePort{name, protocol, family}] {
		slice := f.slice
		nodesOnly := c.facts.IsNode != nil && model.NodesOnly(f.port, protocol)
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if nodesOnly && c.facts.IsNode(e.Addr) {
				refused = netip.AddrPortFrom(e.Addr, f.port)
				continue
			}
			local := named && e.Node == self
			list = append(list, candidate{
				backend:    maps.BackendOf(e.Addr, f.port, protocol),
				hints:      e.Hints,
				weight:     slice.Weight,
				conditions: e.Conditions,
				local:      local,
				// An endpoint at an address of this node is here whatever the slice says: a
				// packet with the node's address as both source and destination would go
				// nowhere.
				here: local || c.local(e.Addr),
			})
		}
	}
	less := func(a, b candidate) int { return compareBackends(a.backend, b.backend) }
	if !slices.IsSortedFunc(list, less) {
		slices.SortStableFunc(list, less)
	}
	unique := list[:0]
	for _, e := range list {
		last := len(unique) - 1
		switch {
		case last < 0 || unique[last].backend != e.backend:
			unique = append(unique, e)
		case e.conditions&model.Terminating == 0:
			unique[last] = e
		}
	}
	c.candidates = unique
	return refused
}

// traffic says which scopes a port needs.
type traffic struct {
	all, local bool
}

// categorize fills the scopes. Each scope gets its ready endpoints or, if it has none, the draining
// ones. Topology narrows only ScopeAll.
func (c *selection) categorize(needs traffic) {
	for scope := range c.scopes {
		c.scopes[scope] = c.scopes[scope][:0]
	}
	if needs.all {
		near := c.topology()
		c.fill(maps.ScopeAll,
			func(e *candidate) bool { return e.ready() && near.takes(e) },
			(*candidate).draining)
	}
	if needs.local {
		c.fill(maps.ScopeLocal,
			func(e *candidate) bool { return e.local && e.ready() },
			func(e *candidate) bool { return e.local && e.draining() })
	}
}

func (c *selection) fill(scope int, first, fallback func(*candidate) bool) {
	for _, wants := range []func(*candidate) bool{first, fallback} {
		for i := range c.candidates {
			if e := &c.candidates[i]; wants(e) {
				c.scopes[scope] = append(c.scopes[scope], Weighted{Backend: e.row(), Weight: e.weight})
			}
		}
		if len(c.scopes[scope]) > 0 {
			return
		}
	}
}

// near restricts endpoints to those hinted for this node or this zone. If both fields are empty,
// any endpoint will do.
type near struct {
	node, zone string
}

func (n near) takes(e *candidate) bool {
	switch {
	case n.node != "":
		return e.hints != nil && slices.Contains(e.hints.Nodes, n.node)
	case n.zone != "":
		return e.hints != nil && slices.Contains(e.hints.Zones, n.zone)
	}
	return true
}

// topology decides which hints to follow. Hints count only if every ready endpoint has them and at
// least one names this node or its zone. Anything else would leave endpoints without traffic, or
// the node without endpoints.
func (c *selection) topology() near {
	node := c.facts.Node
	any, allNode, allZone, hasNode, hasZone := false, true, true, false, false
	for i := range c.candidates {
		e := &c.candidates[i]
		if !e.ready() {
			continue
		}
		if e.hints == nil {
			return near{}
		}
		any = true
		allNode = allNode && len(e.hints.Nodes) > 0
		allZone = allZone && len(e.hints.Zones) > 0
		hasNode = hasNode || slices.Contains(e.hints.Nodes, node.Name)
		hasZone = hasZone || slices.Contains(e.hints.Zones, node.Zone)
	}
	switch {
	case any && allNode && hasNode && node.Name != "":
		return near{node: node.Name}
	case any && allZone && hasZone && node.Zone != "":
		return near{zone: node.Zone}
	}
	return near{}
}
