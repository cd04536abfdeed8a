// Package nodes tells the programs which addresses are nodes of the cluster, and which sources
// belong behind each. Programs believe a packet of another node only by these rows.
package nodes

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	stdmaps "maps"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Claims says which networks are the pods' of which node, by its name.
type Claims = map[netip.Prefix]string

// input is what rows are compiled from.
type input struct {
	self  *model.Node
	nodes []*model.Node  // the others, ordered by name
	own   []netip.Prefix // networks of this node's pods
	// settled has the claims that were accepted for routes; nil if there are no routes of ours.
	accepted Claims
	have     maps.Cluster
}

// compiler turns Nodes into rows. Nodes are not trusted: none gets an address or a network that is
// another's, and one that has it already keeps it.
type compiler struct {
	input
	numbers map[string]uint32
	want    maps.Cluster
	refused []string
}

// compile returns the rows, and which claims it refused.
func compile(in input) (maps.Cluster, []string) {
	c := compiler{input: in, numbers: map[string]uint32{}}
	c.want = maps.Cluster{Known: true, Nodes: map[netip.Addr]maps.ClusterNode{}, Sources: map[netip.Prefix]maps.ClusterNode{}}
	all := append([]*model.Node{in.self}, in.nodes...)
	c.number(all)
	if c.accepted == nil {
		c.accepted = c.decideClaims(all)
	}
	for cidr, name := range c.accepted {
		// A node may have gone since the routes were settled, and has no number then.
		if _, ok := c.numbers[name]; ok {
			c.want.Sources[cidr] = c.row(name)
		}
	}
	for _, cidr := range c.own {
		c.want.Sources[cidr.Masked()] = c.row(c.self.Name)
	}
	pods := newCover(c.want.Sources)
	c.addTunnels()
	c.eachAddr(all, func(node *model.Node, addr netip.Addr) {
		if why := unfit(addr); why != "" {
			c.refuse(node, addr.String(), why)
		} else if cidr, ok := pods.find(addr); ok {
			c.refuse(node, addr.String(), fmt.Sprintf("it is in %s, where pods have their addresses", cidr))
		} else {
			c.add(node, addr)
		}
	})
	slices.Sort(c.refused)
	return c.want, c.refused
}

// eachAddr calls do for every address of every node: first for those that have it already, so that
// no other gets it.
func (c *compiler) eachAddr(all []*model.Node, do func(*model.Node, netip.Addr)) {
	for _, had := range []bool{true, false} {
		for _, node := range all {
			for _, addr := range node.Addrs {
				if row, ok := c.have.Nodes[addr]; (ok && row.Name == hashOf(node.Name)) == had {
					do(node, addr)
				}
			}
		}
	}
}

// addTunnels adds the address that each node has in the network of its pods: the first one. No pod gets
// that, and behind it is the node's end of the tunnel.
func (c *compiler) addTunnels() {
	ends := map[netip.Prefix]maps.ClusterNode{}
	for cidr, row := range c.want.Sources {
		row.Tunnel = true
		ends[netip.PrefixFrom(cidr.Masked().Addr(), cidr.Addr().BitLen())] = row
	}
	stdmaps.Copy(c.want.Sources, ends)
}

func (c *compiler) row(name string) maps.ClusterNode {
	return maps.ClusterNode{Name: hashOf(name), Number: c.numbers[name], Self: name == c.self.Name}
}

func (c *compiler) add(node *model.Node, addr netip.Addr) {
	if row, taken := c.want.Nodes[addr]; taken && row != c.row(node.Name) {
		c.refuse(node, addr.String(), "another node has it")
		return
	}
	c.want.Nodes[addr] = c.row(node.Name)
	c.want.Sources[netip.PrefixFrom(addr, addr.BitLen())] = c.row(node.Name)
}

func (c *compiler) refuse(node *model.Node, what, why string) {
	c.refused = append(c.refused, fmt.Sprintf("%s of node %s: %s", what, node.Name, why))
}

// unfit says why no node can have an address, or returns "".
func unfit(addr netip.Addr) string {
	switch {
	case addr.IsLoopback():
		return "a loopback address"
	case addr.IsMulticast():
		return "a multicast address"
	case !addr.IsGlobalUnicast():
		return "no address by which other nodes could know it"
	}
	return ""
}

// hashOf returns what rows have of a name.
func hashOf(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.LittleEndian.Uint64(sum[:])
}

// number gives every node the number that it has, or else a free one. No number goes directly from
// one node to another, whose packets could meet rows of either.
func (c *compiler) number(all []*model.Node) {
	numbers, taken := map[uint64]uint32{}, map[uint32]bool{}
	for _, row := range c.have.Nodes {
		numbers[row.Name], taken[row.Number] = row.Number, true
	}
	for _, row := range c.have.Sources {
		numbers[row.Name], taken[row.Number] = row.Number, true
	}
	next := uint32(1)
	for _, node := range all {
		if n, ok := numbers[hashOf(node.Name)]; ok {
			c.numbers[node.Name] = n
			continue
		}
		for taken[next] {
			next++
		}
		c.numbers[node.Name] = next
		next++
	}
}

// The widest networks that a node's pods may have, as for routes.
const widest4, widest6 = 8, 32

// decideClaims decides about claims where no routes of ours have decided already: this node's hold, then
// those that have their rows, then the first by name. A node's pods come before another's claim to
// one of their addresses: a node lists its addresses itself, and could otherwise cut off the pods of
// nodes that are still to come.
func (c *compiler) decideClaims(all []*model.Node) Claims {
	type claim struct {
		cidr netip.Prefix
		node *model.Node
		rank int
		own  bool // it has an address of this node or of its own
	}
	var claims []claim
	for _, node := range all {
		own := sortedAddrs(slices.Values(slices.Concat(c.self.Addrs, node.Addrs)))
		for _, cidr := range node.PodCIDRs {
			made := claim{cidr.Masked(), node, 2, own.within(cidr.Masked())}
			row, ok := c.have.Sources[made.cidr]
			if node == c.self {
				made.rank = 0
			} else if ok && row.Name == hashOf(node.Name) && !made.own {
				made.rank = 1
			}
			claims = append(claims, made)
		}
	}
	slices.SortStableFunc(claims, func(a, b claim) int {
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		return strings.Compare(a.node.Name, b.node.Name)
	})
	settled := Claims{}
	var held overlaps
	for _, cl := range claims {
		wide := widest6
		if cl.cidr.Addr().Is4() {
			wide = widest4
		}
		switch other, taken := held.find(cl.cidr); {
		case cl.cidr.Bits() < wide:
			c.refuse(cl.node, cl.cidr.String(), "no node has so many pods")
		case taken && settled[other] != cl.node.Name:
			c.refuse(cl.node, cl.cidr.String(), fmt.Sprintf("it overlaps with %s of node %s", other, settled[other]))
		case cl.rank == 2 && cl.own:
			c.refuse(cl.node, cl.cidr.String(), "it has the address of a node")
		default:
			settled[cl.cidr] = cl.node.Name
			held.add(cl.cidr)
		}
	}
	return settled
}
