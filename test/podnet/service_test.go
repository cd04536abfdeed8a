package podnet

import (
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// clusterIP returns the address of the n-th service, which no device has.
func clusterIP(is4 bool, n int) netip.Addr {
	if is4 {
		return netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", n))
	}
	return netip.MustParseAddr(fmt.Sprintf("fd03::%d", n))
}

// serve adds services by TCP, UDP and SCTP at port 7 of an address, which answers pings too. They have
// one backend, or none if it is not valid.
func (n *node) serve(t *testing.T, at, backend netip.Addr) {
	t.Helper()
	n.serveAs(t, maps.ClusterIP, at, backend)
}

func (n *node) serveAs(t *testing.T, kind uint32, at, backend netip.Addr) {
	t.Helper()
	m, err := maps.Open(datapath.MapsDir(n.Forwarding.BPFFS), false)
	n.must(err)
	defer m.Close()
	tables, err := m.Tables()
	n.must(err)
	defer tables.Close()
	for _, proto := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		index := uint32(1)
		for tables.Services[index].Words[0] != 0 {
			index++
		}
		tables.Services[index].Words[0] = uint64(maps.MakeWord(index, 0, 3))
		if backend.IsValid() {
			row := maps.BackendOf(backend, 7, proto)
			row.Owner = maps.MakeOwner(index, 1)
			if n.has(backend) || n.isPods(backend.AsSlice()) {
				row.Flags = maps.BackendLocal
			}
			tables.Backends[index] = row
			tables.Slots[index] = maps.MakeSlot(index, index, 3)
			tables.Services[index].Words[0] = uint64(maps.MakeWord(index, 1, 3))
		}
		n.must(tables.Svcs.Update(maps.KeyOf(at, 7, proto), maps.Svc{Service: index, Kind: kind}))
	}
	n.must(tables.Svcs.Update(maps.PingKey(at), maps.Svc{Service: 1, Kind: maps.ClusterIP}))
}

// has reports whether an address is the node's own.
func (n *node) has(addr netip.Addr) (own bool) {
	n.must(n.ns.Do(func() error {
		local, err := datapath.NodeAddrs()
		if err == nil {
			_, own = local.Addrs[addr]
		}
		return err
	}))
	return own
}

// TestServices checks that packets of sockets that were not pointed at a backend reach the
// service's backends: on this node and elsewhere, the node's own processes and the pod itself, and
// that the answers come from the address that was asked.
func TestServices(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		t.Run(map[bool]string{true: "past the stack", false: "by the stack"}[bypass], func(t *testing.T) {
			t.Parallel()
			w := newOneNode(t, bypass)
			a, b := w.pods[0], w.pods[1]
			for is4 := range outsiders {
				for i, to := range []struct {
					what    string
					backend netip.Addr
					seen    netip.Addr
				}{
					{"another pod", b.addr[is4], a.addr[is4]},
					{"the node", nodeAddrs[is4], a.addr[is4]},
					{"outside of the cluster", outsiders[is4], nodeOutsideAddrs[is4]},
					{"itself", a.addr[is4], nodeOutsideAddrs[is4]},
				} {
					at := clusterIP(is4, 10+i)
					w.serve(t, at, to.backend)
					for _, protocol := range []string{"tcp", "udp"} {
						for range 3 { // an established flow, and others after it
							if seen := talk(t, a.Netns, protocol, at); seen != to.seen.String() {
								t.Errorf("%s by %s, IPv4 %t: came from %s, want %s", to.what, protocol, is4, seen, to.seen)
							}
						}
					}
					if seen := talk(t, a.Netns, "icmp", at); seen != at.String() {
						t.Errorf("ping, IPv4 %t: answered by %s", is4, seen)
					}
				}
				w.serve(t, clusterIP(is4, 20), netip.Addr{})
				if seen := talk(t, a.Netns, "tcp-refused", clusterIP(is4, 20)); seen != "refused" {
					t.Errorf("without backends, IPv4 %t: %s", is4, seen)
				}
				w.talk(t, is4) // everything else is as before
			}
		})
	}
}

