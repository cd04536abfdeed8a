package twin

import (
	"net/netip"
	"slices"
)

// What the honest ends use.
const (
	clientPort  = 4000
	clientPorts = 5
	lentFirst   = 60000 // the node lends these
	lentLast    = 60063
	tunnelPort  = 8472
	serverPort  = 7 // of servers outside
)

// honestWay is a frontend that honest clients dial.
type honestWay struct {
	front netip.AddrPort
	proto uint8
}

// honestServices returns the services of the honest, by their index: what is dialed, and who
// answers. The accomplice's service is the last one.
func honestServices(v4 bool) (fronts []Key, kinds []Kind, backends [][]netip.Addr) {
	p := pools()[v4]
	near, far := []netip.Addr{p.backends[0], p.backends[3]}, []netip.Addr{p.far[0]}
	add := func(addr netip.Addr, port uint16, proto uint8, kind Kind, of []netip.Addr) {
		fronts, kinds, backends = append(fronts, Key{netip.AddrPortFrom(addr, port), proto}), append(kinds, kind), append(backends, of)
	}
	add(p.vips[0], 80, protoTCP, LoadBalancer, near)
	add(p.vips[0], 81, protoTCP, LoadBalancer, far)
	add(p.vips[0], 53, protoUDP, LoadBalancer, slices.Concat(near, far))
	add(p.vips[0], 80, protoSCTP, LoadBalancer, near)
	add(anyAddr(p.open), 30001, protoTCP, NodePort, near)
	add(p.clusterIPs[0], 80, protoTCP, ClusterIP, slices.Concat(near, far))
	add(p.clusterIPs[0], 53, protoUDP, ClusterIP, far)
	add(p.vips[2], 80, protoTCP, LoadBalancer, []netip.Addr{p.pod})
	return fronts, kinds, backends
}

// honestWays returns what honest clients of a family dial.
func honestWays(v4 bool) (ways []honestWay) {
	fronts, kinds, _ := honestServices(v4)
	p := pools()[v4]
	for i, front := range fronts[:len(fronts)-1] {
		at := front.At
		if kinds[i] == NodePort {
			at = netip.AddrPortFrom(p.open, at.Port())
		}
		ways = append(ways, honestWay{at, front.Proto})
	}
	return append(append(ways, honestWay{netip.AddrPortFrom(p.backends[3], 8080), protoTCP}), outsideServers(v4)...)
}

// outsideServers returns the servers outside, to which pods' packets are masqueraded.
func outsideServers(v4 bool) []honestWay {
	p := pools()[v4]
	return []honestWay{{netip.AddrPortFrom(p.clients[0], serverPort), protoUDP}, {netip.AddrPortFrom(p.clients[1], serverPort), protoTCP},
		{netip.AddrPortFrom(p.clients[0], serverPort), protoSCTP}}
}

// stage gives the node of an empty world what the honest use.
func (r *run) stage() error {
	var list []operation
	var native []netip.Prefix
	for _, v4 := range []bool{true, false} {
		p := pools()[v4]
		list = append(list, operation{Node: &nodeChange{Own: p.open, Ports: true}}, operation{Node: &nodeChange{Own: p.closed}},
			operation{Node: &nodeChange{Own: p.snat}}, operation{Node: &nodeChange{Masquerade: p.snat}})
		for _, addr := range p.pods() {
			list = append(list, operation{Hosted: &hostedChange{At: netip.AddrPortFrom(addr, 8080)}})
		}
		for _, addr := range slices.Concat(p.backends, p.far, []netip.Addr{p.pod, p.open, p.closed}) {
			native = append(native, netip.PrefixFrom(addr, addr.BitLen()))
		}
		list = append(list, serviceOperations(v4)...)
	}
	for _, device := range []int{1, 2, tunnelDevice} {
		list = append(list, operation{Served: &servedChange{Device: device}})
	}
	for _, o := range list {
		if err := r.apply(o); err != nil {
			return err
		}
	}
	_, err := r.world.maps.SetNative(native)
	return err
}

func serviceOperations(v4 bool) (list []operation) {
	fronts, kinds, backends := honestServices(v4)
	for i, front := range fronts {
		index := 1 + 2*i
		if v4 {
			index++
		}
		c := &serviceChange{Index: index, Service: Service{Algorithm: Maglev}}
		for n, addr := range backends[i] {
			_, local := podAddrs()[addr]
			id := index*backendsEach + n
			c.Backends = append(c.Backends, Backend{netip.AddrPortFrom(addr, 8080), local})
			c.Service.Slots[ScopeAll] = append(c.Service.Slots[ScopeAll], id)
			if local {
				c.Service.Slots[ScopeLocal] = append(c.Service.Slots[ScopeLocal], id)
			}
		}
		list = append(list, operation{Service: c},
			operation{Frontend: &frontendChange{Key: front, Frontend: Frontend{index, kinds[i]}}})
	}
	return list
}
