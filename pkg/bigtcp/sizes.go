package bigtcp

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// most is how large a packet is made: beyond three times the usual there is little to gain, and a device that lends its
	// memory for as long is missed by others.
	most = 192 << 10
	// usual is what the kernel makes of itself.
	usual = 64 << 10
)

// Sizes are those of the largest packets of TCP, header and all; zero leaves them as the kernel has them.
type Sizes struct {
	V4 int `json:"v4"`
	V6 int `json:"v6"`
}

// limits are what the kernel has for a device: how large it takes packets that are sent, and makes those that come in.
type limits struct {
	Send  int `json:"send"` // of IPv6, and on older kernels of IPv4 too
	Take  int `json:"take"`
	Send4 int `json:"send4"`
	Take4 int `json:"take4"`
}

func limitsOf(at *netlink.LinkAttrs) limits {
	return limits{int(at.GSOMaxSize), int(at.GROMaxSize), int(at.GSOIPv4MaxSize), int(at.GROIPv4MaxSize)}
}

// raised returns the limits with those of the sizes where these are larger.
func (l limits) raised(s Sizes) limits {
	return limits{max(l.Send, s.V6), max(l.Take, s.V6), max(l.Send4, s.V4), max(l.Take4, s.V4)}
}

// set gives a device its limits. What is for both families in one the kernel sets for IPv4 too, so IPv4's come after.
func (l limits) set(to *netlink.Handle, link netlink.Link) error {
	have := limitsOf(link.Attrs())
	if have == l {
		return nil
	}
	for _, one := range []struct {
		what string
		want int
		set  func(netlink.Link, int) error
	}{
		{"gso_max_size", l.Send, to.LinkSetGSOMaxSize}, {"gro_max_size", l.Take, to.LinkSetGROMaxSize},
		{"gso_ipv4_max_size", l.Send4, to.LinkSetGSOIPv4MaxSize}, {"gro_ipv4_max_size", l.Take4, to.LinkSetGROIPv4MaxSize},
	} {
		if one.want == 0 { // the kernel has none
			continue
		}
		err := one.set(link, one.want)
		if errors.Is(err, unix.ENODEV) { // it is gone
			return nil
		}
		if err != nil {
			return fmt.Errorf("set %s of %s to %d: %w", one.what, link.Attrs().Name, one.want, err)
		}
	}
	return nil
}

// takes returns how large packets of a family a device takes, if these are larger than usual, and else why not.
func takes(link netlink.Link, is4 bool) (size int, why string) {
	at := link.Attrs()
	switch {
	case at.TSOMaxSize == 0:
		return 0, "Linux 5.19 is the first that can"
	case is4 && at.GSOIPv4MaxSize == 0:
		return 0, "Linux 6.3 is the first that can"
	case at.TSOMaxSize <= usual:
		return 0, fmt.Sprintf("device %s takes %d bytes at most", at.Name, at.TSOMaxSize)
	}
	return min(most, int(at.TSOMaxSize)), ""
}
