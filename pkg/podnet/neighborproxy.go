package podnet

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
)

// Pods of another plugin, from before fairlead was installed, may live beside ours with addresses
// of the same network. The cluster learns their addresses only some time after the pods have them,
// so the node itself is asked too.

const (
	// answerWithin is how long a pod on this node may take to answer for its address. It takes far
	// less than a millisecond unless the machine is busy.
	answerWithin = 100 * time.Millisecond
	answerEvery  = 2 * time.Millisecond
)

// occupied returns how an address of a pool is in use on this node: a host route leads to it, or
// something answers for it on a device that carries other addresses of the pool. It returns "" if
// the address is not in use.
func occupied(addr netip.Addr, pool netip.Prefix) (string, error) {
	routes, err := netlink.RouteGetWithOptions(addr.AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil || len(routes) != 1 {
		return "", nil // no route leads there
	}
	route := routes[0]
	if _, ok := single(route.Dst); ok {
		return fmt.Sprintf("a route leads to it through device %d", route.LinkIndex), nil
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

// resolve makes the kernel resolve an address on a device, and reports whether anything answers.
// Going through the neighbor table takes no privilege beyond changing neighbors.
func resolve(addr netip.Addr, index int) (bool, error) {
	entry := &netlink.Neigh{LinkIndex: index, Family: familyNumber(addr), IP: addr.AsSlice(), Flags: netlink.NTF_USE}
	state, err := neighborState(addr, index)
	if err != nil || state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
		return err == nil, err
	}
	// An entry learned from an earlier holder of the address proves nothing.
	if err := netlink.NeighDel(entry); err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("forget neighbor %s: %w", addr, err)
	}
	if err := netlink.NeighSet(entry); err != nil {
		return false, fmt.Errorf("ask for neighbor %s: %w", addr, err)
	}
	for began := time.Now(); time.Since(began) < answerWithin; time.Sleep(answerEvery) {
		state, err := neighborState(addr, index)
		if err != nil || state&(unix.NUD_REACHABLE|unix.NUD_STALE|unix.NUD_DELAY|unix.NUD_PROBE|unix.NUD_PERMANENT) != 0 {
			return err == nil, err
		}
	}
	if err := netlink.NeighDel(entry); err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("forget neighbor %s: %w", addr, err)
	}
	return false, nil
}

// neighborState returns the state of the kernel's neighbor entry for an address on a device, or 0
// if there is none.
func neighborState(addr netip.Addr, index int) (int, error) {
	list, err := devices.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(index, familyNumber(addr)) })
	if err != nil {
		return 0, fmt.Errorf("list neighbors: %w", err)
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

// lan is a network directly behind a device, such as a plugin's bridge. Pods there resolve every
// other address of the network on that device.
type lan struct {
	prefix netip.Prefix
	index  int
}

// lanOf returns the network that a route leads to if it does so without a gateway.
func lanOf(route *netlink.Route) (lan, bool) {
	if route.Dst == nil || len(route.Gw) > 0 || route.Via != nil || route.LinkIndex == 0 || route.Type != unix.RTN_UNICAST {
		return lan{}, false
	}
	addr, ok := netip.AddrFromSlice(route.Dst.IP)
	ones, bits := route.Dst.Mask.Size()
	return lan{netip.PrefixFrom(addr.Unmap(), ones), route.LinkIndex}, ok && ones > 0 && ones < bits
}

// lansOf returns the IPv4 networks. Proxying for IPv6 takes a sysctl of the device (proxy_ndp),
// which belongs to the other plugin.
func lansOf(routes []netlink.Route) []lan {
	var list []lan
	for i := range routes {
		if l, ok := lanOf(&routes[i]); ok && l.prefix.Addr().Is4() {
			list = append(list, l)
		}
	}
	return list
}

// neighborProxies are the entries by which the node answers for its pods toward pods of another
// plugin.
type neighborProxies struct {
	rtnl   *netlink.Handle
	leases *leases
	lans   []lan // networks of other plugins, as of the last scan
	log    *slog.Logger
}

// onLink returns the devices on which pods of another plugin take an address to be directly
// reachable.
func (p *neighborProxies) onLink(addr netip.Addr) []int {
	pool := p.leases.poolOf(addr)
	if pool == nil {
		return nil
	}
	var list []int
	for _, l := range p.lans {
		if l.prefix.Contains(addr) && l.prefix.Bits() >= pool.prefix.Bits() {
			list = append(list, l.index)
		}
	}
	return list
}

// answerFor adds proxy neighbors, so that the node answers when pods of another plugin resolve a
// pod's addresses.
func (p *neighborProxies) answerFor(record *Record) error {
	for _, addr := range record.Addresses {
		for _, index := range p.onLink(addr) {
			if err := p.rtnl.NeighSet(proxyFor(addr, index)); err != nil && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("answer for %s on device %d: %w", addr, index, err)
			}
		}
	}
	return nil
}

// answerNoMore removes the proxy neighbors of a pod. One that stays does no harm: the node answers
// only for addresses that it has a route to by another device.
func (p *neighborProxies) answerNoMore(record *Record) {
	for _, addr := range record.Addresses {
		for _, index := range p.onLink(addr) {
			if err := p.rtnl.NeighDel(proxyFor(addr, index)); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
				p.log.Warn("cannot stop answering for the address of a pod that is gone",
					"address", addr, "device", index, "error", err)
			}
		}
	}
}

func proxyFor(addr netip.Addr, index int) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: index, Family: familyNumber(addr), IP: addr.AsSlice(), Flags: netlink.NTF_PROXY}
}

// answered returns the proxy neighbors that exist, each as a single address and its device.
func (p *neighborProxies) answered() (map[lan]bool, error) {
	if len(p.lans) == 0 {
		return nil, nil
	}
	list, err := devices.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighProxyList(0, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list proxy neighbors: %w", err)
	}
	found := map[lan]bool{}
	for i := range list {
		if addr, ok := netip.AddrFromSlice(list[i].IP); ok {
			found[lan{netip.PrefixFrom(addr.Unmap(), 32), list[i].LinkIndex}] = true
		}
	}
	return found, nil
}

// isAnswered reports whether the node has every proxy neighbor that an address needs.
func (p *neighborProxies) isAnswered(addr netip.Addr, answered map[lan]bool) bool {
	return !slices.ContainsFunc(p.onLink(addr), func(index int) bool { return !answered[lan{netip.PrefixFrom(addr, addr.BitLen()), index}] })
}
