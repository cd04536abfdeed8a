package twin

import "net/netip"

// podPacket makes a packet that a pod sends or that goes to one.
func (g *generator) podPacket() operation {
	d, at := g.podDraft()
	switch n := g.IntN(1000); {
	case n < 80:
		d, at = g.errorOfPod(d, at)
	case n < 100:
		// On the way to a pod, nothing answers a pod's ping to a service's address.
		if d, at = g.ping(), fromPod; g.in100(20) {
			at = toPod
		}
		d.from = netip.AddrPortFrom(pick(g, g.podsLike(d.to.Addr())), 0)
	case n < 220:
		d = g.fragment(d, g.parts[at])
	case n < 225:
		d.tags = 1 + g.IntN(3)
	}
	if at == fromPod && g.in100(3) {
		d = g.toTunnel(d)
	}
	if at == fromPod && d.tags == 0 && g.in100(4) {
		d = g.tunneled(d)
	}
	pod := g.node.Pods[d.to.Addr()]
	if at == fromPod {
		pod = g.node.Pods[d.from.Addr()]
	}
	if pod == 0 || g.in100(1) { // it is for no pod, or its sender uses another pod's address
		pod = firstPod + g.IntN(3)
	}
	d.dest, d.source = g.node.MACs[pod], g.node.PodMACs[pod]
	if at == fromPod && g.in100(5) {
		d = g.wrong(d)
	}
	frame := d.bytes()
	if g.in100(4) {
		frame = g.spoil(frame)
	}
	if len(frame) > 14+g.node.MTU[pod] || tooShort(frame) { // larger than the link's MTU, or too short for a test run
		return g.podPacket()
	}
	return operation{Pod: &podFrame{Frame: frame, Pod: pod, To: at == toPod, Past: g.in100(50), Silent: g.in100(5)}}
}

// tunneled puts what a pod sends into a tunnel of its own, which may look like a node's.
func (g *generator) tunneled(d draft) draft {
	to := netip.AddrPortFrom(pick(g, g.pools[d.from.Addr().Is4()].backends), 8080)
	switch g.IntN(3) {
	case 0:
		return g.inGeneve(d, d.from.Addr(), to)
	case 1:
		return g.withOption(d, to)
	}
	return g.inIPIP(d, d.from.Addr(), to)
}

// podsLike returns the pods of an address's family.
func (g *generator) podsLike(addr netip.Addr) []netip.Addr {
	p := g.pools[addr.Is4()]
	return p.pods()
}

// podDraft makes an ordinary packet of a flow that a pod began, mostly to a service, in either
// direction.
func (g *generator) podDraft() (draft, position) {
	flow, ok := g.known(g.dials)
	if !ok || g.in100(20) {
		flow = g.dialed(true)
		if g.in100(8) {
			p := g.pools[flow.Source.Addr().Is4()]
			flow.Dest = netip.AddrPortFrom(pick(g, append(append(p.pods(), p.clients...), p.strangers...)), flow.Dest.Port())
		}
		if g.dials = append(g.dials, flow); len(g.dials) > knownFlows/2 {
			g.dials = g.dials[1:]
		}
	}
	row := g.rowOf(flow)
	if row == nil || !row.Inside || !g.in100(45) {
		return g.draftOf(flow, false), fromPod
	}
	at := toPod
	if _, ok := g.node.Pods[row.Dest.Addr()]; ok && (row.Own || g.in100(50)) { // at the device of the pod that answers
		at = fromPod
	}
	if g.in100(3) {
		at = toPod
	}
	d := g.draftOf(flow, true)
	if at == fromPod && g.in100(10) { // the right device for one pod, the wrong one for another
		d.payload = make([]byte, 1330+g.IntN(110))
	}
	return d, at
}

// errorOfPod makes an error about a packet, which comes from where the packet went.
func (g *generator) errorOfPod(d draft, at position) (draft, position) {
	row := g.rowOf(Flow{d.from, d.to, d.proto})
	e, _ := g.errorAbout(d, false)
	_, byPod := g.node.Pods[e.from.Addr()]
	switch {
	case at == toPod, row != nil && row.Own, byPod && g.in100(50):
		return e, fromPod
	}
	return e, toPod
}

// wrong has a pod send what it must not.
func (g *generator) wrong(d draft) draft {
	p := g.pools[d.from.Addr().Is4()]
	switch g.IntN(7) {
	case 0:
		d.source[5] ^= 1 << g.IntN(8)
	case 1:
		d.from = netip.AddrPortFrom(pick(g, append(append(p.pods(), p.clients...), p.strangers...)), d.from.Port())
	case 2:
		d.proto, d.from = protoUDP, netip.AddrPortFrom(d.from.Addr(), pick(g, []uint16{67, 547}))
	case 3:
		d.to = netip.AddrPortFrom(pick(g, p.strangers[1:2]), d.to.Port())
	case 4:
		d.proto, d.from, d.to = protoUDP, netip.AddrPortFrom(anyAddr(d.from.Addr()), 68), netip.AddrPortFrom(p.broadcast(), 67)
	default:
		return g.aboutLink(d)
	}
	return d
}

// aboutLink makes what hosts say to neighbors, or what routers say.
func (g *generator) aboutLink(d draft) draft {
	p := g.pools[false]
	if d.from.Addr().Is4() {
		return d
	}
	d.proto, d.extensions, d.kinds = protoICMPv6, nil, nil
	d.payload = append([]byte{byte(128 + g.IntN(18)), 0, 0, 0, 0, 0, 0, 0}, pick(g, append(p.pods(), p.link)).AsSlice()...)
	if g.in100(5) {
		d.payload = d.payload[:8+g.IntN(16)]
	}
	if g.in100(50) {
		d.from = netip.AddrPortFrom(pick(g, []netip.Addr{p.link, netip.IPv6Unspecified()}), 0)
	}
	if g.in100(70) {
		d.to = netip.AddrPortFrom(pick(g, []netip.Addr{p.link, p.strangers[2]}), 0)
	}
	return d
}
