package twin

import (
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
)

// Resets at any time, and those that come when the connection they are about is not half open.
const earlyReset, lateReset = "reset", "reset of what is established"

// What is for a server outside, to take one more of the ports that the node lends there.
const takePorts = "crowd"

// What only makes sense at the node that is meant.
const pastNode, pastTunnel, onLink = "pod's address", "far pod's address", "neighbor"

// attacker is somebody who sends packets between those of honest ends.
type attacker struct {
	name string
	from end // its pod, or the device that its packets come in by

	// kinds are what it can send. Each makes a frame, or says with a zero frame that this time it
	// has none.
	kinds map[string]func(*forger) draft

	// owns reports whether its network lets it send from an address. What it has from another that
	// reaches somebody is forged. Nil: its network filters nothing, so nobody can tell.
	owns func(netip.Addr) bool

	proxy  maps.Proxy // its pod's proxy, which is not there: nothing may open a connection
	crowds bool       // it takes all ports that the node lends
	spoils bool       // it also sends what is broken, with any fields of its socket buffer
}

// The attackers. Pod 5 of this node is the attacker's, and its service the tenant's: an accomplice
// of all others.
func attackers() []attacker {
	pod := end{pod: firstPod + 2}
	ofPod := func(addr netip.Addr) bool { return podAddrs()[addr] == pod.pod }
	ofOther := func(addr netip.Addr) bool { return addr == farPod(addr.Is4()) || addr == pools()[addr.Is4()].peers[0] }
	sockets := map[string]func(*forger) draft{
		"plain": (*forger).plain, "geneve in UDP": (*forger).geneve, "vxlan in UDP": (*forger).vxlan, takePorts: (*forger).crowd,
	}
	raw := map[string]func(*forger) draft{
		"plain": (*forger).plain, "geneve in UDP": (*forger).geneve, "vxlan in UDP": (*forger).vxlan, "ipip": (*forger).ipip,
		"option": (*forger).option, "forged": (*forger).forged, "message": (*forger).message, "part": (*forger).part,
		"neighbor": (*forger).neighbor, "reset": (*forger).reset, "extended": (*forger).extended, takePorts: (*forger).crowd,
	}
	routed := map[string]func(*forger) draft{
		"plain": (*forger).plain, "geneve in UDP": (*forger).geneve, "vxlan in UDP": (*forger).vxlan, "ipip": (*forger).ipip,
		"option": (*forger).option, "message": (*forger).message, "part": (*forger).part, "extended": (*forger).extended,
	}
	return []attacker{
		// Ordinary sockets: UDP, TCP and echoes from its own address, with any content.
		{name: "a pod", from: pod, kinds: sockets, owns: ofPod, crowds: true},
		// Any frame at its own device.
		{name: "a pod with CAP_NET_RAW", from: pod, kinds: raw, owns: ofPod, spoils: true, crowds: true},
		// A process in a pod whose connections must go to a proxy.
		{name: "a pod with a proxy", from: pod, kinds: map[string]func(*forger) draft{"plain": (*forger).plain, "extended": (*forger).extended, "part": (*forger).part},
			owns: ofPod, proxy: maps.Proxy{Asked: true, Port: 15001}},
		// The same as the first on another node: its packets come from its own address, or from its node's.
		{name: "a pod of another node", from: end{pod: firstPod + 2, there: true}, kinds: sockets, owns: ofOther, crowds: true},
		// Any packet from its own address, to whatever is routed to the node.
		{name: "a routed outsider", from: end{device: 1}, kinds: routed, owns: isNobodys},
		// The same, and floods from addresses that are not its own but nobody's here.
		{name: "a flood", from: end{device: 1}, kinds: map[string]func(*forger) draft{"open": (*forger).open}, crowds: true},
		// Who does not see an honest connection guesses its addresses and ports, as networks that do
		// not filter sources let him, and has to guess its sequence numbers.
		{name: "a blind host", from: end{device: 1}, kinds: map[string]func(*forger) draft{
			earlyReset: (*forger).reset, lateReset: (*forger).reset}},
		// Any frame on the link but those of other nodes and of honest hosts: a switch that lets
		// these through makes it one of them.
		{name: "a neighbor", from: end{device: 1}, kinds: map[string]func(*forger) draft{
			pastNode: (*forger).asPod, pastTunnel: (*forger).asFarPod, onLink: (*forger).neighbor, "plain": (*forger).plain}, spoils: true, owns: isNobodys},
	}
}

