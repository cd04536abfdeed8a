package twin

import (
	"math/rand/v2"
	"net/netip"
	"slices"
)

// generator makes up what happens next. It looks at the model to find flows that packets may belong
// to, so its output depends only on the seed, as long as programs and model agree.
type generator struct {
	*rand.Rand
	node  *Node
	pools map[bool]pool
	flows []Flow // of requests; only the latest are remembered
	dials []Flow // the same, for requests of pods
	parts map[position]*parts

	policies *policyTraffic
}

// parts are the fragments that a generator remembers.
type parts struct {
	firsts []draft
	later  []draft // firsts that are still to come, after other fragments of their datagrams
}

// knownFlows is how many flows a generator remembers.
const knownFlows = 160

func newGenerator(seed uint64, node *Node) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 0)), node: node, pools: pools(),
		parts: map[position]*parts{comesIn: {}, fromPod: {}, toPod: {}}, policies: newPolicyTraffic(seed, node)}
}

// serviceCount is the number of services. Every other one has IPv6, and pairs of them take turns
// among TCP, TCP, SCTP and UDP.
const serviceCount = 12

func pick[T any](g *generator, list []T) T { return list[g.IntN(len(list))] }

// in100 returns true n times in a hundred.
func (g *generator) in100(n int) bool { return g.IntN(100) < n }

// setUp returns the operations at the start of an episode.
func (g *generator) setUp() []operation {
	list := []operation{}
	for _, v4 := range []bool{true, false} {
		p := g.pools[v4]
		list = append(list, operation{Node: &nodeChange{Own: p.open, Ports: true}}, operation{Node: &nodeChange{Own: p.closed}},
			operation{Node: &nodeChange{Own: p.snat}}, operation{Node: &nodeChange{Masquerade: p.snat}},
			operation{Node: &nodeChange{Ping: p.vips[0]}})
		for _, addr := range p.backends {
			list = append(list, operation{Hosted: &hostedChange{At: netip.AddrPortFrom(addr, 8080)}})
		}
	}
	list = append(list, operation{NatDevice: &natDeviceChange{Device: 1}}, operation{NatDevice: &natDeviceChange{Device: 2}}, operation{NatDevice: &natDeviceChange{Device: tunnelDevice}})
	for index := 1; index <= serviceCount; index++ {
		list = append(list, g.service(index), g.frontend(index), g.frontend(index), g.frontend(index))
	}
	return list
}

func isV4(service int) bool     { return service%2 == 0 }
func protoOf(service int) uint8 { return []uint8{protoTCP, protoTCP, protoSCTP, protoUDP}[service/2%4] }

// service gives a service other backends, and sometimes other rules.
func (g *generator) service(index int) operation {
	p := g.pools[isV4(index)]
	c := &serviceChange{Index: index}
	s := &c.Service
	s.Algorithm = Algorithm(g.IntN(4))
	s.InternalLocal, s.ExternalLocal = g.in100(20), g.in100(25)
	if g.in100(30) {
		s.Affinity = 3600
	}
	if g.in100(28) {
		s.Direct = pick(g, []Direct{DirectIPIP, DirectGeneve, DirectOpt})
	}
	if s.Ranged = g.in100(35); s.Ranged {
		for range g.IntN(3) {
			c.Ranges = append(c.Ranges, pick(g, p.ranges))
		}
	}
	for i, addr := range p.backends {
		local := addr == p.snat || g.in100(40) // the node's own addresses are always local
		c.Backends = append(c.Backends, Backend{netip.AddrPortFrom(addr, 8080), local})
		for range g.IntN(4) - 1 {
			id := index*backendsEach + i
			if s.Slots[ScopeAll] = append(s.Slots[ScopeAll], id); local {
				s.Slots[ScopeLocal] = append(s.Slots[ScopeLocal], id)
			}
		}
	}
	switch g.IntN(40) {
	case 0, 1:
		s.Slots = [2][]int{}
	case 2:
		s.Broken = TableRace
	case 3:
		s.Broken = BadTable
	}
	return operation{Service: c}
}

// frontend adds or removes a frontend of a service.
func (g *generator) frontend(index int) operation {
	p, kind := g.pools[isV4(index)], Kind(g.IntN(6))
	port := uint16(80 + g.IntN(3))
	var addr netip.Addr
	switch kind {
	case ClusterIP:
		addr = pick(g, p.clusterIPs)
	case NodePort:
		addr, port = anyAddr(p.open), uint16(30000+index)
	case HostPort:
		addr, port = pick(g, []netip.Addr{anyAddr(p.open), p.open, p.closed}), uint16(9000+g.IntN(2))
	default:
		addr = pick(g, p.vips)
	}
	return operation{Frontend: &frontendChange{
		Key: Key{netip.AddrPortFrom(addr, port), protoOf(index)}, Frontend: Frontend{index, kind}, Gone: g.in100(10), Closed: g.in100(10),
	}}
}

// nextOrPolicies returns what happens next at a node with policies.
func (g *generator) nextOrPolicies() operation {
	if g.policies.in100(50) {
		return g.policies.next()
	}
	return g.next()
}

// next returns what happens next.
func (g *generator) next() operation {
	switch n := g.IntN(1000); {
	case n < 12:
		return g.service(1 + g.IntN(serviceCount))
	case n < 24:
		return g.frontend(1 + g.IntN(serviceCount))
	case n < 60:
		return g.flowChange()
	case n < 64:
		return g.visitChange()
	case n < 67:
		return g.nodeChange()
	case n < 68:
		return g.routeChange()
	case n < 72:
		return g.hostedChange()
	case n < 74:
		return operation{RouteEpoch: &epochChange{Changed: int32(g.IntN(4) - 2), Followed: int32(g.IntN(4) - 1), RangeEpochs: pick(g, []int32{-2, -2, -2, -1, 0, 1})}}
	}
	if len(g.node.Open) > g.node.Room-4 && g.in100(15) {
		return g.flowChange()
	}
	if g.in100(20) {
		return g.podPacket()
	}
	return g.packet()
}

