package bpf

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"unique"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/test/rig"
)

// member is one node of a cluster: its programs, and what its agent writes for the objects it hears
// of.
type member struct {
	*bareNode
	store      *model.Store
	reconciler *reconcile.Reconciler
	addr4      netip.Addr
	addr6      netip.Addr
}

// clusterSeed is the hash seed that the nodes of a cluster share.
const clusterSeed = "the same on every node"

// clusterConfig returns a configuration with room for many flows to each backend on another node.
func clusterConfig() bpf.MapsPacketConfig {
	config := standardConfig()
	config.SnatFirst, config.SnatLast = 20000, 60999
	keys := lb.NewHashKeys(clusterSeed)
	config.HashKey0, config.HashKey1, config.HashKey2, config.HashKey3, config.HashKey4 = keys[0], keys[1], keys[2], keys[3], keys[4]
	return config
}

// newMember returns a node with that name and address that is synced without any objects.
func newMember(t *testing.T, h hook, name, addr4, addr6 string) *member {
	t.Helper()
	m := &member{
		bareNode: newBareNodeSized(t, h, clusterConfig(), maps.Sizes{Slots: 1 << 19, Backends: 1 << 14}),
		store:    model.NewStore(name), addr4: netip.MustParseAddr(addr4), addr6: netip.MustParseAddr(addr6),
	}
	own := map[netip.Addr]maps.NodeAddr{
		m.addr4: {Ifindex: 1, Flags: maps.NodePorts}, m.addr6: {Ifindex: 1, Flags: maps.NodePorts},
	}
	if _, err := m.maps.SetNodeAddrs(own); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.maps.SetSnatAddr(m.addr4), m.maps.SetSnatAddr(m.addr6)); err != nil {
		t.Fatal(err)
	}
	barrier, err := maps.NewBarrier()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := barrier.Close(); err != nil {
			t.Error(err)
		}
	})
	m.reconciler, err = reconcile.New(reconcile.Config{
		Store: m.store, Facts: lb.Facts{ExternalIPs: lb.ExternalIPsAll, AcceptDirect: true}, Barrier: barrier.Wait,
		Tables: &reconcile.Tables{
			Frontends: m.tables.Svcs, Ranges: m.tables.Ranges, Services: m.tables.Services, Slots: m.tables.Slots,
			Backends: m.tables.Backends, Names: m.tables.Names,
		},
		Grow:   func(maps.Sizes) (*reconcile.Tables, error) { return nil, errors.New("no story needs more") },
		Report: func(key model.Key, _ string, p model.Problem) { t.Errorf("%s: %s", key, p.Message) },
		Log:    slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	m.store.ReplaceServices(nil)
	m.store.ReplaceSlices(nil)
	m.store.ReplaceNodes([]*model.Node{{Name: name, Addrs: []netip.Addr{m.addr4, m.addr6}}})
	m.store.ReplaceNamespaces(nil)
	m.store.ReplacePods(nil)
	return m
}

// writeAll has the agent write what it has heard of.
func (m *member) writeAll(t *testing.T) {
	t.Helper()
	if err := m.reconciler.Drain(); err != nil {
		t.Fatal(err)
	}
}

// own returns the node's address of the same family as another address.
func (m *member) own(like netip.Addr) netip.Addr {
	if like.Is4() {
		return m.addr4
	}
	return m.addr6
}

// flowPacket is a packet of a flow as it comes to a node.
type flowPacket struct {
	client, to netip.AddrPort
	proto      byte
	flags      byte
}

// backendsOf gives packets to the node, and returns the backend that the row of each leads to: the zero
// address if there is no row.
func (m *member) backendsOf(t *testing.T, packets []flowPacket) []netip.AddrPort {
	t.Helper()
	backends := make([]netip.AddrPort, len(packets))
	frames := make([][]byte, len(packets))
	for i, p := range packets {
		frames[i] = packet{from: p.client.String(), to: p.to.String(), proto: p.proto, flags: p.flags}.bytes()
	}
	err := m.do(func() error {
		for i, frame := range frames {
			if _, err := m.programs[m.in].Run(&ebpf.RunOptions{Data: frame}); err != nil {
				return err
			}
			row, ok, err := m.rowFor(packets[i])
			if err != nil {
				return err
			}
			if ok {
				backends[i] = netip.AddrPortFrom(maps.NetipOf(row.Daddr), maps.PortOf(row.Dport))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return backends
}

// rowFor returns the node's row for a packet's flow.
func (m *member) rowFor(p flowPacket) (row maps.FlowRow, ok bool, err error) {
	key := p.flow()
	if row, ok, err = maps.LookupFlow(m.maps.CtPending, key); err != nil || ok {
		return row, ok, err
	}
	return maps.LookupFlow(m.maps.Ct, key)
}

func (p flowPacket) flow() maps.Flow {
	return maps.Flow{
		Saddr: maps.AddrOf(p.client.Addr()), Daddr: maps.AddrOf(p.to.Addr()),
		Sport: maps.PortOf(p.client.Port()), Dport: maps.PortOf(p.to.Port()), Proto: p.proto,
	}
}

// endpointsOf returns a slice of a service's endpoints in one family.
func endpointsOf(service, name string, weight uint16, addrs []netip.Addr, ports []model.Port) *model.Slice {
	s := &model.Slice{
		Name: model.Name{Namespace: "shop", Name: name}, Service: service, Family: model.FamilyOf(addrs[0]), Weight: weight,
	}
	for _, p := range ports {
		s.Ports = append(s.Ports, model.SlicePort{Name: p.Name, Port: 8000 + p.Port, Protocol: p.Protocol})
	}
	for _, addr := range addrs {
		last := addr.As16()[15]
		s.Endpoints = append(s.Endpoints, model.Endpoint{
			Addr: addr, Node: unique.Make(string(rune('a' + last%3))), Conditions: model.Ready | model.Serving,
		})
	}
	return s
}

// twoNodes runs a story with two nodes, for tc and for XDP.
func twoNodes(t *testing.T, story func(t *testing.T, a, b *member)) {
	t.Helper()
	rig.Root(t)
	for _, h := range hooks() {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			story(t, newMember(t, h, "a", "192.0.2.11", "2001:db8::11"), newMember(t, h, "b", "192.0.2.12", "2001:db8::12"))
		})
	}
}
