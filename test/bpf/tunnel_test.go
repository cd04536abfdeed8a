package bpf

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
)

// listNodes tells the programs of two nodes, of which one is this, and of their pods' networks.
func (w *bareNode) listNodes(t *testing.T) {
	t.Helper()
	here, there := maps.ClusterNode{Name: 1, Number: 1, Self: true}, maps.ClusterNode{Name: 2, Number: 2}
	end := maps.ClusterNode{Name: 2, Number: 2, Tunnel: true}
	at, of := netip.MustParseAddr, netip.MustParsePrefix
	_, err := w.maps.SetCluster(maps.Cluster{
		Known: true,
		Nodes: map[netip.Addr]maps.ClusterNode{at("192.0.2.1"): here, at("192.0.2.2"): there, at("2001:db8::2"): there},
		Sources: map[netip.Prefix]maps.ClusterNode{
			of("10.244.1.0/24"): here, of("10.244.2.0/24"): there, of("10.244.2.0/32"): end,
			of("fd02::/64"): here, of("fd03::/64"): there, of("fd03::/128"): end,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// routeAll gives the node routes to everywhere, and to all hosts of its own network.
func (w *bareNode) routeAll(t *testing.T) {
	t.Helper()
	if err := errors.Join(w.netns.SetSysctl("net/ipv4/ip_forward", "1"), w.do(func() error {
		lo, err := netlink.LinkByIndex(1)
		if err != nil {
			return err
		}
		dst := func(text string) *net.IPNet { _, network, _ := net.ParseCIDR(text); return network }
		return errors.Join(netlink.LinkSetUp(lo),
			netlink.RouteAdd(&netlink.Route{LinkIndex: 1, Dst: dst("0.0.0.0/0"), Scope: netlink.SCOPE_LINK}),
			netlink.RouteAdd(&netlink.Route{LinkIndex: 1, Dst: dst("192.0.2.255/32"), Type: unix.RTN_BROADCAST, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_LINK}))
	})); err != nil {
		t.Fatal(err)
	}
}

// stretched returns a datagram behind that many extension headers of IPv6.
func stretched(frame []byte, headers int) []byte {
	for range headers {
		frame = hidden(frame, 60)
	}
	return frame
}

// No pod reaches a node's tunnel, whatever its packet looks like, nor any tunnel as a node. All else
// goes, a tunnel of its own to pods included.
func TestTunnelOfNodes(t *testing.T) {
	const tunnel = "8472"
	frames := []sent{
		{"another node's, IPv4", udpFrom(pod4, "61001", "192.0.2.2", tunnel), "", "tunnel-port", true},
		{"another node's, IPv6", udpFrom(pod6, "61001", "2001:db8::2", tunnel), "", "tunnel-port", true},
		{"another node's by its end's address", udpFrom(pod4, "61001", "10.244.2.0", tunnel), "", "tunnel-port", true},
		{"another node's by its end's address, IPv6", udpFrom(pod6, "61001", "fd03::", tunnel), "", "tunnel-port", true},
		{"this node's by an address that no Node lists", udpFrom(pod4, "61001", config4().String(), tunnel), "", "tunnel-port", true},
		{"this node's, IPv6", udpFrom(pod6, "61001", config6().String(), tunnel), "", "tunnel-port", true},
		{"this node's by its link", udpFrom(link6, "61001", gateway6, tunnel), "", "tunnel-port", true},
		{"this node's by its link, behind an extension header", stretched(udpFrom(link6, "61001", gateway6, tunnel), 1), "", "tunnel-port", true},
		{"to a group", udpFrom(pod4, "61001", "224.0.0.1", tunnel), "", "tunnel-port", true},
		{"to a group, IPv6", udpFrom(pod6, "61001", "ff0e::1", tunnel), "", "tunnel-port", true},
		{"to all", udpFrom(pod4, "61001", "255.255.255.255", tunnel), "", "tunnel-port", true},
		{"to all of the node's network", udpFrom(pod4, "61001", "192.0.2.255", tunnel), "", "tunnel-port", true},
		{"to no address", udpFrom(pod4, "61001", "0.0.0.0", tunnel), "", "tunnel-port", true},
		{"to a group, another port", udpFrom(pod4, "61001", "224.0.0.1", "5353"), "", "pass", true},
		{"with options", packet{from: pod4 + ":1", to: "192.0.2.2:" + tunnel, proto: udp, options: 2}.bytes(), "", "tunnel-port", true},
		{"behind extension headers", stretched(udpFrom(pod6, "1", "2001:db8::2", tunnel), 2), "", "tunnel-port", true},
		{"behind more than are read", stretched(udpFrom(pod6, "1", "2001:db8::2", tunnel), 8), "", "tunnel-port", true},
		{"another port", udpFrom(pod4, "1", "192.0.2.2", "8473"), "", "pass", true},
		{"from that port", udpFrom(pod4, tunnel, "192.0.2.2", "53"), "", "pass", true},
		{"another port of an end's address", udpFrom(pod4, "1", "10.244.2.0", "53"), "", "pass", true},
		{"another port of an end's address, IPv6", udpFrom(pod6, "1", "fd03::", "53"), "", "pass", true},
		{"TCP to an end's address", packet{from: pod4 + ":1", to: "10.244.2.0:" + tunnel, proto: tcp, flags: syn}.bytes(), "", "pass", true},
		{"TCP", packet{from: pod4 + ":1", to: "192.0.2.2:" + tunnel, proto: tcp, flags: syn}.bytes(), "", "pass", true},
		{"a pod's tunnel on this node", udpFrom(pod4, "1", other4, tunnel), "", "pass", true},
		{"a pod's tunnel on this node, IPv6", udpFrom(pod6, "1", other6, tunnel), "", "pass", true},
		{"a pod's tunnel on another", udpFrom(pod4, "1", "10.244.2.9", tunnel), "", "pass", true},
		{"a pod's tunnel on another, IPv6", udpFrom(pod6, "1", "fd03::1", tunnel), "", "pass", true},
		{"a tunnel outside", udpFrom(pod4, "1", outside4, tunnel), "", "pass", true},
		{"as a node, checked", udpFrom("192.0.2.2", "61001", outside4, tunnel), "", "spoofed", false},
	}
	for _, unchecked := range []bool{false, true} {
		config := standardConfig()
		config.TunnelPort = 8472
		w := newBareNodeTwoPods(t, config, unchecked)
		w.listNodes(t)
		w.routeAll(t)
		if unchecked {
			frames[len(frames)-1] = sent{"as a node, unchecked", udpFrom("192.0.2.2", "61001", outside4, tunnel), "", "tunnel-port", true}
		}
		for _, s := range frames {
			before := w.counted(t, "tunnel-port")
			verdict, _ := w.run(t, "tc_from_pod", s.bytes())
			dropped := w.counted(t, "tunnel-port") > before
			if want := s.want == "tunnel-port"; dropped != want || (s.want == "pass") == (verdict == "drop") {
				t.Errorf("unchecked %t, %s: %s, counted %t, want %s", unchecked, s.what, verdict, dropped, s.want)
			}
		}
	}
}

// Only what comes from the ports of nodes' tunnels reaches the tunnel of this node, by whatever
// address it is dialed. While nodes are upgraded, an older version's ports do too.
func TestTunnelPortsOfNodes(t *testing.T) {
	for _, anyPort := range []uint32{0, 1} {
		t.Run(fmt.Sprintf("any=%d", anyPort), func(t *testing.T) { tunnelPortsOfNodes(t, anyPort) })
	}
}

func tunnelPortsOfNodes(t *testing.T, anyPort uint32) {
	config := standardConfig()
	config.TunnelPort, config.AnySourcePort = 8472, anyPort
	for _, h := range hooks() {
		if h.name != "tc" {
			continue
		}
		w := newBareNodeOf(t, h, config)
		for _, tt := range []struct {
			what, from, to string
			proto          byte
			drop           bool
		}{
			{"given a node's address, IPv4", "192.0.2.2:29999", config4().String() + ":8472", udp, true},
			{"given a node's address, IPv6", "[2001:db8::2]:1024", "[" + config6().String() + "]:8472", udp, true},
			{"to an address that no Node lists", "192.0.2.2:60999", "10.1.0.1:8472", udp, true},
			{"a node's tunnel", "192.0.2.2:61000", config4().String() + ":8472", udp, false},
			{"a node's tunnel, IPv6", "[2001:db8::2]:65535", "[" + config6().String() + "]:8472", udp, false},
			{"for another host", "192.0.2.2:29999", "203.0.113.9:8472", udp, false},
			{"another port", "192.0.2.2:29999", config4().String() + ":8473", udp, false},
			{"TCP", "192.0.2.2:29999", config4().String() + ":8472", tcp, false},
		} {
			before := w.counted(t, "tunnel-port")
			verdict, _ := w.run(t, h.in, packet{from: tt.from, to: tt.to, proto: tt.proto}.bytes())
			tt.drop = tt.drop && anyPort == 0
			if got := w.counted(t, "tunnel-port") > before; got != tt.drop || (verdict == "drop") != tt.drop {
				t.Errorf("%s: %s, counted %t, want %t", tt.what, verdict, got, tt.drop)
			}
		}
	}
}
