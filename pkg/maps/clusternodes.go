package maps

import (
	"fmt"
	"maps"
	"net/netip"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// ClusterNode is a node of the cluster as the programs know it.
type ClusterNode struct {
	Name   uint64 // hash of its name
	Number uint32 // not 0
	Self   bool
	Tunnel bool // of a source: the address of the node's end of the tunnel
}

func (n ClusterNode) row() bpf.MapsClusterNode {
	row := bpf.MapsClusterNode{Name: n.Name, Number: n.Number}
	if n.Self {
		row.Flags |= uint32(bpf.MapsClusterNodeFlagCLUSTER_NODE_SELF)
	}
	if n.Tunnel {
		row.Flags |= uint32(bpf.MapsClusterNodeFlagCLUSTER_NODE_TUNNEL)
	}
	return row
}

func clusterNodeOf(row bpf.MapsClusterNode) ClusterNode {
	return ClusterNode{
		Name: row.Name, Number: row.Number,
		Self:   row.Flags&uint32(bpf.MapsClusterNodeFlagCLUSTER_NODE_SELF) != 0,
		Tunnel: row.Flags&uint32(bpf.MapsClusterNodeFlagCLUSTER_NODE_TUNNEL) != 0,
	}
}

// Cluster is what the programs know about the nodes of the cluster.
type Cluster struct {
	// Known is set once all Node objects are known. Before that, an address without a row may be
	// any node's.
	Known   bool
	Nodes   map[netip.Addr]ClusterNode
	Sources map[netip.Prefix]ClusterNode // to the node behind which such sources belong
}

// Equal reports whether two say the same.
func (c Cluster) Equal(o Cluster) bool {
	return c.Known == o.Known && maps.Equal(c.Nodes, o.Nodes) && maps.Equal(c.Sources, o.Sources)
}

// SetCluster makes both maps equal to want and returns how many rows it changed. Rows that stay are
// never absent meanwhile, and what is added is there before anything goes.
func (m *Maps) SetCluster(want Cluster) (changed int, err error) {
	nodes := make(map[Addr]bpf.MapsClusterNode, len(want.Nodes)+1)
	for addr, node := range want.Nodes {
		nodes[AddrOf(addr)] = node.row()
	}
	sources := make(map[bpf.MapsPrefixKey]bpf.MapsClusterNode, len(want.Sources))
	for prefix, node := range want.Sources {
		sources[PrefixKey(prefix)] = node.row()
	}
	count := func(n int, err error) error {
		changed += n
		return err
	}
	err = count(putRows(m.ClusterNodes, nodes))
	if err == nil {
		err = count(putPrefixes(m.NodeSources, sources))
	}
	if want.Known {
		// Last, so that no program takes a node whose row is not there yet for a stranger.
		known := map[Addr]bpf.MapsClusterNode{{}: {Flags: uint32(bpf.MapsClusterNodeFlagCLUSTER_NODES_KNOWN)}}
		nodes[Addr{}] = known[Addr{}]
		if err == nil {
			err = count(putRows(m.ClusterNodes, known))
		}
	}
	if err == nil {
		err = count(dropRows(m.ClusterNodes, nodes))
	}
	if err == nil {
		err = count(dropRows(m.NodeSources, sources))
	}
	if err != nil {
		return changed, fmt.Errorf("write the nodes of the cluster: %w", err)
	}
	return changed, nil
}

// ClusterRows returns what the maps say about the nodes of the cluster.
func ClusterRows(nodes, sources *ebpf.Map) (Cluster, error) {
	c := Cluster{Nodes: map[netip.Addr]ClusterNode{}, Sources: map[netip.Prefix]ClusterNode{}}
	var addr Addr
	var row bpf.MapsClusterNode
	rows := nodes.Iterate()
	for rows.Next(&addr, &row) {
		if addr == (Addr{}) {
			c.Known = row.Flags&uint32(bpf.MapsClusterNodeFlagCLUSTER_NODES_KNOWN) != 0
			continue
		}
		c.Nodes[NetipOf(addr)] = clusterNodeOf(row)
	}
	err := rows.Err()
	var key bpf.MapsPrefixKey
	prefixes := sources.Iterate()
	for err == nil && prefixes.Next(&key, &row) {
		c.Sources[PrefixOf(key)] = clusterNodeOf(row)
	}
	if err == nil {
		err = prefixes.Err()
	}
	if err != nil {
		return Cluster{}, fmt.Errorf("read the nodes of the cluster: %w", err)
	}
	return c, nil
}
