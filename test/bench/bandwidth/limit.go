package main

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

// limit is a queueing discipline with a rate in bytes per second. It is attached to the device by
// which packets leave the node, where fairlead attaches its own.
type limit struct {
	name string
	put  func(index int, rate uint64) error
}

const class = 1 // of HTB, shared by all pods

var limits = []limit{
	{"HTB", func(index int, rate uint64) error { return putHTB(index, rate) }}, // its leaf is the kernel's default: pfifo with the device's queue length
	{"HTB with fq_codel", func(index int, rate uint64) error {
		if err := putHTB(index, rate); err != nil {
			return err
		}
		return netlink.QdiscAdd(netlink.NewFqCodel(netlink.QdiscAttrs{
			LinkIndex: index, Parent: netlink.MakeHandle(1, class), Handle: netlink.MakeHandle(2, 0),
		}))
	}},
	{"TBF", putTBF},
}

// putHTB attaches a tree with a single default class and no filters, so that the cost measured is
// that of HTB itself.
func putHTB(index int, rate uint64) error {
	root := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)})
	root.Defcls = class
	if err := netlink.QdiscAdd(root); err != nil {
		return err
	}
	return netlink.ClassAdd(netlink.NewHtbClass(
		netlink.ClassAttrs{LinkIndex: index, Parent: netlink.MakeHandle(1, 0), Handle: netlink.MakeHandle(1, class)},
		netlink.HtbClassAttrs{Rate: 8 * rate, Ceil: 8 * rate},
	))
}

// putTBF attaches a queue of 25 ms, like the CNI plugin "bandwidth", with a burst as large as
// fairlead allows a pod, and room for a merged packet.
func putTBF(index int, rate uint64) error {
	burst := max(rate/50, 1<<16)
	return netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       rate, Limit: uint32(rate/40 + burst), Buffer: netlink.Xmittime(rate, uint32(burst)),
	})
}

// during calls do while the queue is attached to eth0 of a namespace.
func (l *limit) during(ns *rig.Netns, rate uint64, do func() error) (err error) {
	at := func(f func(index int) error) error {
		return ns.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return f(link.Attrs().Index)
		})
	}
	if err := at(func(index int) error { return l.put(index, rate) }); err != nil {
		return fmt.Errorf("attach %s to eth0: %w", l.name, err)
	}
	if err := do(); err != nil {
		return err
	}
	return at(func(index int) error {
		return netlink.QdiscDel(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0),
		}})
	})
}