func (g *generator) flowChange() operation {
	flow, ok := g.known(g.flows)
	if g.in100(20) {
		flow, ok = g.known(g.dials)
	}
	if !ok {
		return g.packet()
	}
	row := g.rowOf(flow)
	if row != nil && row.Direct != DirectOff && g.in100(30) {
		return operation{Flow: &flowChange{flow, "outlive"}}
	}
	if row != nil && row.Direct == DirectOff && g.in100(50) {
		flow = row.back(flow.Proto)
	}
	what := "age"
	switch n := g.IntN(100); {
	case n < 3:
		what = "tear"
	case n < 45:
		what = "evict"
	}
	return operation{Flow: &flowChange{flow, what}}
}

func (g *generator) visitChange() operation {
	index := 1 + g.IntN(serviceCount)
	p := g.pools[isV4(index)]
	return operation{Visit: &visitChange{pick(g, append(p.pods(), p.clients...)), index, g.in100(70)}}
}

func (g *generator) nodeChange() operation {
	p := g.pools[g.in100(50)]
	switch g.IntN(5) {
	case 0:
		return operation{Node: &nodeChange{Masquerade: p.stale}}
	case 1, 2:
		return operation{Node: &nodeChange{Masquerade: p.snat}}
	case 3:
		return operation{Node: &nodeChange{Own: pick(g, []netip.Addr{p.open, p.closed}), Ports: g.in100(50), Gone: g.in100(20)}}
	}
	return operation{Node: &nodeChange{Ping: pick(g, p.vips), Gone: g.in100(30)}}
}

// hostedChange adds and removes backends, the devices on which they answer, and the cluster's
// inside prefixes.
func (g *generator) hostedChange() operation {
	if g.in100(25) {
		inside := &insideChange{}
		for _, v4 := range []bool{true, false} {
			if g.in100(50) {
				inside.Prefixes = append(inside.Prefixes, pick(g, g.pools[v4].ranges))
			}
		}
		return operation{Inside: inside}
	}
	if g.in100(25) {
		ranges := &insideChange{}
		for _, v4 := range []bool{true, false} {
			if g.in100(70) {
				addr := pick(g, slices.Concat(g.pools[v4].vips, g.pools[v4].strangers, g.pools[v4].clients))
				bits := addr.BitLen() - pick(g, []int{0, 8})
				prefix, _ := addr.Prefix(bits)
				ranges.Prefixes = append(ranges.Prefixes, prefix)
			}
		}
		return operation{ClusterIPs: ranges}
	}
	if g.in100(20) {
		return operation{NatDevice: &natDeviceChange{Device: 1 + g.IntN(2), Gone: g.in100(40)}}
	}
	at := netip.AddrPortFrom(pick(g, g.pools[g.in100(50)].backends), uint16(8080+g.IntN(2)))
	return operation{Hosted: &hostedChange{At: at, Service: max(0, g.IntN(3*serviceCount)-2*serviceCount), Gone: g.in100(40)}}
}

// routeChange moves the last client or the last backend of a family, so that each kind of route
// stays covered.
func (g *generator) routeChange() operation {
	p := g.pools[g.in100(50)]
	return operation{Route: &routeChange{pick(g, []netip.Addr{p.clients[0], p.backends[1]}), g.IntN(3), g.in100(70)}}
}

// known returns the request of an earlier flow, mostly of one that still exists.
func (g *generator) known(list []Flow) (Flow, bool) {
	if len(list) == 0 {
		return Flow{}, false
	}
	flow := pick(g, list)
	for tries := 0; tries < 3 && g.rowOf(flow) == nil; tries++ {
		flow = pick(g, list)
	}
	return flow, true
}

func (g *generator) rowOf(flow Flow) *Row {
	if row := g.node.Open[flow]; row != nil {
		return row
	}
	return g.node.Pending[flow]
}

// dialed returns the request of a new flow from a client outside or a pod, more often than not to
// a frontend.
func (g *generator) dialed(byPod bool) Flow {
	index := 1 + g.IntN(serviceCount)
	v4 := isV4(index)
	p := g.pools[v4]
	clients := p.clients
	if byPod {
		clients = p.pods()
	}
	from := netip.AddrPortFrom(pick(g, clients), uint16(4000+g.IntN(12)))
	if g.in100(3) {
		from = netip.AddrPortFrom(pick(g, p.strangers), from.Port())
	}
	if !byPod && g.in100(8) {
		from = netip.AddrPortFrom(pick(g, p.far), from.Port())
	}
	proto := protoOf(index)
	for range 6 {
		var port uint16
		addr := pick(g, append([]netip.Addr{p.open, p.open, p.open, p.closed, p.clusterIPs[0], p.backends[0]}, p.vips...))
		switch addr {
		case p.open, p.closed:
			port = pick(g, []uint16{uint16(30000 + index), uint16(30000 + index), 9000, 9001})
		default:
			port = uint16(80 + g.IntN(3))
		}
		flow := Flow{from, netip.AddrPortFrom(addr, port), proto}
		if _, ok := g.node.frontend(flow, byPod); ok || g.in100(3) {
			return flow
		}
	}
	return Flow{from, netip.AddrPortFrom(p.open, 22), proto}
}
