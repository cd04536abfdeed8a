package rig

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Veth connects two namespaces: interface ifA in a to interface ifB in b, both up.
func Veth(t T, a *Netns, ifA string, b *Netns, ifB string) {
	t.Helper()
	if err := ConnectVeth(a, ifA, b, ifB); err != nil {
		t.Fatalf("%v", err)
	}
}

// ConnectVeth connects two namespaces: interface ifA in a to interface ifB in b, both up. The pair is removed with
// either namespace.
func ConnectVeth(a *Netns, ifA string, b *Netns, ifB string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = ifA
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: ifB, PeerNamespace: netlink.NsFd(b.FD())}
	if err := a.handle.LinkAdd(pair); err != nil {
		return fmt.Errorf("create veth %s in %s - %s in %s: %w", ifA, a, ifB, b, err)
	}
	if err := a.setUp(ifA); err != nil {
		return err
	}
	return b.setUp(ifB)
}

// Address gives the interface addresses such as 10.0.0.1/24 or fd00::1/64.
func Address(t T, n *Netns, ifname string, prefixes ...string) {
	t.Helper()
	for _, text := range prefixes {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			t.Fatalf("%v", err)
		}
		if err := n.AddAddr(ifname, prefix); err != nil {
			t.Fatalf("%v", err)
		}
	}
}

// Route adds a route to dst, such as 10.96.0.0/12 or ::/0, through the gateway via.
func Route(t T, n *Netns, dst, via string) {
	t.Helper()
	prefix, err := netip.ParsePrefix(dst)
	if err != nil {
		t.Fatalf("%v", err)
	}
	addr, err := netip.ParseAddr(via)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := n.AddRoute(prefix, addr); err != nil {
		t.Fatalf("%v", err)
	}
}

// AddAddr gives the interface an address. The address is usable when AddAddr returns.
func (n *Netns) AddAddr(ifname string, prefix netip.Prefix) error {
	link, err := n.handle.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("find interface %s in %s: %w", ifname, n, err)
	}
	addr := &netlink.Addr{IPNet: ipNet(prefix)}
	add := func() error { return n.handle.AddrAdd(link, addr) }
	if prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
		if link.Attrs().Flags&net.FlagUp != 0 {
			add = func() error { return n.addLocal6(link, addr) }
		}
	}
	if err := add(); err != nil {
		return fmt.Errorf("add address %s to %s in %s: %w", prefix, ifname, n, err)
	}
	return nil
}

// localTimeout is how long an address may take to become usable.
const localTimeout = 10 * time.Second

// addLocal6 adds an IPv6 address and waits for its route: the kernel leaves adding the route to a
// worker, even without duplicate address detection, and on a busy machine that takes a while.
// addLocal6 polls rather than listens, since Linux 6.1 once did not announce that route.
func (n *Netns) addLocal6(link netlink.Link, addr *netlink.Addr) error {
	if err := n.handle.AddrAdd(link, addr); err != nil {
		return err
	}
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		routes, err := n.handle.RouteGet(addr.IP)
		if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
		if time.Since(begin) > localTimeout {
			return fmt.Errorf("no local route after %v: %v, %v", localTimeout, routes, err)
		}
	}
}

// AddRoute adds a route to dst through the gateway via.
func (n *Netns) AddRoute(dst netip.Prefix, via netip.Addr) error {
	route := &netlink.Route{Dst: ipNet(dst.Masked()), Gw: via.AsSlice()}
	if err := n.handle.RouteAdd(route); err != nil {
		return fmt.Errorf("add route to %s via %s in %s: %w", dst, via, n, err)
	}
	return nil
}

func (n *Netns) setUp(ifname string) error {
	link, err := n.handle.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("find interface %s in %s: %w", ifname, n, err)
	}
	if err := n.handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up interface %s in %s: %w", ifname, n, err)
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{
		IP:   prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}
}
