package minimal

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// AttachPolicer makes a device of a namespace drop incoming packets above a rate in bytes per
// second, except for a burst. It attaches a filter, since Linux 6.1 has no links at tc; the filter
// is removed with the namespace.
func AttachPolicer(ns *rig.Netns, device string, rate, burst uint64) (*Attached, error) {
	spec, err := loadPolice()
	if err != nil {
		return nil, fmt.Errorf("read policer: %w", err)
	}
	for name, value := range map[string]uint64{"rate": rate, "burst": burst} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	attached := &Attached{}
	err = within(ns, func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		collection, err := ebpf.NewCollection(spec)
		if err != nil {
			return fmt.Errorf("load policer: %w", err)
		}
		attached.own(closer(collection.Close))
		qdisc := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
		if err := netlink.QdiscReplace(&netlink.Clsact{QdiscAttrs: qdisc}); err != nil {
			return fmt.Errorf("add clsact to %s: %w", device, err)
		}
		filter := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1,
			},
			Fd: collection.Programs["tc_police"].FD(), Name: "tc_police", DirectAction: true,
		}
		if err := netlink.FilterReplace(filter); err != nil {
			return fmt.Errorf("attach policer to %s: %w", device, err)
		}
		return nil
	})
	if err != nil {
		_ = attached.Close() // the first error matters
		return nil, err
	}
	return attached, nil
}
