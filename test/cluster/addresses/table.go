package addresses

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// protocol marks the routes that this package made; the number has no meaning elsewhere.
const protocol netlink.RouteProtocol = 201

// table is the routing table of a network namespace. It only touches routes marked with protocol.
type table struct{ handle *netlink.Handle }

// openTable opens the routing table of the network namespace at path.
func openTable(path string) (*table, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open routing table: %w", err)
	}
	defer file.Close()
	handle, err := netlink.NewHandleAt(netns.NsHandle(file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routing table of %s: %w", path, err)
	}
	return &table{handle}, nil
}

func (t *table) close() { t.handle.Close() }

// apply makes the marked routes equal to want. Each route changes in one step; unchanged routes are
// left alone.
func (t *table) apply(want routes) error {
	have, err := t.routes()
	if err != nil {
		return err
	}
	var problems []error
	for addr, hops := range want {
		if slices.Equal(have[addr], hops) {
			continue
		}
		if err := t.handle.RouteReplace(route(addr, hops)); err != nil {
			problems = append(problems, fmt.Errorf("route %v by %v: %w", addr, hops, err))
		}
	}
	for addr := range have {
		if _, ok := want[addr]; ok {
			continue
		}
		if err := t.handle.RouteDel(&netlink.Route{Dst: single(addr), Protocol: protocol}); err != nil && !errors.Is(err, unix.ESRCH) {
			problems = append(problems, fmt.Errorf("remove route to %v: %w", addr, err))
		}
	}
	return errors.Join(problems...)
}

// routes returns the marked routes, including those of earlier processes.
func (t *table) routes() (routes, error) {
	have := routes{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := t.list(family)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range list {
			addr, ok := netip.AddrFromSlice(r.Dst.IP)
			if !ok {
				continue
			}
			addr = addr.Unmap()
			for _, hop := range append([]*netlink.NexthopInfo{{Gw: r.Gw}}, r.MultiPath...) {
				if via, ok := netip.AddrFromSlice(hop.Gw); ok {
					have[addr] = append(have[addr], via.Unmap())
				}
			}
			slices.SortFunc(have[addr], netip.Addr.Compare)
		}
	}
	return have, nil
}

// list lists the marked routes. It starts again when the kernel reports that the table changed
// during the dump.
func (t *table) list(family int) ([]netlink.Route, error) {
	for {
		list, err := t.handle.RouteListFiltered(family, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
}

// route returns one route over all hops. The router sends the packets of one client to the same
// hop.
func route(addr netip.Addr, hops []netip.Addr) *netlink.Route {
	r := &netlink.Route{Dst: single(addr), Protocol: protocol}
	if len(hops) == 1 {
		r.Gw = hops[0].AsSlice()
		return r
	}
	for _, hop := range hops {
		r.MultiPath = append(r.MultiPath, &netlink.NexthopInfo{Gw: hop.AsSlice()})
	}
	return r
}

func single(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
}
