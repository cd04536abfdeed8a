package queues

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Load is what may wait until pods that are kept to rates may send it, in bytes: what the programs let wait there, and no more.
type Load struct {
	All uint64 // of all of them
	One uint64 // of the one that may have the most
}

// room is how much a queue takes, in packets: all in all, and of one flow.
type room struct{ all, flow uint32 }

const (
	leastRoom = 1 << 14 // for what waits because the link is busy
	usualRoom = 1 << 18
	mostRoom  = 1 << 20
	// smallPacket is as small as those are that fill what waits for a rate, and fullPacket as large as those that fill a link.
	smallPacket = 256
	fullPacket  = 1514
	// linkTime is how many seconds of what its link carries a queue takes where no pod has a rate yet.
	linkTime = 2
	// farOff is how many times as much room as there should be is too much. Too little is too little at once.
	farOff = 4
)

// roomFor returns how much room a queue should have: for what may wait of pods that are kept to rates, or else for what its link carries, in
// bytes a second, 0 if that is not known. A flow may have a fifth of it, so that one that does not wait for its packets leaves room for others, or what
// one pod may have wait.
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

// fits reports whether a queue that has so much room need not be given another.
func (r room) fits(has room) bool {
	within := func(has, want uint32) bool { return has >= want && has/farOff <= want }
	return within(has.all, r.all) && within(has.flow, r.flow)
}

// speedOf returns how many bytes a second a device's link carries; 0 if it does not say.
func speedOf(root string, link netlink.Link) uint64 {
	number := func(name string) int {
		text, err := os.ReadFile(filepath.Join(root, link.Attrs().Name, name))
		n, err2 := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || err2 != nil {
			return 0
		}
		return n
	}
	if number("ifindex") != link.Attrs().Index { // these are another network namespace's
		return 0
	}
	return uint64(max(number("speed"), 0)) * 1e6 / 8
}
