package routes

import (
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// usable are the states in which the kernel sends to a neighbor.
const usable = unix.NUD_PERMANENT | unix.NUD_NOARP | unix.NUD_REACHABLE | unix.NUD_PROBE | unix.NUD_STALE | unix.NUD_DELAY

// meaning is the effect of a message.
type meaning int

const (
	nothing meaning = iota
	changed         // packets may take another route
	flapped         // a neighbor is as it was
)

// neighbor identifies a neighbor.
type neighbor struct {
	device int
	addr   netip.Addr
}

// neighbors holds the usable neighbors with their link-layer addresses. The kernel sends a
// message about a neighbor whenever it verifies that it is still there, so most of them change
// nothing.
type neighbors struct {
	list    map[neighbor]string
	room    int
	partial bool // a neighbor did not fit
}

// listNeighbors returns the current neighbors. The caller has subscribed before, so it gets
// messages about changes meanwhile.
func listNeighbors(room int) (*neighbors, error) {
	n := &neighbors{list: map[neighbor]string{}, room: room}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.NeighList(0, family)
		if err != nil {
			return nil, fmt.Errorf("list the neighbors: %w", err)
		}
		for i := range list {
			n.learn(&list[i], false)
		}
	}
	return n, nil
}

// hear returns what a message means for packets. A message that it does not understand is a change.
func (n *neighbors) hear(m *syscall.NetlinkMessage) meaning {
	switch m.Header.Type {
	case unix.NLMSG_NOOP, unix.NLMSG_DONE:
		return nothing
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
	default:
		return changed
	}
	if len(m.Data) < unix.SizeofNdMsg {
		return changed
	}
	entry, err := netlink.NeighDeserialize(m.Data)
	if err != nil {
		return changed
	}
	return n.learn(entry, m.Header.Type == unix.RTM_DELNEIGH)
}

// learn records a message about a neighbor.
func (n *neighbors) learn(entry *netlink.Neigh, isGone bool) meaning {
	if entry.Family != unix.AF_INET && entry.Family != unix.AF_INET6 || entry.Flags&netlink.NTF_PROXY != 0 {
		return nothing // entries of bridge ports, and proxy entries
	}
	addr, ok := netip.AddrFromSlice(entry.IP)
	if !ok {
		return changed
	}
	key := neighbor{entry.LinkIndex, addr.Unmap()}
	had, known := n.list[key]
	if isGone || entry.State&usable == 0 {
		delete(n.list, key)
		if known || n.partial {
			return changed
		}
		return flapped
	}
	link := string(entry.HardwareAddr) + string(entry.LLIPAddr)
	if known && had == link {
		return flapped
	}
	if !known && len(n.list) >= n.room {
		n.partial = true
		return changed
	}
	n.list[key] = link
	return changed
}
