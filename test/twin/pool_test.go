package twin

import (
	"net/netip"
	"sync"
)

// The addresses in use. Those of a list are reached in different ways; see routes.

func addrs(text ...string) []netip.Addr {
	var list []netip.Addr
	for _, one := range text {
		list = append(list, netip.MustParseAddr(one))
	}
	return list
}

// pool has the hosts and addresses of one family.
type pool struct {
	clients, backends, vips, clusterIPs []netip.Addr
	open, closed                        netip.Addr // addresses of the node, with and without NodePorts
	snat, stale                         netip.Addr // one of the node's, and one that it no longer has
	strangers                           []netip.Addr
	peers                               []netip.Addr // other nodes
	far                                 []netip.Addr // pods of the first two of them, by turns
	pod                                 netip.Addr   // on this node, and not a backend
	link                                netip.Addr   // a link-local address
	ranges                              []netip.Prefix
}

// pods returns the pods of this node.
func (p *pool) pods() []netip.Addr { return []netip.Addr{p.backends[0], p.backends[3], p.pod} }

// broadcast returns the address that a pod without an address asks.
func (p *pool) broadcast() netip.Addr { return p.strangers[3] }

// pools returns the addresses of each family, by whether it is IPv4. They are asked for with every packet, and never
// change.
var pools = sync.OnceValue(makePools)

func makePools() map[bool]pool {
	return map[bool]pool{
		true: {
			clients:    addrs("198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.4", "198.51.100.5"),
			backends:   addrs("10.244.1.1", "10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5", "10.1.0.1", "10.244.2.1"),
			vips:       addrs("203.0.113.1", "203.0.113.2", "203.0.113.3"),
			clusterIPs: addrs("10.96.0.1", "10.96.0.2"),
			open:       netip.MustParseAddr("192.0.2.1"),
			closed:     netip.MustParseAddr("192.0.2.2"),
			snat:       netip.MustParseAddr("10.1.0.1"),
			stale:      netip.MustParseAddr("10.1.0.9"),
			peers:      addrs("192.0.2.11", "192.0.2.12", "192.0.2.13"),
			far:        addrs("10.244.2.1", "10.244.3.1", "10.244.2.9", "10.244.2.129"),
			pod:        netip.MustParseAddr("10.244.1.9"),
			link:       netip.MustParseAddr("169.254.7.7"),
			strangers:  addrs("0.0.0.0", "127.0.0.1", "224.0.0.5", "255.255.255.255", "0.1.2.3", "240.0.0.1", "9.9.9.9"),
			ranges: []netip.Prefix{
				netip.MustParsePrefix("198.51.100.0/30"), netip.MustParsePrefix("198.51.100.4/32"), netip.MustParsePrefix("0.0.0.0/0"),
				netip.MustParsePrefix("203.0.113.0/24"),
			},
		},
		false: {
			clients:    addrs("2001:db8:1::1", "2001:db8:1::2", "2001:db8:1::3", "2001:db8:1::4", "2001:db8:1::5"),
			backends:   addrs("fd02::1", "fd02::2", "fd02::3", "fd02::4", "fd02::5", "fd01::1", "fd03::1"),
			vips:       addrs("2001:db8:2::1", "2001:db8:2::2", "2001:db8:2::3"),
			clusterIPs: addrs("fd96::1", "fd96::2"),
			open:       netip.MustParseAddr("2001:db8::1"),
			closed:     netip.MustParseAddr("2001:db8::2"),
			snat:       netip.MustParseAddr("fd01::1"),
			stale:      netip.MustParseAddr("fd01::9"),
			peers:      addrs("2001:db8::11", "2001:db8::12", "2001:db8::13"),
			far:        addrs("fd03::1", "fd04::1", "fd03::9", "fd03::1:1"),
			pod:        netip.MustParseAddr("fd02::9"),
			link:       netip.MustParseAddr("fe80::7"),
			strangers:  addrs("::", "::1", "ff02::1", "ff0e::1", "::ffff:198.51.100.1", "2001:db8:9::9"),
			ranges: []netip.Prefix{
				netip.MustParsePrefix("2001:db8:1::/126"), netip.MustParsePrefix("2001:db8:1::4/128"), netip.MustParsePrefix("::/0"),
				netip.MustParsePrefix("2001:db8:2::/64"),
			},
		},
	}
}

// podAddrs maps the pods on this node to their devices. The first ones are backends of services,
// the last is not.
var podAddrs = sync.OnceValue(makePodAddrs)

func makePodAddrs() map[netip.Addr]int {
	found := map[netip.Addr]int{}
	for _, p := range pools() {
		for i, addr := range p.pods() {
			found[addr] = firstPod + i
		}
	}
	return found
}

// nodeAddrs returns the addresses of the nodes: this one's, and those of the other nodes but the last.
func nodeAddrs() map[netip.Addr]int {
	found := map[netip.Addr]int{}
	for _, p := range pools() {
		for _, addr := range []netip.Addr{p.open, p.closed, p.snat} {
			found[addr] = thisNode
		}
		for i, addr := range p.peers[:2] {
			found[addr] = thisNode + 1 + i
		}
	}
	return found
}

// sources returns what belongs behind the nodes: their addresses and their pods, of which the second
// of the other nodes has some within a network of the first.
func sources() map[netip.Prefix]int {
	found := map[netip.Prefix]int{}
	for addr, number := range nodeAddrs() {
		found[netip.PrefixFrom(addr, addr.BitLen())] = number
	}
	for addr := range podAddrs() {
		found[netip.PrefixFrom(addr, addr.BitLen())] = thisNode
	}
	for text, number := range map[string]int{"10.244.2.0/24": 2, "10.244.2.128/25": 3, "10.244.3.0/24": 3, "fd03::/64": 2, "fd03::1:0/112": 3, "fd04::/64": 3} {
		found[netip.MustParsePrefix(text)] = number
	}
	return found
}

// firstPod is the device of the first pod; lower devices lead out of the node, and the last one to the
// pods of other nodes.
const (
	firstPod     = 3
	tunnelDevice = firstPod + 3
)

// routes returns the device behind which an address is, and whether the neighbor is resolved, in
// all combinations.
var routes = sync.OnceValue(makeRoutes)

func makeRoutes() map[netip.Addr]Way {
	kinds := []Way{{Device: 1, Dest: MAC{1}}, {Device: 2, Dest: MAC{1}}, {Device: 1}, {Device: 2}, {}}
	found := map[netip.Addr]Way{}
	for _, p := range pools() {
		for _, addr := range p.far {
			found[addr] = Way{Device: tunnelDevice, Dest: MAC{1}}
		}
		for _, list := range [][]netip.Addr{p.clients, p.backends[:5], p.peers} {
			for i, addr := range list {
				found[addr] = kinds[i]
			}
		}
	}
	return found
}
