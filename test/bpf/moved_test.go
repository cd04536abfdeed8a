package bpf

import (
	"net/netip"
	"testing"
	"unique"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

const (
	crowd      = 1000  // backends
	strangers  = 16000 // flows that no node remembers
	remembered = 1000  // flows that one node remembers, and as many established ones
)

// crowdOf returns a service and the slices of its backends, which are on other nodes: all of the
// same weight, or half of them heavier.
func crowdOf(heavy uint16) (*model.Service, []*model.Slice) {
	ports := []model.Port{{Name: "t", Port: 80, NodePort: 30080, Protocol: model.TCP}}
	s := &model.Service{
		Name: model.Name{Namespace: "shop", Name: "crowd"}, UID: "crowd", ClusterIPs: addrsFrom("10.96.0.1", 0, 1), Ports: ports,
		Algorithm: "maglev",
	}
	list := []*model.Slice{
		endpointsOf("crowd", "light", 1, addrsFrom("10.244.0.1", 0, crowd/2), ports),
		endpointsOf("crowd", "heavy", heavy, addrsFrom("10.245.0.1", 0, crowd/2), ports),
	}
	for _, slice := range list {
		for i := range slice.Endpoints {
			slice.Endpoints[i].Node = unique.Make("elsewhere")
		}
	}
	return s, list
}

// openings returns the first packets of flows to a node, all from different clients or ports.
func openings(first string, n int, to netip.Addr, flags byte) []flowPacket {
	list := make([]flowPacket, 0, n)
	clients := addrsFrom(first, 0, (n+7)/8)
	for i := range n {
		list = append(list, flowPacket{
			netip.AddrPortFrom(clients[i/8], uint16(32768+2*(i%8)+i/8%64*16)), netip.AddrPortFrom(to, 30080), tcp, flags,
		})
	}
	return list
}

// hear delivers slices to the nodes.
func hear(t *testing.T, slices []*model.Slice, nodes ...*member) {
	t.Helper()
	for _, m := range nodes {
		for _, s := range slices {
			m.store.SetSlice(s)
		}
		m.writeAll(t)
	}
}

// without returns a slice without one endpoint.
func without(s *model.Slice, i int) *model.Slice {
	less := *s
	less.Endpoints = append(append([]model.Endpoint{}, s.Endpoints[:i]...), s.Endpoints[i+1:]...)
	return &less
}

// shake has the backends answer and the clients acknowledge that, so that the flows are
// established.
func (m *member) shake(t *testing.T, flows []flowPacket) {
	t.Helper()
	for _, p := range flows {
		row, ok, err := m.rowFor(p)
		if err != nil || !ok {
			t.Fatalf("%s is not remembered: %v", p.client, err)
		}
		backend := netip.AddrPortFrom(maps.NetipOf(row.Daddr), maps.PortOf(row.Dport))
		node := netip.AddrPortFrom(maps.NetipOf(row.Saddr), maps.PortOf(row.Sport))
		m.run(t, m.in, packet{from: backend.String(), to: node.String(), proto: tcp, flags: syn | ack, seq: 1000}.bytes())
		m.run(t, m.in, packet{from: p.client.String(), to: p.to.String(), proto: tcp, flags: ack, ack: 1001}.bytes())
		if _, ok, err = maps.LookupFlow(m.maps.Ct, p.flow()); err != nil || !ok {
			t.Fatalf("%s is not established: %v", p.client, err)
		}
	}
}

// moves counts the flows that moved to another backend, and those that had backend of before.
func moves(before, after []netip.AddrPort, of netip.AddrPort) (moved, had int) {
	for i := range before {
		if before[i] != after[i] {
			moved++
		}
		if before[i] == of {
			had++
		}
	}
	return moved, had
}

// When one of a thousand backends leaves or comes, few flows that no node remembers move: at most
// 1.5 times as many as must. Of the flows that a node remembers none moves, established or not. All
// backends have the same weight for one hook, and half of them three times the weight for the
// other; the programs work the same for both.
func TestOneOfManyMoves(t *testing.T) {
	twoNodes(t, func(t *testing.T, a, b *member) { oneMoves(t, a, b, map[string]uint16{"tc": 1, "xdp": 3}[a.name]) })
}

func oneMoves(t *testing.T, a, b *member, heavy uint16) {
	service, slices := crowdOf(heavy)
	a.store.SetService(service)
	b.store.SetService(service)
	hear(t, slices, a, b)

	flows := openings("198.51.0.1", 2*remembered, a.addr4, syn)
	kept := a.backendsOf(t, flows)
	a.shake(t, flows[:remembered])
	all := openings("100.64.0.1", strangers, b.addr4, syn)
	first := b.backendsOf(t, all)
	b.empty(t)

	moved, had, leavers := 0, 0, []int{3, 77, 250, 499}
	for _, i := range leavers {
		which := i % 2
		gone := slices[which].Endpoints[i]
		hear(t, []*model.Slice{without(slices[which], i)}, a, b)
		m, h := moves(first, b.backendsOf(t, all), netip.AddrPortFrom(gone.Addr, 8080))
		moved, had = moved+m, had+h
		b.empty(t)
		// For the other node, packets of these flows come midway.
		for j := range flows {
			flows[j].flags = ack
		}
		if m, _ := moves(kept, a.backendsOf(t, flows), netip.AddrPort{}); m > 0 {
			t.Errorf("%s left: %d of %d flows that the node remembers moved", gone.Addr, m, len(flows))
		}
		hear(t, slices, a, b)
	}
	t.Logf("%d flows: %d moves when %d backends left, one at a time; %d were necessary", strangers, moved, len(leavers), had)
	if had < 30 || moved < had || 2*moved > 3*had {
		t.Errorf("%d flows moved, want %d to %d", moved, had, had*3/2)
	}
	if m, _ := moves(first, b.backendsOf(t, all), netip.AddrPort{}); m > 0 {
		t.Errorf("%d flows have another backend although the backends are the same again", m)
	}
	b.empty(t)
	oneComes(t, b, slices, all, first)
}

// oneComes adds backends, one at a time.
func oneComes(t *testing.T, b *member, slices []*model.Slice, all []flowPacket, first []netip.AddrPort) {
	t.Helper()
	moved, got := 0, 0
	for i := range 4 {
		comer := netip.AddrFrom4([4]byte{10, 246, byte(i), 9})
		more := *slices[1]
		more.Endpoints = append(append([]model.Endpoint{}, more.Endpoints...),
			model.Endpoint{Addr: comer, Node: unique.Make("elsewhere"), Conditions: model.Ready | model.Serving})
		hear(t, []*model.Slice{&more}, b)
		after := b.backendsOf(t, all)
		m, g := moves(after, first, netip.AddrPortFrom(comer, 8080))
		moved, got = moved+m, got+g
		b.empty(t)
	}
	t.Logf("%d flows: %d moves when 4 backends came, one at a time; these got %d", strangers, moved, got)
	if got < 30 || moved < got || 2*moved > 3*got {
		t.Errorf("%d flows moved to the new backends or others, want %d to %d", moved, got, got*3/2)
	}
}