// TestServicesOfOtherNodes checks that backends on other nodes see the same source address as
// without a service, and that the answers come to the pod from the service, whether they arrive at
// a device with programs or by the tunnel.
func TestServicesOfOtherNodes(t *testing.T) {
	for _, mode := range []string{fabric.Native, fabric.VXLAN} {
		for _, byStack := range []bool{false, true} {
			l := lanForm{mode: mode, addr4: true, addr6: true, pods4: true, pods6: true, byPrograms: true, byStack: byStack}
			t.Run(mode+", "+l.how(), func(t *testing.T) {
				k := newServingNodesOnLAN(t, l)
				k.announceNodes(k.objects)
				for i := range k.pods {
					k.dial(t, &l, i, (i+1)%3)
				}
			})
		}
	}
}

// dial has a pod dial backends on another node by a service: a pod, and the node itself.
func (k *nodesOnLAN) dial(t *testing.T, l *lanForm, i, j int) {
	t.Helper()
	n, p := k.nodes[i], k.pods[i]
	for _, addr := range k.objects[j].Addrs {
		is4 := addr.Is4()
		n.serve(t, clusterIP(is4, 10), k.pods[j].addr[is4])
		n.serve(t, clusterIP(is4, 11), addr)
		for _, protocol := range []string{"tcp", "udp"} {
			if seen := talk(t, p.Netns, protocol, clusterIP(is4, 10)); seen != p.addr[is4].String() {
				t.Errorf("service of a pod by %s: came from %s, want %s", protocol, seen, p.addr[is4])
			}
			if protocol == "udp" && l.mode == fabric.VXLAN && !is4 {
				continue // nodes send larger datagrams than pods' devices take, until they are told
			}
			if seen, want := talk(t, p.Netns, protocol, clusterIP(is4, 11)), talk(t, p.Netns, protocol, addr); seen != want {
				t.Errorf("service of a node by %s: came from %s, want %s", protocol, seen, want)
			}
		}
	}
}

// TestServicesOfNode checks that what the node itself sends to services from sockets that were not
// pointed at a backend arrives too: at its pods, from the node's address, at its own processes,
// which see the service's address, and elsewhere.
func TestServicesOfNode(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		t.Run(map[bool]string{true: "past the stack", false: "by the stack"}[bypass], func(t *testing.T) {
			t.Parallel()
			w := newOneNode(t, bypass)
			for is4, outsider := range outsiders {
				rig.Route(t, w.ns, map[bool]string{true: "0.0.0.0/0", false: "::/0"}[is4], outsider.String())
				for i, to := range []struct {
					what          string
					backend, seen netip.Addr
				}{
					{"a pod", w.pods[1].addr[is4], nodeOutsideAddrs[is4]},
					{"outside of the cluster", outsider, nodeOutsideAddrs[is4]},
					{"the node", nodeAddrs[is4], clusterIP(is4, 12)},
					{"the very address", nodeOutsideAddrs[is4], clusterIP(is4, 13)},
				} {
					at := clusterIP(is4, 10+i)
					w.serve(t, at, to.backend)
					for _, protocol := range []string{"tcp", "udp"} {
						if protocol == "udp" && to.backend == nodeAddrs[is4] {
							continue // a server at any address answers from that of its route to the client
						}
						for range 3 { // an established flow, and others after it
							if seen := talk(t, w.ns, protocol, at); seen != to.seen.String() {
								t.Errorf("%s by %s, IPv4 %t: came from %s, want %s", to.what, protocol, is4, seen, to.seen)
							}
						}
					}
					if seen := talk(t, w.ns, "icmp", at); seen != at.String() {
						t.Errorf("ping, IPv4 %t: answered by %s", is4, seen)
					}
				}
				w.serve(t, clusterIP(is4, 20), netip.Addr{})
				if seen := talk(t, w.ns, "tcp-refused", clusterIP(is4, 20)); seen != "refused" {
					t.Errorf("without backends, IPv4 %t: %s", is4, seen)
				}
				w.talk(t, is4) // everything else is as before
			}
		})
	}
}

// TestServicesOfOtherNodesOfNode checks that backends on other nodes see the node's address,
// whatever the route; pods behind the tunnel see the node's address in the tunnel. The first packet
// that does not fit the tunnel is lost.
func TestServicesOfOtherNodesOfNode(t *testing.T) {
	for _, mode := range []string{fabric.Native, fabric.VXLAN} {
		for _, byStack := range []bool{false, true} {
			l := lanForm{mode: mode, addr4: true, addr6: true, pods4: true, pods6: true, byPrograms: true, byStack: byStack}
			t.Run(mode+", "+l.how(), func(t *testing.T) {
				k := newServingNodesOnLAN(t, l)
				k.announceNodes(k.objects)
				rig.Address(t, k.wire, "br0", "198.51.100.254/24", "2001:db8:1::fe/64")
				for i, n := range k.nodes {
					rig.Route(t, n.ns, "0.0.0.0/0", "198.51.100.254")
					rig.Route(t, n.ns, "::/0", "2001:db8:1::fe")
					k.dialAsNode(t, &l, i, (i+1)%3)
				}
			})
		}
	}
}

