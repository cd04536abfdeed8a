package queues

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The two ends of a veth pair. Rate-limited packets that stay on the node wait in the queue of the
// near end, and continue from the far one.
const (
	nearName = "flpace0"
	FarName  = "flpace1"
)

// pairQueues limits the transmit queues of the pair, so how many processors can use it without
// contending for one.
const pairQueues = 16

// pairMTU is the largest that a veth takes, so that every packet fits.
const pairMTU = 65535

// noAddress is the kernel's IN6_ADDR_GEN_MODE_NONE.
const noAddress = 1

// MakePair makes the two devices if they do not exist, and returns the index of the near one.
func MakePair() (near int, err error) { return keepPair(0) }

// keepPair makes the two devices if they do not exist, the near one with the given index unless
// that is 0. It returns the near one's index.
func keepPair(index int) (int, error) {
	pair, err := findPair()
	if err == nil && pair == nil {
		if err = makePair(index); err == nil {
			pair, err = findPair()
		}
		if err == nil && pair == nil {
			err = errors.New("they disappeared again")
		}
	}
	for _, link := range pair {
		if err == nil {
			err = setUp(link)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("make the devices %s and %s for packets that stay on the node: %w",
			nearName, FarName, err)
	}
	if now := pair[0].Attrs().Index; index != 0 && now != index {
		return 0, fmt.Errorf("device %s is not the one that the programs know: restart the agent", nearName)
	}
	return pair[0].Attrs().Index, nil
}

// findPair returns the near device and the far one, or nil if there are none.
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
		return nil, fmt.Errorf("the other end of %s is missing; run \"ip link del %s\" "+
			"to have both made again: %w", nearName, nearName, err)
	}
	if near.Type() != "veth" || near.Attrs().ParentIndex != far.Attrs().Index {
		return nil, fmt.Errorf("device %s is not fairlead's: give it another name", nearName)
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

// setUp sets a device up without addresses, and lets it take the largest packets that the kernel
// makes.
func setUp(link netlink.Link) error {
	at := link.Attrs()
	// Without a link-local address, the kernel sends nothing there by itself. A kernel without IPv6
	// has no such mode.
	if err := netlink.LinkSetIP6AddrGenMode(link, noAddress); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("turn off automatic addresses of %s: %w", at.Name, err)
	}
	if size := int(at.TSOMaxSize); size > int(at.GSOMaxSize) {
		if err := netlink.LinkSetGSOMaxSize(link, size); err != nil {
			return fmt.Errorf("let %s take packets of %d bytes: %w", at.Name, size, err)
		}
	}
	if size := int(at.TSOMaxSize); at.GSOIPv4MaxSize > 0 && size > int(at.GSOIPv4MaxSize) {
		if err := netlink.LinkSetGSOIPv4MaxSize(link, size); err != nil {
			return fmt.Errorf("let %s take IPv4 packets of %d bytes: %w", at.Name, size, err)
		}
	}
	return netlink.LinkSetUp(link)
}

// removePair removes the devices if they are ours.
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