// outsideHost returns the attacker's host outside.
func outsideHost(v4 bool) netip.Addr {
	p := pools()[v4]
	return p.clients[3]
}

// farPod returns the attacker's pod on another node.
func farPod(v4 bool) netip.Addr { return pools()[v4].far[2] }

// isNobodys reports whether an address is none of the cluster's or of an honest end, so that a
// network may let an attacker send from it.
func isNobodys(addr netip.Addr) bool {
	p := pools()[addr.Is4()]
	known := slices.Concat(p.clients[:2], p.pods(), p.vips, p.clusterIPs, p.far, nodesOf(addr.Is4()))
	return !slices.Contains(known, addr)
}

// forger makes the packets of an attacker.
type forger struct {
	*generator
	who attacker
	v4  bool
}

func (f *forger) pool() *pool {
	p := f.pools[f.v4]
	return &p
}

// own returns the attacker's address, with some port.
func (f *forger) own() netip.AddrPort {
	addr := outsideHost(f.v4)
	switch {
	case f.who.from.there:
		addr = farPod(f.v4)
	case f.who.from.pod > 0:
		addr = f.pool().pod
	}
	return netip.AddrPortFrom(addr, pick(f.generator, []uint16{8080, 4000, 4001, 6081, 8472, uint16(1024 + f.IntN(60000))}))
}

// target returns an address that is worth attacking.
func (f *forger) target() netip.AddrPort {
	p := f.pool()
	list := append(slices.Clone(p.vips), p.open, p.open, p.closed, p.snat, p.clusterIPs[0], p.backends[0], p.far[0], p.backends[3],
		p.clients[0], p.clients[1], p.peers[0], p.pod)
	port := pick(f.generator, []uint16{80, 81, 53, viaGeneve, viaIPIP, viaOption, 8080, 30001, 30002, 4000 + uint16(f.IntN(4)), f.lent()})
	return netip.AddrPortFrom(pick(f.generator, list), port)
}

// lent returns a port that the node lends.
func (f *forger) lent() uint16 { return lentFirst + uint16(f.IntN(lentLast-lentFirst+1)) }

// honest returns the addresses of a packet between honest ends, as it is before the node or behind
// it, in either direction.
func (f *forger) honest() (from, to netip.AddrPort, proto uint8) {
	p := f.pool()
	client := netip.AddrPortFrom(pick(f.generator, []netip.Addr{p.clients[0], p.clients[1], p.backends[0], p.backends[3]}), clientPort+uint16(f.IntN(clientPorts)))
	way := pick(f.generator, honestWays(f.v4))
	from, to = client, way.front
	switch f.IntN(5) {
	case 0:
		from, to = to, from
	case 1: // masqueraded
		way = pick(f.generator, outsideServers(f.v4))
		from, to = netip.AddrPortFrom(p.snat, f.lent()), way.front
		if f.in100(70) {
			from, to = to, from
		}
	case 2: // behind the node
		to = netip.AddrPortFrom(pick(f.generator, []netip.Addr{p.backends[0], p.far[0], p.backends[3]}), 8080)
		if f.in100(50) {
			from = netip.AddrPortFrom(p.snat, f.lent())
		}
		if f.in100(50) {
			from, to = to, from
		}
	}
	return from, to, way.proto
}

// base is a packet with everything drawn at random but its addresses.
func (f *forger) base(from, to netip.AddrPort, proto uint8) draft {
	d := draft{ttl: 64, whole: f.in100(50), seq: f.Uint32(), ack: f.Uint32(), from: from, to: to, proto: proto, payload: make([]byte, f.size())}
	for i := range d.payload {
		d.payload[i] = byte(f.Uint32())
	}
	d.flags = pick(f.generator, []byte{SYN, SYN, ACK, SYN | ACK, FIN | ACK, RST, RST | ACK})
	return d
}