// dialAsNode has a node dial backends on another node by a service: a pod, and the node itself.
func (k *nodesOnLAN) dialAsNode(t *testing.T, l *lanForm, i, j int) {
	t.Helper()
	n := k.nodes[i]
	for a, addr := range k.objects[j].Addrs {
		is4, own := addr.Is4(), k.objects[i].Addrs[a]
		n.serve(t, clusterIP(is4, 10), k.pods[j].addr[is4])
		n.serve(t, clusterIP(is4, 11), addr)
		for at, seen := range map[int]netip.Addr{10: k.seenByPods(l, i, own), 11: own} {
			talk(t, n.ns, "udp-lost", clusterIP(is4, at))
			for _, protocol := range []string{"tcp", "udp-small", "udp"} {
				if from := talk(t, n.ns, protocol, clusterIP(is4, at)); from != seen.String() {
					t.Errorf("service %d by %s: came from %s, want %s", at, protocol, from, seen)
				}
			}
		}
	}
}

// seenByPods returns the address under which pods of other nodes see traffic that a node forwards:
// its own, or its address in the tunnel, once the programs know that.
func (k *nodesOnLAN) seenByPods(l *lanForm, i int, own netip.Addr) netip.Addr {
	if l.mode != fabric.VXLAN {
		return own
	}
	n, addr := k.nodes[i], networkOf(k.objects[i], own.Is4())
	m, err := maps.Open(datapath.MapsDir(n.Forwarding.BPFFS), false)
	n.must(err)
	defer m.Close()
	row := uint32(bpf.MapsSnatAddrSNAT_TUNNEL4)
	if addr.Is6() {
		row = uint32(bpf.MapsSnatAddrSNAT_TUNNEL6)
	}
	n.until("the tunnel's address", func() bool {
		var known maps.Addr
		n.must(m.SnatAddrs.Lookup(row, &known))
		return maps.NetipOf(known) == addr
	})
	return addr
}

// TestServicesOfOtherNodesFromOutside checks that backends on other nodes see the node that a
// client outside has asked, whatever the route: also a tunnel, about which the kernel tells
// programs nothing. Behind it they see the node's address in the tunnel, so that their answers come
// back through it.
func TestServicesOfOtherNodesFromOutside(t *testing.T) {
	for _, mode := range []string{fabric.Native, fabric.VXLAN} {
		for _, byStack := range []bool{false, true} {
			l := lanForm{mode: mode, addr4: true, addr6: true, pods4: true, pods6: true, byPrograms: true, byStack: byStack}
			t.Run(mode+", "+l.how(), func(t *testing.T) {
				k := newServingNodesOnLAN(t, l)
				k.announceNodes(k.objects)
				client := rig.NewNetns(t, "client")
				k.connect(t, client, "client")
				rig.Address(t, client, "eth0", "198.51.100.200/24", "2001:db8:1::c8/64")
				for i := range k.nodes {
					k.dialFrom(t, &l, client, i, (i+1)%3)
				}
			})
		}
	}
}

// dialFrom has a client outside dial a pod of one node by a service of another node. The first
// packet that does not fit the tunnel is lost.
func (k *nodesOnLAN) dialFrom(t *testing.T, l *lanForm, client *rig.Netns, i, j int) {
	t.Helper()
	for _, addr := range k.objects[i].Addrs {
		is4 := addr.Is4()
		at, seen := clusterIP(is4, 10+i), k.seenByPods(l, i, addr)
		k.nodes[i].serveAs(t, maps.LoadBalancer, at, k.pods[j].addr[is4])
		rig.Route(t, client, netip.PrefixFrom(at, at.BitLen()).String(), addr.String())
		talk(t, client, "udp-lost", at)
		for _, protocol := range []string{"tcp", "udp-small", "udp"} {
			for range 3 { // an established flow, and others after it
				if from := talk(t, client, protocol, at); from != seen.String() {
					t.Errorf("IPv4 %t by %s: came from %s, want %s", is4, protocol, from, seen)
				}
			}
		}
	}
}
