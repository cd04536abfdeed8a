package minimal

import (
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

// hopTo returns the hop from a host to its neighbor.
func hopTo(from, to *topology.Host) Hop {
	port := from.Port(to)
	return Hop{Ifindex: port.Index, Local: port.MAC, Remote: port.Peer.MAC}
}

func both(h *topology.Host) []netip.Addr {
	return []netip.Addr{h.Addr(topology.IPv4), h.Addr(topology.IPv6)}
}

// closeLater closes the programs at the end of the test.
func closeLater(t *testing.T, c interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Data arrives complete, even if it was merged on the way, which it would not with wrong checksums.
func TestNodePort(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	virtual := &topology.Offloads{GRO: true, TSO: true, TxChecksum: true}
	real := &topology.Offloads{GRO: true}
	for _, tt := range []struct {
		name     string
		hook     Hook
		flows    int
		offloads *topology.Offloads
	}{
		{"tc, constant, as a veth is", TC, 0, nil},
		{"tc, constant, all offloads", TC, 0, virtual},
		{"tc, constant, complete checksums and merging", TC, 0, real},
		{"tc, flows, as a veth is", TC, 1000, nil},
		{"tc, flows, complete checksums and merging", TC, 1000, real},
		{"XDP, constant", XDP, 0, real},
		{"XDP, flows", XDP, 1000, real},
	} {
		t.Run(tt.name, func(t *testing.T) {
			top := topology.New(t, topology.NewRouted, topology.Knobs{Offloads: tt.offloads})
			node, server, pairs := top.Nodes[0], top.Servers[0], pairsOf(top)
			startServers(t, top, pairs)
			programs, err := NodePort{
				Hook: tt.hook, Pairs: pairs, Flows: tt.flows, Clients: both(top.Client),
				Nodes: []netip.Addr{node.Port(server).Addr(topology.IPv4), node.Port(server).Addr(topology.IPv6)},
				Front: hopTo(node, top.Client), Back: hopTo(node, server),
			}.Load()
			if err != nil {
				t.Fatal(err)
			}
			closeLater(t, programs)
			unreachable(t, top, pairs[0].Frontend)
			if err := programs.Attach(node.Netns); err != nil {
				t.Fatal(err)
			}
			for i, family := range []topology.Family{topology.IPv4, topology.IPv6} {
				found, err := exchange(top, pairs[i].Frontend)
				if err != nil {
					t.Errorf("%s: %v", family, err)
					continue
				}
				want := node.Port(server).Addr(family)
				if tt.flows > 0 {
					want = top.Client.Addr(family)
				}
				if found.Client != want || found.Peer != pairs[i].Frontend {
					t.Errorf("%s: the server saw %s, want %s; the peer is %s", family, found.Client, want, found.Peer)
				}
			}
		})
	}
}

func TestSocket(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, peerName := range []bool{false, true} {
		top := topology.New(t, topology.NewDirect, topology.Knobs{})
		pairs := pairsOf(top)
		startServers(t, top, pairs)
		attached, err := AttachSocket(top.Cgroup, Socket{Pairs: pairs, PeerName: peerName})
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range pairs {
			found, err := exchange(top, pair.Frontend)
			want := pair.Backend
			if peerName {
				want = pair.Frontend
			}
			if err != nil || found.Peer != want {
				t.Errorf("with PeerName %t: the peer of %s is %s, %v", peerName, pair.Frontend, found.Peer, err)
			}
			if _, err := exchange(top, pair.Backend); err != nil {
				t.Errorf("the backend itself: %v", err)
			}
		}
		if err := attached.Close(); err != nil {
			t.Error(err)
		}
		unreachable(t, top, pairs[0].Frontend)
	}
}

func TestRedirect(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, kind := range []RedirectKind{TCRedirect, PeerAtOnce, XDPRedirect} {
		t.Run(string(kind), func(t *testing.T) {
			top := topology.New(t, topology.NewRouted, topology.Knobs{Offloads: &topology.Offloads{GRO: true}})
			node, server, pairs := top.Nodes[0], top.Servers[0], pairsOf(top)
			startServers(t, top, pairs)
			// Only the programs forward.
			for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
				if err := node.SetSysctl(name, "0"); err != nil {
					t.Fatal(err)
				}
			}
			unreachable(t, top, pairs[0].Backend)
			for _, way := range [][2]*topology.Host{{top.Client, server}, {server, top.Client}} {
				attached, err := AttachRedirect(node.Netns, kind, node.Port(way[0]).Index, hopTo(node, way[1]))
				if err != nil {
					t.Fatal(err)
				}
				closeLater(t, attached)
			}
			for _, pair := range pairs {
				if _, err := exchange(top, pair.Backend); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestMistakes(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	four, six := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("[2001:db8::1]:80")
	for want, n := range map[string]NodePort{
		`no hook ""`:              {},
		"no pair":                 {Hook: TC, Pairs: []Pair{{four, six}}},
		"needs the addresses of ": {Hook: XDP, Pairs: []Pair{{four, four}}},
	} {
		if p, err := n.Load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, %v", n, p, err)
		}
	}
	ns := rig.NewNetns(t, "empty")
	if _, err := AttachRedirect(ns, "fly", 1, Hop{}); err == nil || !strings.Contains(err.Error(), `no way "fly"`) {
		t.Error(err)
	}
	if _, err := AttachRedirect(ns, TCRedirect, 77, Hop{}); err == nil || !strings.Contains(err.Error(), "to device 77") {
		t.Error(err)
	}
	if _, err := AttachSocket(rig.NewCgroup(t), Socket{Pairs: []Pair{{six, four}}}); err == nil {
		t.Error("AttachSocket accepts a pair of different families")
	}
}
