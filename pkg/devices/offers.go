package devices

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNotTold is wrapped by OffersXDP's error where the kernel, before Linux 6.3, does not tell what drivers offer.
var ErrNotTold = errors.New("the kernel does not tell what drivers offer of XDP")

// The kernel's names for it, of linux/netdev.h.
const (
	netdevFamily      = "netdev"
	netdevGetDevice   = 1
	netdevIndex       = 1
	netdevXDPFeatures = 3
	offersBasic       = 1 << 0 // programs may run, pass and drop
)

// OffersXDP reports whether the driver of a device says that it runs programs of XDP itself, and attaches none to find out.
// A driver may yet refuse one, as with too large an MTU.
func OffersXDP(index int) (bool, error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if errors.Is(err, unix.ENOENT) {
		return false, ErrNotTold
	}
	if err != nil {
		return false, fmt.Errorf("ask what drivers offer of XDP: %w", err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	// The header by hand: the library's has two bytes of whatever is there, which this family refuses unless they are zero.
	header := []byte{netdevGetDevice, 1, 0, 0}
	request.AddRawData(append(header, nl.NewRtAttr(netdevIndex, nl.Uint32Attr(uint32(index))).Serialize()...))
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return false, fmt.Errorf("ask what the driver of device %d offers of XDP: %w", index, err)
	}
	for _, answer := range answers {
		if len(answer) < nl.SizeofGenlmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(answer[nl.SizeofGenlmsg:])
		if err != nil {
			return false, fmt.Errorf("read what the driver of device %d offers of XDP: %w", index, err)
		}
		for _, a := range attrs {
			if a.Attr.Type&nl.NLA_TYPE_MASK == netdevXDPFeatures && len(a.Value) >= 8 {
				return nl.NativeEndian().Uint64(a.Value)&offersBasic != 0, nil
			}
		}
	}
	return false, ErrNotTold
}
