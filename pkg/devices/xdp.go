package devices

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Mode says where XDP is used.
type Mode string

// The modes.
const (
	Auto    Mode = "auto"    // where the driver runs it reliably
	Native  Mode = "native"  // where the driver runs it; otherwise it is an error
	Generic Mode = "generic" // in the stack, to test what would run in a driver
	Off     Mode = "off"
)

// Modes returns all modes.
func Modes() []string { return []string{string(Auto), string(Native), string(Generic), string(Off)} }

// refusal records that a driver refused the program. It is tried again once the device has changed:
// some drivers reset their queues, or fill the kernel's log, at each attempt.
type refusal struct {
	name string
	mtu  int
	why  string
}

// Values of the kernel's XDP_ATTACHED_*.
const (
	attachedDriver = 1
	attachedStack  = 2
)

// attachXDP attaches the program if the device should have it, and returns how, or why not.
func (h *Hooks) attachXDP(d Device, prog *ebpf.Program) (how, why string, err error) {
	p := attachPoint{program: xdpFromNetdev, index: d.Index}
	if why = h.without(d, prog); why != "" {
		return "", why, h.detachXDP(p)
	}
	if known := h.refused[d.Index]; known.why != "" && known.name == d.Name && known.mtu == d.MTU {
		return "", known.why, nil
	}
	flags, how := link.XDPDriverMode, "native"
	if h.mode == Generic {
		flags, how = link.XDPGenericMode, "generic"
	}
	if err := h.leaveMode(p, how); err != nil {
		return "", "", err
	}
	err = h.ensure(p, prog, func() (link.Link, error) {
		return link.AttachXDP(link.XDPOptions{Program: prog, Interface: d.Index, Flags: flags})
	})
	switch {
	case err == nil:
		delete(h.refused, d.Index)
		if how == "generic" {
			why = "asked for"
		}
		return how, why, nil
	case errors.As(err, new(*switchError)):
		return how, "", err
	case h.mode == Auto:
		why = refusalText(d, err)
		h.refused[d.Index] = refusal{d.Name, d.MTU, why}
		return "", why, nil
	}
	why = refusalText(d, err)
	return "", why, fmt.Errorf("attach XDP, mode %s: %s: %w", h.mode, why, err)
}

// without returns why a device gets no XDP, whatever its driver supports.
func (h *Hooks) without(d Device, prog *ebpf.Program) string {
	if prog == nil {
		return "off"
	}
	return h.mode.Without(&d)
}

// Without returns why a device gets no XDP in this mode, whatever its driver supports.
func (m Mode) Without(d *Device) string {
	switch {
	case m == Off:
		return "off"
	case d.Tunnel:
		return "packets come out of a tunnel long after XDP"
	case m != Generic && d.Kind == "bond":
		return "packets come in through the members of a bond, where XDP does not see the bond"
	case m == Auto && d.Kind == "veth":
		return "packets on a veth have no checksum yet, which XDP cannot complete"
	case m == Auto && d.Kind == "tuntap":
		return "packets on a tap may have no checksum yet, which XDP cannot complete"
	case m == Auto && d.VLANs:
		return "VLANs sit on the device, and a driver may hide their tags from XDP"
	}
	return ""
}

func refusalText(d Device, err error) string {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, ebpf.ErrNotSupported):
		return "the driver has no native XDP"
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return "another XDP program is attached"
	case errors.Is(err, unix.ERANGE), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EFBIG):
		return fmt.Sprintf("the driver refuses it with the device's current settings (MTU %d)", d.MTU)
	}
	return "the driver refuses it: " + err.Error()
}

func (h *Hooks) detachXDP(p attachPoint) error {
	if err := h.dropLink(p.pin()); err != nil {
		return &switchError{err}
	}
	return nil
}

// leaveMode detaches a program that runs in another mode, since a link cannot change its mode.
func (h *Hooks) leaveMode(p attachPoint, how string) error {
	info, err := h.openLink(p)
	if err != nil || info == nil {
		return err
	}
	l, err := netlink.LinkByIndex(p.index)
	if err != nil {
		return fmt.Errorf("look up the mode of XDP: %w", err)
	}
	xdp := l.Attrs().Xdp
	if xdp == nil || xdp.AttachMode == attachedDriver && how == "native" || xdp.AttachMode == attachedStack && how == "generic" {
		return nil
	}
	return h.detachXDP(p)
}
