package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

// reboot ends a node as a loss of power does, and starts it: what it has on its disk is there, and what was in its memory,
// its network and its kernel is not.
func (c *Cluster) reboot(name string) error {
	i := slices.Index(c.nodeNames(), name) + 1
	if i == 0 {
		return fmt.Errorf("reboot %q: it is none of the nodes %v", name, c.nodeNames())
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return inOrder(
		func() error { return c.cgroups.Remove(c.name(name)) },
		func() error { return removeNetns(netnsPath(c.name(name))) },
		func() error { return c.reconnect(i) },
		func() error { return c.cgroups.Create(c.name(name), "init", "system") },
		func() error { return c.startInit(name) },
		func() error { return c.masqueradePods(name) },
		func() error { return c.restartRuntime(name) },
		func() error {
			if c.Bare {
				return nil
			}
			return c.startKubelet(i)
		},
	)
}

// reconnect gives a node another network namespace, connected as the one before.
func (c *Cluster) reconnect(i int) (err error) {
	name := nodeName(i)
	router, err := rig.OpenNetns("router", netnsPath(c.name("router")))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, router.Close()) }()
	own, err := rig.CreateNetns(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }() // the name keeps it
	n := &network{c: c, router: router}
	return inOrder(
		func() error { return unplug(router, name) },
		func() error { return ignoreRedirects(own) },
		func() error { return forward(own) },
		func() error { return n.attach(own, c.Family.Node(i)) },
		func() error {
			if c.CNI != "bridge" {
				return nil
			}
			return c.routePods(own)
		},
		func() error { return nameNetns(own, netnsPath(c.name(name))) },
	)
}

// unplug removes a port of the router, which the kernel may do by itself some time after the other end is gone.
func unplug(router *rig.Netns, port string) error {
	return router.Do(func() error {
		link, err := netlink.LinkByName(port)
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if missing := (netlink.LinkNotFoundError{}); err != nil && !errors.As(err, &missing) {
			return fmt.Errorf("unplug %s: %w", port, err)
		}
		return nil
	})
}
