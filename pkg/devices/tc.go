package devices

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Where tc has no links, these identify a filter of fairlead, and keep it in its place whenever it
// is written. No other software is known to use the same numbers. A lower priority runs earlier.
const (
	filterPriority = 7
	filterHandle   = 0xfa1e
	filterPrefix   = "fairlead-"

	// filtersMark is a directory among the pins. It exists if there may be filters: without it, not
	// every device has to be searched for them.
	filtersMark = "filters"
)

// side is one of a device's two tc hooks and the program to run there.
type side struct {
	program string
	attach  ebpf.AttachType
	parent  uint32
	prog    *ebpf.Program
}

// sides returns the hooks of a device to which programs are attached.
func (p Programs) sides(d Device) []side {
	if d.Pod {
		sides := []side{
			{fromPod, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, p.FromPod},
			{toPod, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, p.ToPod},
		}
		if d.Netkit {
			sides = append([]side{{fromPod, ebpf.AttachNetkitPeer, 0, p.FromPod}}, sides...)
		}
		return sides
	}
	if d.Loopback { // tc_from_lo must see packets after tc_to_lo has completed them
		return []side{
			{fromLo, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, p.FromLo},
			{toLo, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, p.ToLo},
		}
	}
	if d.Pair {
		return []side{{fromPair, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, p.FromPair}}
	}
	from := p.FromNetdev
	if d.Tunnel {
		from = p.FromTunnel
	}
	return []side{
		{fromNetdev, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, from},
		{toNetdev, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, p.ToNetdev},
	}
}

// serve reports whether there is a program for every side of a device.
func (p Programs) serve(d Device) bool { return !slices.ContainsFunc(p.sides(d), side.isEmpty) }

// isEmpty reports whether there is no program to run at the side.
func (s side) isEmpty() bool { return s.prog == nil }

// isClassic reports whether a device gets filters rather than links. A starting pod waits for its
// device, and to attach a link the kernel waits, with the rtnl lock held, until no CPU can still be
// without it: 5 to 10 ms each, where both filters take 0.3 ms.
func (h *Hooks) isClassic(d Device) bool { return h.classic || d.Pod && !h.unfilter }

// attachTC attaches the programs and returns how. They run before those of others, which could end
// the chain and leave packets with addresses that nothing answers.
func (h *Hooks) attachTC(d Device, programs Programs) (string, error) {
	sides := programs.sides(d)
	if d.Netkit {
		if err := h.attachNetkit(d, sides); err != nil {
			return "", err
		}
		return "netkit", nil
	}
	if !h.isClassic(d) {
		err := h.attachLinks(d, sides)
		if err == nil {
			return "tcx", nil
		}
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return "", err
		}
		h.classic = true
	}
	err := h.filters(d, sides)
	if err == nil {
		return "clsact", nil
	}
	if h.classic || !lacksFilters(err) {
		return "", err
	}
	if linked := h.attachLinks(d, sides); linked != nil {
		return "", errors.Join(err, linked)
	}
	h.unfilter = true
	h.log.Info("this kernel has no BPF filters: attaching links to pods' devices, which takes longer", "error", err)
	return "tcx", nil
}

// lacksFilters reports whether the kernel lacks this kind of qdisc or filter, or all of them.
func lacksFilters(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)
}

func (h *Hooks) attachLinks(d Device, sides []side) error {
	for _, s := range sides {
		if err := h.ensure(attachPoint{s.program, d.Index, s.attach}, s.prog, func() (link.Link, error) {
			return link.AttachTCX(link.TCXOptions{Interface: d.Index, Program: s.prog, Attach: s.attach, Anchor: link.Head()})
		}); err != nil {
			return err
		}
	}
	return nil
}

// attachNetkit attaches the program for the pod's outgoing packets to the netkit itself, where it
// runs as the pod sends them, not once they have arrived at the node. It is a filter too, as at any
// device, for packets that the pod hands over past the netkit; those that the netkit's program has
// passed say so to it, so the filter comes second. The program for incoming packets is only a filter:
// the netkit would run it in the pod's namespace, where the node's device indexes mean nothing.
func (h *Hooks) attachNetkit(d Device, sides []side) error {
	from, to := sides[0], sides[1:]
	if err := h.ensure(attachPoint{from.program, d.Index, from.attach}, from.prog, func() (link.Link, error) {
		return link.AttachNetkit(link.NetkitOptions{Interface: d.Index, Program: from.prog, Attach: from.attach, Anchor: link.Head()})
	}); err != nil {
		return err
	}
	return h.attachFilters(d, to)
}

