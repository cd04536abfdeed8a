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

	"fairlead.io/fairlead/pkg/listing"
)

// Where there are no links at tc, a filter of ours is known by these, and put in its own place whenever it is
// written. The numbers are none that others are known to use. A lower priority runs earlier.
const (
	filterPriority = 7
	filterHandle   = 0xfa1e
	filterPrefix   = "fairlead-"

	// filtersMark is a directory among the pins that says that there are filters: where there were none nobody has to
	// look through every device for them.
	filtersMark = "filters"
)

// side is one of the two hooks of a device at tc, and what is to run there.
type side struct {
	program string
	attach  ebpf.AttachType
	parent  uint32
	prog    *ebpf.Program
}

// sides are the hooks of a device that programs are for.
func (p Programs) sides(d Device) []side {
	if d.Pod {
		from := ebpf.AttachTCXIngress
		if d.Netkit {
			from = ebpf.AttachNetkitPeer
		}
		return []side{
			{fromPod, from, netlink.HANDLE_MIN_INGRESS, p.FromPod},
			{toPod, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, p.ToPod},
		}
	}
	if d.Loopback { // what tc_to_lo completes tc_from_lo is to see
		return []side{
			{fromLo, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, p.FromLo},
			{toLo, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, p.ToLo},
		}
	}
	if d.Pair {
		return []side{{fromPair, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, p.FromPair}}
	}
	return []side{
		{fromNetdev, ebpf.AttachTCXIngress, netlink.HANDLE_MIN_INGRESS, p.FromNetdev},
		{toNetdev, ebpf.AttachTCXEgress, netlink.HANDLE_MIN_EGRESS, p.ToNetdev},
	}
}

// serve reports whether there is a program for every side of a device.
func (p Programs) serve(d Device) bool { return !slices.ContainsFunc(p.sides(d), side.isEmpty) }

// isEmpty reports whether nothing is to run there.
func (s side) isEmpty() bool { return s.prog == nil }

// isClassic reports whether a device gets filters and no links. A pod waits for its device, and for a link the kernel waits until
// no CPU may still be without it, with the lock on all devices held: 5 to 10 ms each, where both filters take 0.3.
func (h *Hooks) isClassic(d Device) bool { return h.classic || d.Pod && !h.unfilter }

// attachTC attaches the programs and returns how. Ours run before those of others: one that ends the chain would
// otherwise leave packets with addresses that nobody answers.
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
	h.log.Info("this kernel has no filters that are programs: pods' devices get links, which takes longer", "error", err)
	return "tcx", nil
}

// lacksFilters reports whether an error is the kernel's that has no such kind of qdisc or filter, or none at all.
func lacksFilters(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP)
}

func (h *Hooks) attachLinks(d Device, sides []side) error {
	for _, s := range sides {
		if err := h.ensure(place{s.program, d.Index, s.attach}, s.prog, func() (link.Link, error) {
			return link.AttachTCX(link.TCXOptions{Interface: d.Index, Program: s.prog, Attach: s.attach, Anchor: link.Head()})
		}); err != nil {
			return err
		}
	}
	return nil
}

// attachNetkit has a netkit itself run the program of what the pod sends: as the pod sends it, and not when it has come in at the node. What the pod gets
// meets its program as at any device, since the netkit would run it in the pod's namespace, to which the node's devices mean nothing.
func (h *Hooks) attachNetkit(d Device, sides []side) error {
	from, to := sides[0], sides[1:]
	if err := h.ensure(place{from.program, d.Index, from.attach}, from.prog, func() (link.Link, error) {
		return link.AttachNetkit(link.NetkitOptions{Interface: d.Index, Program: from.prog, Attach: from.attach, Anchor: link.Head()})
	}); err != nil {
		return err
	}
	return h.attachFilters(d, to)
}

// attachFilters makes filters of a device run the programs. A device that gets its qdisc now has none yet, so nobody need look:
// that is every pod's when it starts, which waits for this.
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
			err = errors.Join(err, rtnl.QdiscDel(clsact(d.Index))) // it was made for nothing
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ensureFilter makes the filter of one side run the program. A filter that is there is replaced in one step.
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
		h.log.Warn("filter is gone: attaching anew", "device", index, "program", s.program)
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

// addClsact makes the qdisc that has filters on both sides, and reports whether there was none. That there may be filters is
// noted first.
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

// findFilter returns our filter on one side of a device, nil if there is none.
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

// filtersOf lists the filters on one side of a device; none where there is no clsact, or no device any more.
func filtersOf(rtnl *netlink.Handle, index int, parent uint32) ([]netlink.Filter, error) {
	nowhere := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}
	filters, err := listing.Of(func() ([]netlink.Filter, error) { return rtnl.FilterList(nowhere, parent) })
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

// removeFilters removes our filters, if there are any, from every device that is not to be kept, and the qdisc that then
// has none.
func removeFilters(rtnl *netlink.Handle, dir string, keep map[int]bool) error {
	if _, err := os.Stat(filepath.Join(dir, filtersMark)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	links, err := listing.Of(rtnl.LinkList)
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