func (f *forger) plain() draft {
	proto := pick(f.generator, []uint8{protoTCP, protoTCP, protoUDP, protoUDP, protoSCTP, protoICMP})
	if proto == protoSCTP && f.who.from.pod > 0 && !f.who.spoils {
		proto = protoUDP
	}
	d := f.base(f.own(), f.target(), proto)
	if proto == protoICMP {
		p := f.ping()
		for p.from.Addr().Is4() != f.v4 {
			p = f.ping()
		}
		p.from, p.payload[0] = netip.AddrPortFrom(d.from.Addr(), 0), map[bool]byte{true: 8, false: 128}[f.v4]
		return p
	}
	return d
}

func (f *forger) open() draft {
	p := f.pool()
	from := netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), uint16(1024+f.IntN(60000)))
	if !f.v4 {
		from = netip.AddrPortFrom(netip.MustParseAddr("2001:db8:9::1"), from.Port())
	}
	d := f.base(from, netip.AddrPortFrom(p.vips[0], 81), protoTCP)
	d.flags, d.payload = SYN, nil
	return d
}

// crowd is the first packet to a server that honest pods use too.
func (f *forger) crowd() draft {
	way := pick(f.generator, outsideServers(f.v4)[:2])
	d := f.base(netip.AddrPortFrom(f.own().Addr(), uint16(1024+f.IntN(60000))), way.front, way.proto)
	d.flags, d.payload = SYN, nil
	return d
}

// inner makes what an encapsulation is to deliver: as if an honest client had sent it.
func (f *forger) inner() draft {
	from, to, proto := f.honest()
	d := f.base(from, to, proto)
	d.payload = d.payload[:min(len(d.payload), 200)]
	d.dest, d.source = f.node.MACs[1], MAC{2, 0, 0, 0, 1, 2}
	return d
}

// accomplice returns the backend that a forwarded packet names: mostly the attacker's own.
func (f *forger) accomplice() netip.AddrPort {
	p := f.pool()
	return netip.AddrPortFrom(pick(f.generator, []netip.Addr{p.pod, p.pod, p.backends[0], p.backends[3], p.far[0], p.far[2], p.peers[0]}), 8080)
}

// nodes returns an address of a node.
func (f *forger) nodes() netip.Addr {
	p := f.pool()
	return pick(f.generator, []netip.Addr{p.open, p.closed, p.snat, p.peers[0], p.peers[1]})
}

func (f *forger) geneve() draft {
	backend := f.accomplice()
	d := f.inGeneve(f.inner(), f.own().Addr(), backend)
	if d.extensions, d.kinds, d.options, d.more = nil, nil, 0, false; f.in100(30) {
		d.to = netip.AddrPortFrom(f.nodes(), d.to.Port())
	}
	return d
}

func (f *forger) ipip() draft {
	d := f.inIPIP(f.inner(), f.own().Addr(), f.accomplice())
	if f.in100(30) {
		d.to = netip.AddrPortFrom(f.nodes(), d.to.Port())
	}
	return d
}

func (f *forger) option() draft {
	d := f.inner()
	if f.who.owns != nil {
		d.from = netip.AddrPortFrom(f.own().Addr(), d.from.Port())
	}
	return f.withOption(d, f.accomplice())
}

// forged is what another would send.
func (f *forger) forged() draft {
	from, to, proto := f.honest()
	return f.base(from, to, proto)
}

// reset is the same, to end a connection.
func (f *forger) reset() draft {
	d := f.forged()
	d.proto, d.flags = protoTCP, pick(f.generator, []byte{RST, RST | ACK})
	d.payload = nil
	return d
}

// asPod is what a pod of this node would send, if it were there.
func (f *forger) asPod() draft {
	p := f.pool()
	d := f.base(netip.AddrPortFrom(pick(f.generator, p.pods()), 8080), f.target(), pick(f.generator, []uint8{protoTCP, protoUDP}))
	return d
}

