package bigtcp

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// most is the largest that packets are made. Beyond three times the usual size there is little
	// to gain, and the packets would hold the memory of devices for so long that others lack it.
	most = 192 << 10
	// usual is the kernel's default.
	usual = 64 << 10
)

// Sizes are those of the largest TCP packets, including headers. Zero leaves the kernel's default.
type Sizes struct {
	V4 int `json:"v4"`
	V6 int `json:"v6"`
}

// limits are a device's limits in the kernel: the largest packets that it is given to send, and
// that received ones are merged to.
type limits struct {
	Send  int `json:"send"` // IPv6, and on older kernels IPv4 too
	Take  int `json:"take"`
	Send4 int `json:"send4"`
	Take4 int `json:"take4"`
}

func limitsOf(at *netlink.LinkAttrs) limits {
	return limits{int(at.GSOMaxSize), int(at.GROMaxSize), int(at.GSOIPv4MaxSize), int(at.GROIPv4MaxSize)}
}

// raised returns the limits, raised to the sizes where those are larger.
func (l limits) raised(s Sizes) limits {
	return limits{max(l.Send, s.V6), max(l.Take, s.V6), max(l.Send4, s.V4), max(l.Take4, s.V4)}
}

// set gives a device the limits. Setting a limit of IPv6 also changes that of IPv4, so IPv4's are
// set last.
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
		if one.want == 0 { // the kernel does not have this limit
			continue
		}
		err := one.set(link, one.want)
		if errors.Is(err, unix.ENODEV) { // the device is gone
			return nil
		}
		if err != nil {
			return fmt.Errorf("set %s of %s to %d: %w", one.what, link.Attrs().Name, one.want, err)
		}
	}
	return nil
}

// takes returns the largest packets of a family that a device takes if that is more than usual, and
// otherwise why not.
func takes(link netlink.Link, is4 bool) (size int, why string) {
	at := link.Attrs()
	switch {
	case at.TSOMaxSize == 0:
		return 0, "Linux 5.19 or newer is needed"
	case is4 && at.GSOIPv4MaxSize == 0:
		return 0, "Linux 6.3 or newer is needed"
	case at.TSOMaxSize <= usual:
		return 0, fmt.Sprintf("device %s takes %d bytes at most", at.Name, at.TSOMaxSize)
	}
	return min(most, int(at.TSOMaxSize)), ""
}
