package queues

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Load is how many bytes may wait for rate-limited pods. The programs drop what exceeds it.
type Load struct {
	All uint64 // of all pods
	One uint64 // of the pod that may have the most
}

// room is the capacity of a queue, in packets: in total, and for a single flow.
type room struct{ all, flow uint32 }

const (
	leastRoom = 1 << 14 // for packets that wait because the link is busy
	usualRoom = 1 << 18
	mostRoom  = 1 << 20
	// smallPacket is the size of packets assumed to wait for a rate, and fullPacket of those that
	// fill a link.
	smallPacket = 256
	fullPacket  = 1514
	// linkTime is how many seconds of its link's traffic a queue holds while no pod has a rate.
	linkTime = 2
	// farOff is by what factor a queue may have more room than it should before it is changed. Too
	// little room is changed at once.
	farOff = 4
	// horizon is for how many microseconds a packet may wait in a queue: longer than the programs
	// let any wait, so that only sockets that schedule their own packets meet it. Otherwise a pod
	// without a rate could fill the room with packets for later.
	horizon = 2_500_000
)

// roomFor returns the room that a queue should have: for what may wait for rate-limited pods, or
// else for what its link carries, in bytes per second, 0 if unknown. A flow gets a fifth of it, so
// that one that does not wait for its packets leaves room for others, or, if that is more, what a
// single pod may have waiting.
func roomFor(load Load, speed uint64) room {
	all := uint64(usualRoom)
	switch {
	case load.All > 0:
		all = leastRoom + load.All/smallPacket
	case speed > 0:
		all = speed * linkTime / fullPacket
	}
	all = min(max(all, leastRoom), mostRoom)
	return room{uint32(all), uint32(max(all/5, min(load.One/smallPacket, all-leastRoom/2)))}
}

// fits reports whether a queue with room has need not be changed.
func (r room) fits(has room) bool {
	within := func(has, want uint32) bool { return has >= want && has/farOff <= want }
	return within(has.all, r.all) && within(has.flow, r.flow)
}

// speedOf returns the speed of a device's link in bytes per second, or 0 if it is unknown.
func speedOf(root string, link netlink.Link) uint64 {
	number := func(name string) int {
		text, err := os.ReadFile(filepath.Join(root, link.Attrs().Name, name))
		n, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || err2 != nil {
			return 0
		}
		return n
	}
	if number("ifindex") != link.Attrs().Index { // sysfs shows the device of another network namespace
		return 0
	}
	return uint64(max(number("speed"), 0)) * 1e6 / 8
}
