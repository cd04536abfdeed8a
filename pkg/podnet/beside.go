package podnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/listing"
)

// Pods of another plugin may live beside ours, with addresses of the same network: those that were there when fairlead came. What the
// cluster knows of their addresses it knows some time after they have them, so the node itself is asked too.

const (
	// answerWithin is how long who has an address on this node may take to say so. It takes far less than a millisecond, unless
	// the machine is busy.
	answerWithin = 100 * time.Millisecond
	answerEvery  = 2 * time.Millisecond
)

// occupied returns who on this node has an address of a pool: a route leads to it alone, or it answers on a device that others of
// the pool are behind. Empty is nobody.
func occupied(addr netip.Addr, pool netip.Prefix) (string, error) {
	routes, err := netlink.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) != 1 {
		return "", nil // nothing leads there
	}
	route := routes[0]
	if _, ok := single(route.Dst); ok {
		return fmt.Sprintf("a route leads to it, by device %d", route.LinkIndex), nil
	}
	on, ok := lanOf(&route)
	if !ok || on.prefix.Bits() < pool.Bits() {
		return "", nil
	}
	answers, err := resolve(addr, on.index)
	if err != nil || !answers {
		return "", err
	}
	return fmt.Sprintf("it answers on device %d", on.index), nil
}

// resolve has the kernel ask for an address on a device, and reports whether somebody answers. Asking needs no more than to
// change neighbours.
func resolve(addr netip.Addr, index int) (bool, error) {
	entry := &netlink.Neigh{LinkIndex: index, Family: familyNumber(addr), IP: addr.AsSlice(), Flags: netlink.NTF_USE}
	state, err := neighbourState(addr, index)
	if err != nil || state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
		return err == nil, err
	}
	// What was learnt of who had it before says nothing.
	if err := netlink.NeighDel(entry); err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("forget neighbour %s: %w", addr, err)
	}
	if err := netlink.NeighSet(entry); err != nil {
		return false, fmt.Errorf("ask for neighbour %s: %w", addr, err)
	}
	for began := time.Now(); time.Since(began) < answerWithin; time.Sleep(answerEvery) {
		state, err := neighbourState(addr, index)
		if err != nil || state&(unix.NUD_REACHABLE|unix.NUD_STALE|unix.NUD_DELAY|unix.NUD_PROBE|unix.NUD_PERMANENT) != 0 {
			return err == nil, err
		}
	}
	if err := netlink.NeighDel(entry); err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("forget neighbour %s: %w", addr, err)
	}
	return false, nil
}

// neighbourState returns what the kernel knows of an address behind a device; 0 for nothing.
func neighbourState(addr netip.Addr, index int) (int, error) {
	list, err := listing.Of(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, familyNumber(addr)) })
	if err != nil {
		return 0, fmt.Errorf("list neighbours: %w", err)
	}
	for i := range list {
		if is, ok := netip.AddrFromSlice(list[i].IP); ok && is.Unmap() == addr {
			return list[i].State, nil
		}
	}
	return 0, nil
}

func familyNumber(addr netip.Addr) int {
	if addr.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// lan is a network behind a device, as a plugin's bridge is one. Who is there asks on it for every other address of it.
type lan struct {
	prefix netip.Prefix
	index  int
}

// lanOf returns the network that a route leads to, if it does so without anybody between.
func lanOf(route *netlink.Route) (lan, bool) {
	if route.Dst == nil || len(route.Gw) > 0 || route.Via != nil || route.LinkIndex == 0 || route.Type != unix.RTN_UNICAST {
		return lan{}, false
	}
	addr, ok := netip.AddrFromSlice(route.Dst.IP)
	ones, bits := route.Dst.Mask.Size()
	return lan{netip.PrefixFrom(addr.Unmap(), ones), route.LinkIndex}, ok && ones > 0 && ones < bits
}

// lansOf returns those of IPv4. To answer by IPv6 for others takes a setting of the device, which is its plugin's.
func lansOf(routes []netlink.Route) []lan {
	var list []lan
	for i := range routes {
		if l, ok := lanOf(&routes[i]); ok && l.prefix.Addr().Is4() {
			list = append(list, l)
		}
	}
	return list
}

// beside returns the devices behind which pods of another plugin take an address for one that is there too.
func (n *Network) beside(addr netip.Addr) []int {
	pool := n.leases.poolOf(addr)
	if pool == nil {
		return nil
	}
	var list []int
	for _, l := range n.lans {
		if l.prefix.Contains(addr) && l.prefix.Bits() >= pool.prefix.Bits() {
			list = append(list, l.index)
		}
	}
	return list
}

// answerFor has the node answer for a pod's addresses where pods of another plugin ask for them.
func (n *Network) answerFor(record *Record) error {
	for _, addr := range record.Addresses {
		for _, index := range n.beside(addr) {
			if err := n.rtnl.NeighSet(proxyFor(addr, index)); err != nil && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("answer for %s on device %d: %w", addr, index, err)
			}
		}
	}
	return nil
}

// answerNoMore ends that. What cannot be removed does no harm: the node answers for nobody that it has no other way to.
func (n *Network) answerNoMore(record *Record) {
	for _, addr := range record.Addresses {
		for _, index := range n.beside(addr) {
			if err := n.rtnl.NeighDel(proxyFor(addr, index)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
				n.cfg.Log.Warn("the node still answers for an address whose pod is gone", "address", addr, "device", index, "error", err)
			}
		}
	}
}

func proxyFor(addr netip.Addr, index int) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: index, Family: familyNumber(addr), IP: addr.AsSlice(), Flags: netlink.NTF_PROXY}
}

// answered returns for which addresses the node answers behind which device.
func (n *Network) answered() (map[lan]bool, error) {
	if len(n.lans) == 0 {
		return nil, nil
	}
	list, err := listing.Of(func() ([]netlink.Neigh, error) { return netlink.NeighProxyList(0, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list for whom the node answers: %w", err)
	}
	found := map[lan]bool{}
	for i := range list {
		if addr, ok := netip.AddrFromSlice(list[i].IP); ok {
			found[lan{netip.PrefixFrom(addr.Unmap(), 32), list[i].LinkIndex}] = true
		}
	}
	return found, nil
}

// isAnswered reports whether the node answers for an address wherever it is to.
func (n *Network) isAnswered(addr netip.Addr, answered map[lan]bool) bool {
	return !slices.ContainsFunc(n.beside(addr), func(index int) bool { return !answered[lan{netip.PrefixFrom(addr, addr.BitLen()), index}] })
}