// asFarPod is what a pod of another node would send to pods and services here, but past the tunnel.
func (f *forger) asFarPod() draft {
	p := f.pool()
	d := f.base(netip.AddrPortFrom(pick(f.generator, p.far), 8080), f.target(), pick(f.generator, []uint8{protoTCP, protoUDP}))
	for slices.Contains(p.clients, d.to.Addr()) { // that is their network's business
		d.to = f.target()
	}
	return d
}

// message is an error about what an honest end sent.
func (f *forger) message() draft {
	e, _ := f.errorAbout(f.forged(), false)
	e.from = netip.AddrPortFrom(f.own().Addr(), 0)
	return e
}

func (f *forger) part() draft {
	d := f.plain()
	for d.proto == protoICMP {
		d = f.plain()
	}
	d.from = f.own()
	if f.who.spoils && f.in100(50) {
		d.from, d.to, _ = f.honest()
		d.proto = protoUDP
	}
	return f.fragment(d, f.parts[comesIn])
}

// neighbor is what hosts and routers say on a link.
func (f *forger) neighbor() draft {
	d := f.base(f.own(), f.target(), protoUDP)
	switch {
	case !f.v4:
		return f.aboutLink(d)
	case f.who.from.pod > 0:
		return f.wrong(d)
	}
	return d
}

// extended has as many headers in front as are parsed, or more.
func (f *forger) extended() draft {
	d := f.plain()
	if f.v4 {
		d.options = 1 + f.IntN(10)
		return d
	}
	if f.in100(10) {
		d.payload, d.extensions, d.kinds = nil, [][]byte{append([]byte{0, 128}, make([]byte, 1030)...)}, []byte{60}
	}
	for range 1 + f.IntN(9) {
		d.extensions, d.kinds = append(d.extensions, make([]byte, 8)), append(d.kinds, pick(f.generator, []byte{0, 43, 60}))
	}
	return d
}

// strike is one packet of an attack.
type strike struct {
	step  int // the honest step that it comes before
	kind  string
	frame []byte
	mark  uint32
	there bool // it comes in at the other node
}

// strike makes a packet of one of the kinds.
func (f *forger) strike(w *kernelNode, kinds []string) strike {
	for {
		kind := pick(f.generator, kinds)
		if slices.Contains(kinds, takePorts) && f.in100(50) { // it takes many to take all
			kind = takePorts
		}
		f.v4 = f.in100(50)
		d := f.who.kinds[kind](f)
		if !d.from.IsValid() || d.from.Addr().Is4() != d.to.Addr().Is4() {
			continue
		}
		wrong := d.source != (MAC{}) && f.in100(10)
		if source := d.source; true {
			w.address(&d, f.who.from)
			if wrong && f.who.spoils {
				d.source = source
			}
		}
		s := strike{kind: kind, frame: d.bytes()}
		s.there = f.who.from.pod == 0 && !slices.Contains([]string{pastNode, pastTunnel, onLink}, kind) && f.in100(40)
		if f.who.spoils {
			s.mark = f.Uint32()
			if f.in100(5) {
				s.frame = f.spoil(s.frame)
			}
			if f.in100(1) {
				s.frame = f.arp()
			}
		}
		if len(s.frame) >= 14+20 && len(s.frame) <= 1280 {
			return s
		}
	}
}

// arp says that somebody else's address is the attacker's.
func (f *forger) arp() []byte {
	p := f.pools[true]
	frame := slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, f.who.from.hardware(f.node), []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2})
	frame = slices.Concat(frame, f.who.from.hardware(f.node), p.backends[0].AsSlice(), make([]byte, 6), p.open.AsSlice())
	return append(frame, make([]byte, 18)...)
}

func (e end) hardware(n *Node) []byte {
	if e.pod > 0 {
		mac := n.PodMACs[e.pod]
		return mac[:]
	}
	return []byte{2, 0, 0, 0, byte(e.device), 2}
}
