package queues

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
)

// handle marks our queues. Those that the kernel makes by itself have handle 0, and replacing them
// loses nothing, since the kernel makes another once ours is gone. A queue with any other handle
// was set up by somebody.
const handle = 0xfa1e

// The kinds of queues that matter here.
const (
	kindFq = "fq"
	kindMq = "mq" // contains one for each transmit queue of the device
)

// queue is a device's queueing discipline.
type queue struct {
	root  netlink.Qdisc
	parts map[uint32]netlink.Qdisc // of an mq, by the number of the transmit queue, from 1
}

// readQueues returns the queues of all devices, by device index.
func readQueues() (map[int]*queue, error) {
	list, err := devices.Dump(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) })
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

// ensure gives a device a queue with that much room that holds packets until their time, or returns
// why the device is not to have one.
func (q *queue) ensure(link netlink.Link, want room) (why string, err error) {
	if q != nil && q.root != nil && !q.isOurs() && q.root.Attrs().Handle != 0 {
		if q.paces(link.Attrs().NumTxQueues) { // somebody else's, but it does what is needed
			return "", nil
		}
		return fmt.Sprintf("somebody has set up its queue %s, which fairlead leaves alone; "+
			"to let fairlead replace it, run \"tc qdisc del dev %s root\"",
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

// paces reports whether the queue holds packets until their time, for all of the device's transmit
// queues.
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

// cramped returns those of our queues that have too little room, or far too much, with the room
// that they should have. A queue in which much waits is never shrunk.
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
		if fq.Horizon == horizon && (to == has || want.fits(has)) {
			continue
		}
		changed := netlink.NewFq(netlink.QdiscAttrs{LinkIndex: fq.LinkIndex, Handle: fq.Handle, Parent: fq.Parent})
		changed.PacketLimit, changed.FlowPacketLimit, changed.Horizon = to.all, to.flow, horizon
		list = append(list, changed)
	}
	return list
}

// lacking returns the queues that the device should have and does not.
func (q *queue) lacking(link netlink.Link, room room) (want []netlink.Qdisc) {
	index := link.Attrs().Index
	fq := func(handle, parent uint32) netlink.Qdisc {
		one := netlink.NewFq(netlink.QdiscAttrs{LinkIndex: index, Handle: handle, Parent: parent})
		one.PacketLimit, one.FlowPacketLimit, one.Horizon = room.all, room.flow, horizon
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

// remove removes the queue if it is ours.
func (q *queue) remove() error {
	if !q.isOurs() {
		return nil
	}
	if err := netlink.QdiscDel(q.root); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove the queue of device %d: %w", q.root.Attrs().LinkIndex, err)
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

// dropped returns how many packets the queue had no room for.
func (q *queue) dropped() uint64 {
	if q == nil || q.root == nil {
		return 0
	}
	if s := q.root.Attrs().Statistics; s != nil && s.Queue != nil {
		return uint64(s.Queue.Drops)
	}
	return 0
}
