package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// netnsPath returns the path of a named namespace, the same that ip netns uses.
func netnsPath(name string) string { return filepath.Join("/run/netns", name) }

// network holds the namespaces of a cluster while they are made.
type network struct {
	c       *Cluster
	router  *rig.Netns
	control *rig.Netns
	outside *rig.Netns
	nodes   []*rig.Netns
}

// makeNetwork creates the namespaces, connects them and names them.
func (c *Cluster) makeNetwork() (err error) {
	n := &network{c: c}
	made := map[string]*rig.Netns{}
	defer func() {
		for _, ns := range made {
			err = errors.Join(err, ns.Close()) // the name keeps the namespace alive
		}
	}()
	for _, part := range c.parts() {
		if made[part], err = rig.CreateNetns(part); err != nil {
			return err
		}
		if err := ignoreRedirects(made[part]); err != nil {
			return err
		}
	}
	n.router, n.control, n.outside = made["router"], made["control"], made["outside"]
	for _, name := range c.nodeNames() {
		n.nodes = append(n.nodes, made[name])
	}
	if err := inOrder(n.makeBridge, n.connectOutside, n.connectInside, n.routePods, n.routeBalancers); err != nil {
		return err
	}
	for part, ns := range made {
		if err := nameNetns(ns, netnsPath(c.name(part))); err != nil {
			return err
		}
	}
	return nil
}

// parts returns the parts of the cluster that have a network namespace.
func (c *Cluster) parts() []string {
	return append([]string{"router", "control", "outside"}, c.nodeNames()...)
}

// makeBridge makes the network that connects nodes, control plane and router.
func (n *network) makeBridge() error {
	err := n.router.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "underlay"
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		link, err := netlink.LinkByName(attrs.Name)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	if err != nil {
		return fmt.Errorf("create bridge: %w", err)
	}
	return inOrder(
		func() error { return forward(n.router) },
		func() error { return balance(n.router) },
		func() error { return addAddrs(n.router, "underlay", n.c.Family.Router()) },
	)
}

func (n *network) connectOutside() error {
	return inOrder(
		func() error { return rig.ConnectVeth(n.router, "outside", n.outside, "eth0") },
		func() error { return addAddrs(n.router, "outside", n.c.Family.OutsideRouter()) },
		func() error { return addAddrs(n.outside, "eth0", n.c.Family.Outside()) },
		func() error { return addDefaults(n.outside, n.c.Family.OutsideRouter()) },
	)
}

// connectInside attaches the control plane and the nodes to the bridge.
func (n *network) connectInside() error {
	if err := n.attach(n.control, n.c.Family.Control()); err != nil {
		return err
	}
	for i, node := range n.nodes {
		err := inOrder(
			func() error { return forward(node) },
			func() error { return n.attach(node, n.c.Family.Node(i+1)) },
		)
		if err != nil {
			return err
		}
	}
	return nil
}

func (n *network) attach(ns *rig.Netns, addrs []netip.Prefix) error {
	port := ns.String()
	if err := rig.ConnectVeth(n.router, port, ns, "eth0"); err != nil {
		return err
	}
	err := n.router.Do(func() error {
		bridge, err := netlink.LinkByName("underlay")
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		return netlink.LinkSetMaster(link, bridge)
	})
	if err != nil {
		return fmt.Errorf("put %s on the bridge: %w", port, err)
	}
	if err := addAddrs(ns, "eth0", addrs); err != nil {
		return err
	}
	return addDefaults(ns, n.c.Family.Router())
}

// routePods adds routes to the pods for the control plane, which is on no node but connects to
// pods, and with the bridge plugin also for the nodes. The outside has no route to pods.
func (n *network) routePods() error {
	if err := n.c.routePods(n.control); err != nil || n.c.CNI != "bridge" {
		return err
	}
	for _, node := range n.nodes {
		if err := n.c.routePods(node); err != nil {
			return err
		}
	}
	return nil
}

// routePods adds routes to the pods of all nodes but the namespace's own.
func (c *Cluster) routePods(from *rig.Netns) error {
	for i, name := range c.nodeNames() {
		if from.String() == name {
			continue
		}
		for k, pods := range c.Family.NodePods(i + 1) {
			if err := from.AddRoute(pods, c.Family.Node(i + 1)[k].Addr()); err != nil {
				return err
			}
		}
	}
	return nil
}

