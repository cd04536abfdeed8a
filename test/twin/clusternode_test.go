package twin

import (
	"net/netip"
	"slices"
)

// clusterNode is which of the cluster's nodes a kernelNode is.
type clusterNode struct {
	number int
	pods   map[netip.Addr]int // the devices of its pods
	own    map[bool][]netip.Addr
}

func firstClusterNode() clusterNode {
	own := map[bool][]netip.Addr{}
	for v4, p := range pools() {
		own[v4] = []netip.Addr{p.open, p.closed, p.snat}
	}
	return clusterNode{number: thisNode, pods: podAddrs(), own: own}
}

// secondClusterNode is the node behind which the first and the third of the far pods are. The latter is an
// attacker's.
func secondClusterNode() clusterNode {
	s := clusterNode{number: thisNode + 1, pods: map[netip.Addr]int{}, own: map[bool][]netip.Addr{}}
	for v4, p := range pools() {
		s.pods[p.far[0]], s.pods[p.far[2]] = firstPod, firstPod+2
		s.own[v4] = p.peers[:1]
	}
	return s
}

// masks returns the address that clients get from a node.
func (s *clusterNode) masks(v4 bool) netip.Addr {
	own := s.own[v4]
	return own[len(own)-1]
}

func (s *clusterNode) owns(addr netip.Addr) bool { return slices.Contains(s.own[addr.Is4()], addr) }

// has reports whether an address is a pod's or the node's own.
func (s *clusterNode) has(addr netip.Addr) bool { return s.pods[addr] > 0 || s.owns(addr) }

// belongs returns the number of the node behind which an address is; zero if it is outside.
func belongs(addr netip.Addr) int {
	t := Tables{Sources: sources()}
	return t.owner(addr)
}

// deviceTo returns the device behind which an address is: that of the tunnel for pods of other nodes.
func (s *clusterNode) deviceTo(addr netip.Addr) (device int, ok bool) {
	if _, pod := podAddrs()[addr]; pod {
		return tunnelDevice, true
	}
	if first := firstClusterNode(); first.owns(addr) {
		return 1, true
	}
	way, ok := routes()[addr]
	return way.Device, ok && way.Device > 0
}

// nodes are two nodes that send to each other.
type nodes struct{ here, there *kernelNode }

func (n *nodes) at(there bool) *kernelNode {
	if there {
		return n.there
	}
	return n.here
}

// travel has a frame pass the node that it reaches first, and the other one if it goes there.
func (n *nodes) travel(frame []byte, from end, mark uint32) (end, error) {
	at := n.at(from.there)
	to, err := at.journey(frame, from, mark)
	for to.there = from.there; err == nil && len(to.frame) >= 14 && to.device > 0 && !to.crossed; {
		dest, ok := destOf(to.frame)
		if next := n.at(!to.there); !ok || belongs(dest) != next.role.number {
			break
		}
		sender := at.role.own[true][0]
		frame, tunneled := slices.Clone(to.frame), to.tunneled
		d := at.devices[to.device]
		copy(frame, d.mac[:])
		copy(frame[6:], d.peer[:])
		at = n.at(!to.there)
		there := !to.there
		if to, err = at.journey(frame, end{device: to.device, sender: sender}, 0); to.tunneled == nil {
			to.tunneled = tunneled
		}
		to.there, to.crossed = there, true
	}
	return to, err
}

// destOf returns where a frame goes that is whole enough to say so.
func destOf(frame []byte) (netip.Addr, bool) {
	_, to := (&step{frame: frame}).saysIP()
	return to, to.IsValid()
}
