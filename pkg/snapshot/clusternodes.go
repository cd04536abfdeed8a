package snapshot

import (
	"maps"
	"net/netip"
	"slices"
)

// ClusterNode is one address of a node of the cluster.
type ClusterNode struct {
	Address netip.Addr `json:"address"`
	Node    uint32     `json:"node"`
	Self    bool       `json:"self,omitempty"`
}

// NodeSource is a network that belongs behind a node.
type NodeSource struct {
	Prefix netip.Prefix `json:"prefix"`
	Node   uint32       `json:"node"`
}

// ClusterNodes returns the addresses of the cluster's nodes, sorted.
func (s *Snapshot) ClusterNodes() []ClusterNode {
	var list []ClusterNode
	for _, addr := range slices.SortedFunc(maps.Keys(s.Cluster.Nodes), netip.Addr.Compare) {
		node := s.Cluster.Nodes[addr]
		list = append(list, ClusterNode{addr, node.Number, node.Self})
	}
	return list
}

// NodeSources returns the networks behind the cluster's nodes, sorted.
func (s *Snapshot) NodeSources() []NodeSource {
	var list []NodeSource
	for _, prefix := range slices.SortedFunc(maps.Keys(s.Cluster.Sources), netip.Prefix.Compare) {
		list = append(list, NodeSource{prefix, s.Cluster.Sources[prefix].Number})
	}
	return list
}