// attachFilters makes the device's filters run the programs. If it had to create the qdisc, there
// are no filters yet and it does not look for any: this saves time for every pod that starts.
func (h *Hooks) attachFilters(d Device, sides []side) error {
	rtnl, err := h.handle()
	if err != nil {
		return err
	}
	known := h.states[d.Index] != nil && h.states[d.Index].TC != ""
	bare := false
	if !known {
		if bare, err = h.addClsact(rtnl, d.Index); err != nil {
			return err
		}
	}
	for _, s := range sides {
		if bare {
			err = replaceFilter(rtnl, d.Index, s)
		} else {
			err = h.ensureFilter(rtnl, d.Index, s, known)
		}
		if err != nil && bare {
			err = errors.Join(err, rtnl.QdiscDel(clsact(d.Index))) // no use without the filters
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ensureFilter makes the filter of one side run the program. It replaces an existing filter in one
// step.
func (h *Hooks) ensureFilter(rtnl *netlink.Handle, index int, s side, known bool) error {
	id, err := programID(s.prog)
	if err != nil {
		return err
	}
	there, err := findFilter(rtnl, index, s.parent)
	if err != nil {
		return err
	}
	if there != nil && there.Id == int(id) {
		return nil
	}
	if there != nil {
		if err := replaceFilter(rtnl, index, s); err != nil {
			return &switchError{err}
		}
		return nil
	}
	if _, err := h.addClsact(rtnl, index); err != nil {
		return err
	}
	if known {
		h.mended++
		h.log.Warn("filter is gone: attaching it again", "device", index, "program", s.program)
	}
	return replaceFilter(rtnl, index, s)
}

func replaceFilter(rtnl *netlink.Handle, index int, s side) error {
	if err := rtnl.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: s.parent, Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
		},
		Fd: s.prog.FD(), Name: filterPrefix + s.program, DirectAction: true,
	}); err != nil {
		return fmt.Errorf("attach filter %s: %w", s.program, err)
	}
	return nil
}

// addClsact adds the qdisc that has filters on both sides, and reports whether there was none. It
// first creates filtersMark.
func (h *Hooks) addClsact(rtnl *netlink.Handle, index int) (added bool, err error) {
	if err := os.MkdirAll(filepath.Join(h.dir, filtersMark), 0o700); err != nil {
		return false, fmt.Errorf("create pin directory: %w", err)
	}
	err = rtnl.QdiscAdd(clsact(index))
	if errors.Is(err, unix.EEXIST) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("add qdisc clsact: %w", err)
	}
	return true, nil
}

func clsact(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
}

// findFilter returns fairlead's filter on one side of a device, nil if there is none.
func findFilter(rtnl *netlink.Handle, index int, parent uint32) (*netlink.BpfFilter, error) {
	filters, err := filtersOf(rtnl, index, parent)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		if ours, ok := f.(*netlink.BpfFilter); ok && isOurs(ours) {
			return ours, nil
		}
	}
	return nil, nil
}

// filtersOf returns the filters on one side of a device, none if it has no clsact or is gone.
func filtersOf(rtnl *netlink.Handle, index int, parent uint32) ([]netlink.Filter, error) {
	nowhere := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}
	filters, err := Dump(func() ([]netlink.Filter, error) { return rtnl.FilterList(nowhere, parent) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}
	return filters, nil
}

func isOurs(f *netlink.BpfFilter) bool {
	return f.Handle == filterHandle && f.Priority == filterPriority && strings.HasPrefix(f.Name, filterPrefix)
}

// removeFilters removes fairlead's filters from every device that is not in keep, and its qdisc if
// no filters are left.
func removeFilters(rtnl *netlink.Handle, dir string, keep map[int]bool) error {
	if _, err := os.Stat(filepath.Join(dir, filtersMark)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	links, err := Dump(rtnl.LinkList)
	if err != nil {
		return fmt.Errorf("list the node's devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		if index := l.Attrs().Index; !keep[index] {
			errs = append(errs, removeFiltersOf(rtnl, index))
		}
	}
	return errors.Join(errs...)
}

func removeFiltersOf(rtnl *netlink.Handle, index int) error {
	left, removed := 0, 0
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := filtersOf(rtnl, index, parent)
		if err != nil {
			return err
		}
		for _, f := range filters {
			ours, ok := f.(*netlink.BpfFilter)
			if !ok || !isOurs(ours) {
				left++
				continue
			}
			if err := rtnl.FilterDel(ours); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("remove filter %s: %w", ours.Name, err)
			}
			removed++
		}
	}
	if removed == 0 || left > 0 {
		return nil
	}
	err := rtnl.QdiscDel(clsact(index))
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("remove qdisc clsact: %w", err)
	}
	return nil
}
