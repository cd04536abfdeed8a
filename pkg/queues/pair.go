package queues

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The two devices that are each other's wire: what is kept to a rate and stays on the node waits at the near one, and goes on
// from the far one.
const (
	nearName = "flpace0"
	FarName  = "flpace1"
)

// pairQueues is how many processors may have packets wait there at once without one waiting for another, at the most.
const pairQueues = 16

// pairMTU is as large as a veth takes: whatever came as far as there fits.
const pairMTU = 65535

// noAddress is the kernel's IN6_ADDR_GEN_MODE_NONE.
const noAddress = 1

// MakePair makes the two devices, if they are not there, and returns the index of the near one.
func MakePair() (near int, err error) { return keepPair(0) }

// keepPair makes the two devices, if they are not there, the near one with an index that it had before, and returns its index.
func keepPair(index int) (int, error) {
	pair, err := findPair()
	if err == nil && pair == nil {
		if err = makePair(index); err == nil {
			pair, err = findPair()
		}
		if err == nil && pair == nil {
			err = errors.New("they are gone as soon as they are made")
		}
	}
	for _, link := range pair {
		if err == nil {
			err = setUp(link)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("make the devices %s and %s, where what stays on the node waits: %w", nearName, FarName, err)
	}
	if now := pair[0].Attrs().Index; index != 0 && now != index {
		return 0, fmt.Errorf("device %s is not the one that programs know: restart the agent", nearName)
	}
	return pair[0].Attrs().Index, nil
}

// findPair returns the near device and the far one; nil if there are none.
func findPair() ([]netlink.Link, error) {
	near, err := netlink.LinkByName(nearName)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	far, err := netlink.LinkByName(FarName)
	if err != nil {
		return nil, fmt.Errorf("%s has lost its other end: \"ip link del %s\" lets both be made again: %w", nearName, nearName, err)
	}
	if near.Type() != "veth" || near.Attrs().ParentIndex != far.Attrs().Index {
		return nil, fmt.Errorf("device %s is something else: give it another name", nearName)
	}
	return []netlink.Link{near, far}, nil
}

func makePair(index int) error {
	queues := min(runtime.NumCPU(), pairQueues)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Index = nearName, pairMTU, index
	attrs.NumTxQueues, attrs.NumRxQueues = queues, queues
	return netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: FarName, PeerMTU: pairMTU, PeerNumTxQueues: uint32(queues), PeerNumRxQueues: uint32(queues),
	})
}

// setUp has a device up and without addresses, and take packets as large as the kernel makes them.
func setUp(link netlink.Link) error {
	at := link.Attrs()
	// Without a mode there is no address of the link, so nobody speaks there. A kernel without IPv6 knows none.
	if err := netlink.LinkSetIP6AddrGenMode(link, noAddress); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("have %s get no address: %w", at.Name, err)
	}
	if size := int(at.TSOMaxSize); size > int(at.GSOMaxSize) {
		if err := netlink.LinkSetGSOMaxSize(link, size); err != nil {
			return fmt.Errorf("have %s take packets of %d bytes: %w", at.Name, size, err)
		}
	}
	if size := int(at.TSOMaxSize); at.GSOIPv4MaxSize > 0 && size > int(at.GSOIPv4MaxSize) {
		if err := netlink.LinkSetGSOIPv4MaxSize(link, size); err != nil {
			return fmt.Errorf("have %s take packets of IPv4 of %d bytes: %w", at.Name, size, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// removePair removes the devices, if they are ours.
func removePair() error {
	pair, err := findPair()
	if err != nil || pair == nil {
		return nil
	}
	if err := netlink.LinkDel(pair[0]); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove the device %s: %w", nearName, err)
	}
	return nil
}
