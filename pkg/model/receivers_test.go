package model

import (
	"fmt"
	"net/netip"
	"testing"
)

// crowded returns a Store with 10,000 Services, each of which has an address of its own and an
// endpoint at the port of nodes' tunnels, and 5,000 Nodes.
func crowded() (*Store, []*Node) {
	s := NewStore("node")
	for i := range 10_000 {
		name := fmt.Sprint("s", i)
		service := service(name, netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String())
		service.LoadBalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})}
		s.SetService(service)
		s.SetSlice(&Slice{
			Name: Name{"ns", name}, Service: name, Ports: []SlicePort{{Port: 8472, Protocol: UDP}},
			Endpoints: []Endpoint{{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}},
		})
	}
	var nodes []*Node
	for i := range 5_000 {
		nodes = append(nodes, &Node{
			Name: fmt.Sprint("n", i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), 0}), 24)},
		})
	}
	return s, nodes
}

// A Node's change looks only at what it is about, however many Services there are.
func TestNodesOfManyServices(t *testing.T) {
	s, nodes := crowded()
	s.ReplaceNodes(nodes)
	s.TakeDirty()
	hostile := *nodes[7]
	hostile.Addrs = addrs("10.1.0.9", "198.18.0.11")
	s.SetNode(&hostile)
	wantDirty(t, s, "a node has a Service's endpoint, and another's address", serviceKey("s11"), serviceKey("s9"))
	s.SetNode(nodes[7])
	wantDirty(t, s, "no longer", serviceKey("s11"), serviceKey("s9"))
	wide := *nodes[7]
	wide.PodCIDRs = append(wide.PodCIDRs, netip.MustParsePrefix("198.18.1.0/31"))
	s.SetNode(&wide)
	wantDirty(t, s, "a node has Services' addresses among its pods'", serviceKey("s256"), serviceKey("s257"))
	begins := *nodes[7]
	begins.PodCIDRs = append(begins.PodCIDRs, netip.MustParsePrefix("10.1.0.17/28"))
	s.SetNode(&begins)
	wantDirty(t, s, "a node's end of the tunnel is where a Service's endpoint is", serviceKey("s16"), serviceKey("s256"), serviceKey("s257"))
	if !s.IsNode(netip.MustParseAddr("10.1.0.16")) || s.IsNode(netip.MustParseAddr("10.1.0.17")) {
		t.Error("of a network of pods, not just the first address is a node's")
	}
	s.SetNode(&wide)
	wantDirty(t, s, "no longer", serviceKey("s16"), serviceKey("s256"), serviceKey("s257"))
	if s.IsNode(netip.MustParseAddr("10.1.0.16")) {
		t.Error("an address stays a node's when its network of pods is gone")
	}
	s.DeleteSlice(Name{"ns", "s9"})
	s.TakeDirty()
	again := *nodes[7]
	again.Addrs = addrs("10.1.0.9")
	s.SetNode(&again)
	wantDirty(t, s, "the endpoint is gone", serviceKey("s256"), serviceKey("s257"))
}

func BenchmarkReplaceNodes(b *testing.B) {
	s, nodes := crowded()
	for b.Loop() {
		s.ReplaceNodes(nodes)
		s.ReplaceNodes(nil)
	}
}

// A Node whose addresses come and go.
func BenchmarkSetNode(b *testing.B) {
	s, nodes := crowded()
	s.ReplaceNodes(nodes)
	other := *nodes[7]
	other.Addrs = addrs("192.0.2.1")
	for b.Loop() {
		s.SetNode(&other)
		s.SetNode(nodes[7])
	}
}
