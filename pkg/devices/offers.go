package devices

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ErrNoXDPInfo is wrapped by the error of OffersXDP if the kernel does not report what drivers
// support, as before Linux 6.3.
var ErrNoXDPInfo = errors.New("the kernel does not report what drivers support of XDP")

// Constants of linux/netdev.h.
const (
	netdevFamily      = "netdev"
	netdevGetDevice   = 1
	netdevIndex       = 1
	netdevXDPFeatures = 3
	offersBasic       = 1 << 0 // the driver can run programs that pass and drop
)

// OffersXDP reports whether the driver of a device claims to run XDP programs itself. It does not
// attach one to find out. A driver may still refuse a program, for example because the MTU is too
// large.
func OffersXDP(index int) (bool, error) {
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if errors.Is(err, unix.ENOENT) {
		return false, ErrNoXDPInfo
	}
	if err != nil {
		return false, fmt.Errorf("ask what drivers support of XDP: %w", err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	// Build the header by hand: the library leaves its two reserved bytes uninitialized, and this
	// family rejects them unless they are zero.
	header := []byte{netdevGetDevice, 1, 0, 0}
	request.AddRawData(append(header, nl.NewRtAttr(netdevIndex, nl.Uint32Attr(uint32(index))).Serialize()...))
	answers, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return false, fmt.Errorf("ask what the driver of device %d supports of XDP: %w", index, err)
	}
	for _, answer := range answers {
		if len(answer) < nl.SizeofGenlmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(answer[nl.SizeofGenlmsg:])
		if err != nil {
			return false, fmt.Errorf("read what the driver of device %d supports of XDP: %w", index, err)
		}
		for _, a := range attrs {
			if a.Attr.Type&nl.NLA_TYPE_MASK == netdevXDPFeatures && len(a.Value) >= 8 {
				return nl.NativeEndian().Uint64(a.Value)&offersBasic != 0, nil
			}
		}
	}
	return false, ErrNoXDPInfo
}
