package twin

import (
	"errors"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// emerge has a frame come out of the tunnel, in a packet from an address or in none.
func (w *kernelNode) emerge(frame []byte, sender netip.Addr) (result, error) {
	if !sender.IsValid() {
		return w.runTC("tc_from_tunnel", frame, w.devices[tunnelDevice])
	}
	if tooShort(frame) {
		return result{verdict: Stack, data: frame}, nil
	}
	code, data, err := w.runProgram(w.fromTunnel, frame, rig.TunnelContext(uint32(w.devices[tunnelDevice].index), sender))
	if err == nil && code == rig.TunnelFailed {
		err = errors.New("the packet could not be given a sender")
	}
	return result{verdict: tcVerdict(code), data: data}, err
}

// setCluster tells the programs about the nodes.
func (w *kernelNode) setCluster(t *Tables) error {
	cluster := maps.Cluster{Known: true, Nodes: map[netip.Addr]maps.ClusterNode{}, Sources: map[netip.Prefix]maps.ClusterNode{}}
	node := func(number int) maps.ClusterNode {
		return maps.ClusterNode{Name: uint64(number), Number: uint32(number), Self: number == w.role.number}
	}
	for addr, number := range t.Nodes {
		cluster.Nodes[addr] = node(number)
	}
	for prefix, number := range t.Sources {
		cluster.Sources[prefix] = node(number)
	}
	_, err := w.maps.SetCluster(cluster)
	return err
}

// sender returns where a packet out of the tunnel came from: mostly the node behind which its source
// belongs.
func (g *generator) sender(source netip.Addr) netip.Addr {
	p := g.pools[g.in100(50)]
	owner := g.node.owner(source)
	switch n := g.IntN(100); {
	case n < 10:
		return pick(g, slices.Concat(p.peers, p.clients[:2], []netip.Addr{p.open, p.snat, p.far[0], p.strangers[0]}))
	case n < 15:
		return netip.Addr{}
	case owner > thisNode:
		return p.peers[owner-thisNode-1]
	}
	return pick(g, p.peers[:2])
}

// toTunnel makes a packet for the port of nodes' tunnels.
func (g *generator) toTunnel(d draft) draft {
	p := g.pools[d.from.Addr().Is4()]
	d.proto, d.to = protoUDP, netip.AddrPortFrom(pick(g, slices.Concat(p.peers, p.strangers,
		[]netip.Addr{p.open, p.closed, p.snat, p.clients[0], p.backends[1], p.pod, p.link})), tunnelPort)
	d.from = netip.AddrPortFrom(d.from.Addr(), pick(g, []uint16{d.from.Port(), 1024, firstTunnelPort - 1, firstTunnelPort, 65535}))
	return d
}

// vxlan is for the tunnel of a node, or for all that hear it.
func (f *forger) vxlan() draft {
	inner := f.inner()
	inner.dest = f.node.MACs[tunnelDevice]
	d := draft{ttl: 64, from: f.own(), to: netip.AddrPortFrom(f.nodes(), tunnelPort), proto: protoUDP,
		payload: append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, inner.bytes()...)}
	if f.in100(30) {
		d.from = netip.AddrPortFrom(d.from.Addr(), uint16(firstTunnelPort+f.IntN(4000)))
	}
	if f.who.from.pod == 0 || !f.who.spoils {
		return d
	}
	p := f.pool()
	if f.in100(30) {
		d.to = netip.AddrPortFrom(pick(f.generator, append(slices.Clone(p.strangers), p.link)), tunnelPort)
	}
	if f.in100(30) && !f.v4 {
		d.from = netip.AddrPortFrom(p.link, d.from.Port())
	}
	f.lengthen(&d)
	return d
}
