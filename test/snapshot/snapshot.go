// Package snapshot records the state of a machine's network, so that a test can tell what was left
// behind.
package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Places say where to look, besides the caller's network namespace.
type Places struct {
	Cgroup string // a cgroup2 directory; its attached programs are recorded
	// Directories; the names of everything below them are recorded, and a missing directory has
	// none.
	Dirs []string
}

// notes are lines about what belongs to no kernel module; say drops the others.
type notes []string

// ofModule matches what a kernel module adds to every namespace as soon as anyone on the machine
// needs it.
var ofModule = regexp.MustCompile(`net/netfilter/|nf_conntrack|\b(tunl0|sit0|ip6tnl0|gre0|gretap0|erspan0|ip6gre0|ip_vti0|ip6_vti0)\b`)

func (n *notes) say(format string, args ...any) {
	if line := fmt.Sprintf(format, args...); !ofModule.MatchString(line) {
		*n = append(*n, line)
	}
}

// Take returns a line for each thing it finds: network sysctls, devices, addresses, routes and
// rules, programs attached to devices and to the cgroup, and files, including pinned programs and
// maps.
func Take(p Places) ([]string, error) {
	n := &notes{}
	for _, step := range []func() error{
		n.settings, n.devices, n.routes, func() error { return n.programs(p.Cgroup) }, func() error { return n.files(p.Dirs) },
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("take snapshot: %w", err)
		}
	}
	return *n, nil
}

func (n *notes) settings() error {
	return filepath.WalkDir("/proc/sys/net", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, fs.ErrPermission) { // neither set nor readable
			return err
		}
		n.say("%s = %q", path, content)
		return nil
	})
}

func (n *notes) devices() error {
	all, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range all {
		at := l.Attrs()
		n.say("device %s %s mtu %d flags %v xdp %v", at.Name, l.Type(), at.MTU, at.Flags, at.Xdp != nil && at.Xdp.Attached)
		for _, attach := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			if found, err := link.QueryPrograms(link.QueryOptions{Target: at.Index, Attach: attach}); err == nil && len(found.Programs) > 0 {
				n.say("%d programs at %s for %s", len(found.Programs), at.Name, attach)
			}
		}
		qdiscs, err := netlink.QdiscList(l)
		if err != nil {
			return err
		}
		for _, q := range qdiscs {
			n.say("%s at %s", q.Type(), at.Name)
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			n.say("address %s of %s", a.IPNet, at.Name)
		}
	}
	return nil
}

func (n *notes) routes() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for i := range list {
			n.say("route %s", list[i])
		}
		rules, err := netlink.RuleList(family)
		if err != nil {
			return err
		}
		for i := range rules {
			n.say("rule %s", rules[i])
		}
	}
	return nil
}

// programs looks for the programs attached to the cgroup.
func (n *notes) programs(path string) error {
	cgroup, err := os.Open(path)
	if err != nil {
		return err
	}
	defer cgroup.Close()
	for attach := ebpf.AttachCGroupInetIngress; attach <= ebpf.AttachCgroupUnixGetsockname; attach++ {
		found, err := link.QueryPrograms(link.QueryOptions{Target: int(cgroup.Fd()), Attach: attach})
		if err == nil && len(found.Programs) > 0 { // cgroups do not support many attach types
			n.say("%d programs at the cgroup for %s", len(found.Programs), attach)
		}
	}
	return nil
}

func (n *notes) files(dirs []string) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				n.say("file %s", path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
