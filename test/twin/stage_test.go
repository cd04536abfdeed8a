package twin

import (
	"errors"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
)

// What the honest ends use.
const (
	clientPort  = 4000
	clientPorts = 5
	lentFirst   = 60000 // the node lends these
	lentLast    = 60063
	tunnelPort  = 8472
	serverPort  = 7 // of servers outside

	// of services whose backends answer clients directly, by how packets are forwarded to them
	viaGeneve, viaIPIP, viaOption = 82, 83, 84
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
	everywhere := []netip.Addr{p.backends[0], p.far[0], p.peers[0]}
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
	add(p.vips[1], viaGeneve, protoTCP, LoadBalancer, everywhere)
	add(p.vips[1], viaIPIP, protoUDP, LoadBalancer, everywhere)
	add(p.vips[1], viaOption, protoSCTP, LoadBalancer, everywhere)
	add(p.vips[2], 80, protoTCP, LoadBalancer, []netip.Addr{p.pod})
	return fronts, kinds, backends
}

// directOf returns how nodes forward what is for a frontend.
func directOf(front Key) Direct {
	return map[uint16]Direct{viaGeneve: DirectGeneve, viaIPIP: DirectIPIP, viaOption: DirectOpt}[front.At.Port()]
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

// stage gives the node of an empty test what the honest use.
func (r *run) stage() error {
	list := []operation{{Inside: &insideChange{Prefixes: podNetworks()}}}
	native := podNetworks()
	for _, v4 := range []bool{true, false} {
		p := pools()[v4]
		for i, addr := range r.kernel.role.own[v4] {
			list = append(list, operation{Node: &nodeChange{Own: addr, Ports: i == 0}})
		}
		list = append(list, operation{Node: &nodeChange{Masquerade: r.kernel.role.masks(v4)}})
		for _, addr := range slices.Concat(p.pods(), r.kernel.role.own[v4]) {
			native = append(native, netip.PrefixFrom(addr, addr.BitLen()))
		}
		list = append(list, r.kernel.role.serviceOperations(v4)...)
	}
	for _, device := range []int{1, 2, tunnelDevice} {
		list = append(list, operation{NatDevice: &natDeviceChange{Device: device}})
	}
	for _, o := range list {
		if err := r.apply(o); err != nil {
			return err
		}
	}
	_, err := r.kernel.maps.SetNative(native)
	return errors.Join(err, r.host())
}

// podNetworks returns what every node knows of the others: where their pods' addresses are from.
func podNetworks() (list []netip.Prefix) {
	for prefix := range sources() {
		if !prefix.IsSingleIP() {
			list = append(list, prefix)
		}
	}
	return list
}

// host tells the programs which backends of which services are on the node.
func (r *run) host() error {
	svcs, row := r.kernel.tables.Svcs, maps.Svc{Service: 1, Kind: maps.Hosted}
	for _, v4 := range []bool{true, false} {
		_, _, backends := honestServices(v4)
		for i, list := range backends {
			for _, addr := range list {
				if !r.kernel.role.has(addr) {
					continue
				}
				key := maps.HostedKey(netip.AddrPortFrom(addr, 8080), uint32(serviceIndex(i, v4)))
				if err := errors.Join(svcs.Update(key, row), svcs.Update(maps.HostedAddrKey(addr), row)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// serviceIndex returns the index of a service by its place in the list of its family.
func serviceIndex(i int, v4 bool) int {
	if v4 {
		return 2 + 2*i
	}
	return 1 + 2*i
}

func (s *clusterNode) serviceOperations(v4 bool) (list []operation) {
	fronts, kinds, backends := honestServices(v4)
	for i, front := range fronts {
		index := serviceIndex(i, v4)
		c := &serviceChange{Index: index, Service: Service{Algorithm: Maglev, Direct: directOf(front)}}
		for n, addr := range backends[i] {
			local := s.has(addr)
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
