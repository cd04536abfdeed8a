package queues

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/listing"
)

// handle is what queues of ours are known by. What the kernel made by itself has none, so nobody misses it: once ours is
// gone it makes another. A queue with any other handle somebody wanted.
const handle = 0xfa1e

// The kinds of queues that are known here.
const (
	kindFq = "fq"
	kindMq = "mq" // has one of its own for each of the device's
)

// queue is what a device has packets wait in.
type queue struct {
	root  netlink.Qdisc
	parts map[uint32]netlink.Qdisc // by the number of the device's queue, from 1, where the root has one for each
}

// readQueues returns the queues of all devices, by index.
func readQueues() (map[int]*queue, error) {
	list, err := listing.Of(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) })
	if err != nil {
		return nil, fmt.Errorf("list the queues of devices: %w", err)
	}
	all := map[int]*queue{}
	for _, q := range list { // a root comes before its parts
		at := q.Attrs()
		if all[at.LinkIndex] == nil {
			all[at.LinkIndex] = &queue{parts: map[uint32]netlink.Qdisc{}}
		}
		switch major, minor := netlink.MajorMinor(at.Parent); {
		case at.Parent == netlink.HANDLE_ROOT:
			all[at.LinkIndex].root = q
		case all[at.LinkIndex].root != nil && netlink.MakeHandle(major, 0) == all[at.LinkIndex].root.Attrs().Handle:
			all[at.LinkIndex].parts[uint32(minor)] = q
		}
	}
	return all, nil
}

func (q *queue) isOurs() bool {
	return q != nil && q.root != nil && q.root.Attrs().Handle == netlink.MakeHandle(handle, 0)
}

// keep makes a device have a queue that keeps packets until their time and has that much room, or says why it is not to have one.
func (q *queue) keep(link netlink.Link, want room) (why string, err error) {
	if q != nil && q.root != nil && !q.isOurs() && q.root.Attrs().Handle != 0 {
		if q.paces(link.Attrs().NumTxQueues) { // of somebody who has set it up for this, or will wonder
			return "", nil
		}
		return fmt.Sprintf("its queue is %s, which somebody has set up: fairlead leaves it alone; \"tc qdisc del dev %s root\" removes it",
			q.root.Type(), link.Attrs().Name), nil
	}
	for _, one := range q.lacking(link, want) {
		if err := netlink.QdiscReplace(one); err != nil {
			if errors.Is(err, unix.ENOENT) {
				return "this kernel has no fq: that needs CONFIG_NET_SCH_FQ", nil
			}
			return "", fmt.Errorf("give device %s a queue of %s: %w", link.Attrs().Name, one.Type(), err)
		}
	}
	for _, one := range q.cramped(want) {
		if err := netlink.QdiscChange(one); err != nil {
			return "", fmt.Errorf("give the queue of device %s room for %d packets: %w", link.Attrs().Name, want.all, err)
		}
	}
	return "", nil
}

// paces reports whether packets wait in it until their time, by whichever of so many queues of the device they leave.
func (q *queue) paces(queues int) bool {
	if q.root.Type() != kindMq {
		return q.root.Type() == kindFq
	}
	for i := 1; i <= queues; i++ {
		if part := q.parts[uint32(i)]; part == nil || part.Type() != kindFq {
			return false
		}
	}
	return true
}

// cramped returns those of a queue of ours that have too little room, or far too much, as they should be. Where much waits nothing loses its room.
func (q *queue) cramped(want room) (list []netlink.Qdisc) {
	if !q.isOurs() {
		return nil
	}
	for _, one := range append(slices.Collect(maps.Values(q.parts)), q.root) {
		fq, ok := one.(*netlink.Fq)
		if !ok {
			continue
		}
		has, to := room{fq.PacketLimit, fq.FlowPacketLimit}, want
		if waiting(fq) > want.flow {
			to = room{max(has.all, want.all), max(has.flow, want.flow)}
		}
		if to == has || want.fits(has) {
			continue
		}
		changed := netlink.NewFq(netlink.QdiscAttrs{LinkIndex: fq.LinkIndex, Handle: fq.Handle, Parent: fq.Parent})
		changed.PacketLimit, changed.FlowPacketLimit = to.all, to.flow
		list = append(list, changed)
	}
	return list
}

// lacking returns what the device's queue is to be made of and is not.
func (q *queue) lacking(link netlink.Link, room room) (want []netlink.Qdisc) {
	index := link.Attrs().Index
	fq := func(handle, parent uint32) netlink.Qdisc {
		one := netlink.NewFq(netlink.QdiscAttrs{LinkIndex: index, Handle: handle, Parent: parent})
		one.PacketLimit, one.FlowPacketLimit = room.all, room.flow
		return one
	}
	own, queues := netlink.MakeHandle(handle, 0), link.Attrs().NumTxQueues
	if queues <= 1 {
		if !q.isOurs() || q.root.Type() != kindFq {
			want = append(want, fq(own, netlink.HANDLE_ROOT))
		}
		return want
	}
	if !q.isOurs() || q.root.Type() != kindMq {
		q = nil
		want = append(want, &netlink.GenericQdisc{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: own, Parent: netlink.HANDLE_ROOT}, QdiscType: kindMq,
		})
	}
	for i := 1; i <= queues; i++ {
		if q == nil || q.parts[uint32(i)] == nil || q.parts[uint32(i)].Type() != kindFq {
			want = append(want, fq(0, netlink.MakeHandle(handle, uint16(i))))
		}
	}
	return want
}

// remove takes a queue of ours away.
func (q *queue) remove() error {
	if !q.isOurs() {
		return nil
	}
	if err := netlink.QdiscDel(q.root); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("take the queue of device %d away: %w", q.root.Attrs().LinkIndex, err)
	}
	return nil
}

// waiting returns how many packets are in a queue.
func waiting(q netlink.Qdisc) uint32 {
	if s := q.Attrs().Statistics; s != nil && s.Queue != nil {
		return s.Queue.Qlen
	}
	return 0
}

// dropped returns how many packets have found no room in it.
func (q *queue) dropped() uint64 {
	if q == nil || q.root == nil {
		return 0
	}
	if s := q.root.Attrs().Statistics; s != nil && s.Queue != nil {
		return uint64(s.Queue.Drops)
	}
	return 0
}
