package main

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

// limit is a queue that lets through so many bytes a second. It is put at the device by which a node's packets leave, where fairlead
// has its own.
type limit struct {
	name string
	put  func(index int, rate uint64) error
}

const class = 1 // of HTB, for all of the pods

var limits = []limit{
	{"HTB", func(index int, rate uint64) error { return putHTB(index, rate) }}, // its leaf is what the kernel makes: pfifo, as long as the device says
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

// putHTB makes a tree with one class, which everything is of: no filter, so that what HTB takes is HTB's own.
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

// putTBF makes a queue of 25 ms, as the plugin "bandwidth" of CNI has it, with what a pod of fairlead may make up for in a burst, and
// room for a merged packet.
func putTBF(index int, rate uint64) error {
	burst := max(rate/50, 1<<16)
	return netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       rate, Limit: uint32(rate/40 + burst), Buffer: netlink.Xmittime(rate, uint32(burst)),
	})
}

// during does something while the queue is at a namespace's eth0.
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
		return fmt.Errorf("put %s at eth0: %w", l.name, err)
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