// routeBalancers makes the control plane, where the specs run, an outside client of Services of
// type LoadBalancer.
func (n *network) routeBalancers() error {
	if err := addAddrs(n.control, "lo", n.c.Family.Caller()); err != nil {
		return err
	}
	for i, caller := range n.c.Family.Caller() {
		if err := n.router.AddRoute(caller, n.c.Family.Control()[i].Addr()); err != nil {
			return err
		}
		to, gateway := n.c.Family.Balancers()[i], n.c.Family.Router()[i].Addr()
		err := n.control.Do(func() error {
			return netlink.RouteAdd(&netlink.Route{
				Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())},
				Gw:  gateway.AsSlice(), Src: caller.Addr().AsSlice(),
			})
		})
		if err != nil {
			return fmt.Errorf("add route to %s from %s: %w", to, caller, err)
		}
	}
	return nil
}

// forward lets a namespace forward packets, and accept them from sources that it has no route to,
// whatever the distribution's settings are.
func forward(ns *rig.Netns) error {
	return set(ns, [][2]string{
		{"net/ipv4/ip_forward", "1"}, {"net/ipv6/conf/all/forwarding", "1"}, {"net/ipv6/conf/default/forwarding", "1"},
		{"net/ipv4/conf/all/rp_filter", "0"}, {"net/ipv4/conf/default/rp_filter", "0"},
	})
}

// balance makes a router choose among several next hops per connection, not per client.
func balance(router *rig.Netns) error {
	return set(router, [][2]string{{"net/ipv4/fib_multipath_hash_policy", "1"}, {"net/ipv6/fib_multipath_hash_policy", "1"}})
}

// ignoreRedirects keeps ICMP redirects from bypassing the router: the next hop of today may be
// wrong tomorrow, and a host that accepted a redirect remembers it for minutes.
func ignoreRedirects(ns *rig.Netns) error {
	return set(ns, [][2]string{
		{"net/ipv4/conf/all/send_redirects", "0"}, {"net/ipv4/conf/default/send_redirects", "0"},
		{"net/ipv4/conf/all/accept_redirects", "0"}, {"net/ipv4/conf/default/accept_redirects", "0"},
		{"net/ipv6/conf/all/accept_redirects", "0"}, {"net/ipv6/conf/default/accept_redirects", "0"},
	})
}

func set(ns *rig.Netns, settings [][2]string) error {
	for _, setting := range settings {
		if err := ns.SetSysctl(setting[0], setting[1]); err != nil {
			return fmt.Errorf("set %s in %s: %w", setting[0], ns, err)
		}
	}
	return nil
}

func addAddrs(ns *rig.Netns, link string, addrs []netip.Prefix) error {
	for _, addr := range addrs {
		if err := ns.AddAddr(link, addr); err != nil {
			return err
		}
	}
	return nil
}

// addDefaults adds default routes by way of the given addresses.
func addDefaults(ns *rig.Netns, via []netip.Prefix) error {
	for _, gateway := range via {
		all := netip.PrefixFrom(gateway.Addr(), 0).Masked()
		if err := ns.AddRoute(all, gateway.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// nameNetns gives a namespace a name, by which it outlives this program.
func nameNetns(ns *rig.Netns, path string) error {
	if err := shareNames(filepath.Dir(path)); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("name network namespace: %w", err)
	}
	file.Close()
	if err := unix.Mount(ns.Path(), path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("name network namespace %s: %w", path, err)
	}
	return nil
}

// shareNames makes the directory of the names a shared mount, as ip netns does before it adds its
// first name. If that were left to ip netns, its mount would cover the names that exist by then,
// and nobody could remove them.
func shareNames(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("name network namespace: %w", err)
	}
	err := unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount yet
		err = errors.Join(unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""), unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, ""))
	}
	if err != nil {
		return fmt.Errorf("name network namespace: make %s a shared mount: %w", dir, err)
	}
	return nil
}

// removeNetns removes the name of a namespace; the kernel removes the namespace once nothing uses
// it. It is no error if the namespace does not exist.
func removeNetns(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // not mounted, or does not exist
		return fmt.Errorf("remove network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove network namespace: %w", err)
	}
	return nil
}
