package bugreport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
)

// Machine provides the parts about the machine, as opposed to the agent.
type Machine struct {
	Root string // directory that contains proc, sys, dev and etc
}

// maxFile limits how much of one of the kernel's files is read.
const maxFile = 1 << 20

// Parts returns the parts about the machine.
func (m Machine) Parts() []Part {
	return []Part{
		{"machine/sysctls.txt", m.sysctls},
		{"machine/proc.txt", m.files("proc/version", "proc/cmdline", "proc/uptime", "proc/loadavg", "proc/meminfo", "proc/self/cgroup",
			"proc/sys/kernel/tainted", "proc/filesystems", "proc/interrupts", "proc/net/dev", "proc/net/softnet_stat", "proc/net/sockstat", "proc/net/sockstat6",
			"proc/net/snmp", "proc/net/snmp6", "proc/net/netstat", "proc/net/stat/nf_conntrack", "etc/os-release")},
		{"machine/mounts.txt", m.mounts},
		{"machine/networks.txt", m.networks},
		{"machine/kernel-log.txt", m.kernelLog},
		{"machine/devices.txt", listed("devices", netlink.LinkList, deviceText)},
		{"machine/addresses.txt", listed("addresses", func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) },
			func(a *netlink.Addr) string {
				return fmt.Sprintf("device %d: %s flags 0x%x scope %d", a.LinkIndex, a.IPNet, a.Flags, a.Scope)
			})},
		{"machine/routes.txt", listed("routes", func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		}, func(r *netlink.Route) string { return r.String() })},
		{"machine/rules.txt", listed("rules", func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) },
			func(r *netlink.Rule) string { return r.String() })},
		{"machine/neighbors.txt", listed("neighbors", func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) },
			func(n *netlink.Neigh) string {
				return fmt.Sprintf("device %d: %s at %s state 0x%x", n.LinkIndex, n.IP, n.HardwareAddr, n.State)
			})},
		{"machine/qdiscs.txt", listed("qdiscs", func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) },
			func(q *netlink.Qdisc) string { return (*q).Type() + " " + fmt.Sprintf("%+v", *(*q).Attrs()) })},
	}
}

// listed returns a Collect function that writes a line for each object the kernel lists.
func listed[T any](what string, list func() ([]T, error), text func(*T) string) func(context.Context, io.Writer) error {
	return func(_ context.Context, to io.Writer) error {
		all, err := devices.Dump(list)
		if err != nil {
			return fmt.Errorf("list %s: %w", what, err)
		}
		out := bufio.NewWriter(to)
		for i := range all {
			fmt.Fprintln(out, text(&all[i]))
		}
		return out.Flush()
	}
}

func deviceText(l *netlink.Link) string {
	a := (*l).Attrs()
	text := fmt.Sprintf("%d: %s %s mtu %d %s flags 0x%x %s master %d parent %d queues %d/%d txqlen %d", a.Index, a.Name, (*l).Type(), a.MTU, a.OperState, a.RawFlags,
		a.HardwareAddr, a.MasterIndex, a.ParentIndex, a.NumRxQueues, a.NumTxQueues, a.TxQLen)
	text += fmt.Sprintf(" gso %d/%d gro %d/%d tso %d", a.GSOMaxSize, a.GSOIPv4MaxSize, a.GROMaxSize, a.GROIPv4MaxSize, a.TSOMaxSize)
	if a.Xdp != nil && a.Xdp.Attached {
		text += fmt.Sprintf(" xdp program %d mode %d", a.Xdp.ProgId, a.Xdp.AttachMode)
	}
	if s := a.Statistics; s != nil {
		text += fmt.Sprintf(" received %d packets %d errors %d dropped, sent %d packets %d errors %d dropped", s.RxPackets, s.RxErrors, s.RxDropped,
			s.TxPackets, s.TxErrors, s.TxDropped)
	}
	return text
}

// sysctlPatterns returns the settings that matter to fairlead. Others are not read: some are
// secret, like the key of TCP Fast Open and the secret of stable addresses.
func sysctlPatterns() []string {
	return []string{
		"kernel/osrelease", "kernel/unprivileged_bpf_disabled", "kernel/bpf_stats_enabled", "net/core/bpf_jit_*", "net/core/default_qdisc",
		"net/core/netdev_max_backlog", "net/core/netdev_budget*", "net/core/somaxconn", "net/core/rps_sock_flow_entries", "net/core/[rw]mem_*",
		"net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/ip_unprivileged_port_start",
		"net/ipv4/ip_nonlocal_bind", "net/ipv4/fib_multipath_hash_policy", "net/ipv4/tcp_congestion_control", "net/ipv4/tcp_available_congestion_control",
		"net/ipv4/tcp_[rw]mem", "net/ipv4/tcp_fastopen", "net/ipv4/tcp_l3mdev_accept", "net/ipv4/tcp_mtu_probing", "net/ipv4/tcp_early_demux",
		"net/ipv4/udp_early_demux", "net/ipv4/icmp_*", "net/ipv4/neigh/default/gc_*", "net/ipv6/neigh/default/gc_*", "net/ipv6/bindv6only",
		"net/ipv4/conf/*/forwarding", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/accept_local", "net/ipv4/conf/*/route_localnet",
		"net/ipv4/conf/*/arp_ignore", "net/ipv4/conf/*/arp_announce", "net/ipv4/conf/*/proxy_arp", "net/ipv4/conf/*/send_redirects",
		"net/ipv6/conf/*/forwarding", "net/ipv6/conf/*/disable_ipv6", "net/ipv6/conf/*/accept_ra", "net/ipv6/conf/*/accept_dad", "net/ipv6/conf/*/proxy_ndp",
		"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_buckets", "net/netfilter/nf_conntrack_tcp_be_liberal",
	}
}

func (m Machine) sysctls(ctx context.Context, to io.Writer) error {
	root := filepath.Join(m.Root, "proc/sys")
	for _, pattern := range sysctlPatterns() {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, file := range files {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			value, err := readFile(file)
			if err != nil {
				value = []byte("(" + err.Error() + ")")
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(to, "%s = %s\n", name, bytes.TrimSpace(value)); err != nil {
				return err
			}
		}
	}
	return nil
}

// readFile reads a regular file. It fails for anything that could block the reader.
func readFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a regular file", path), err)
	}
	return io.ReadAll(io.LimitReader(file, maxFile))
}

// files returns a Collect function that writes several files, each under its name, and says so if
// one does not exist.
func (m Machine) files(names ...string) func(context.Context, io.Writer) error {
	return func(_ context.Context, to io.Writer) error {
		for _, name := range names {
			text, err := readFile(filepath.Join(m.Root, name))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				text = []byte("(there is none)\n")
			case err != nil:
				text = []byte("(" + err.Error() + ")\n")
			}
			if _, err := fmt.Fprintf(to, "== /%s\n%s\n", name, text); err != nil {
				return err
			}
		}
		return nil
	}
}

// mounts writes the mounts of the file systems that programs and maps need. The options of others
// may contain passwords.
func (m Machine) mounts(_ context.Context, to io.Writer) error {
	text, err := readFile(filepath.Join(m.Root, "proc/self/mountinfo"))
	if err != nil {
		return err
	}
	for line := range bytes.Lines(text) {
		for _, kind := range []string{" - bpf ", " - cgroup ", " - cgroup2 ", " - sysfs ", " - proc ", " - debugfs ", " - tracefs "} {
			if bytes.Contains(line, []byte(kind)) {
				if _, err := to.Write(line); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// networks writes the names of the CNI configurations and plugins. The content of the files may be
// secret.
func (m Machine) networks(_ context.Context, to io.Writer) error {
	for _, dir := range []string{"etc/cni/net.d", "opt/cni/bin"} {
		entries, err := os.ReadDir(filepath.Join(m.Root, dir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if _, err := fmt.Fprintf(to, "/%s/%s\n", dir, e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

// ofInterest matches lines of the kernel's log about features that fairlead uses.
func ofInterest() *regexp.Regexp {
	return regexp.MustCompile(`(?i)bpf|xdp|netkit|fairlead|nf_conntrack|neighbor|link (?:is|becomes)|NETDEV WATCHDOG|page allocation failure|Out of memory`)
}

// kernelLog writes the matching lines of the kernel's log.
func (m Machine) kernelLog(ctx context.Context, to io.Writer) error {
	log, err := os.OpenFile(filepath.Join(m.Root, "dev/kmsg"), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	looks, record := ofInterest(), make([]byte, 8192)
	const most = 1 << 20 // records; the kernel keeps fewer
	for range most {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// The os.File's own Read would wait for more.
		n, err := unix.Read(int(log.Fd()), record)
		switch {
		case errors.Is(err, unix.EPIPE): // the next record was overwritten
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), err == nil && n == 0:
			return nil
		case err != nil:
			return fmt.Errorf("read the kernel's log: %w", err)
		}
		if line := logLine(record[:n]); looks.MatchString(line) {
			if _, err := fmt.Fprintln(to, line); err != nil {
				return err
			}
		}
	}
	return nil
}

// logLine returns the time and text of a record: "priority,number,microseconds,flags;text",
// followed by lines that begin with a space.
func logLine(record []byte) string {
	head, text, ok := strings.Cut(string(record), ";")
	if !ok {
		return ""
	}
	text, _, _ = strings.Cut(text, "\n")
	fields := strings.Split(head, ",")
	if len(fields) < 3 {
		return ""
	}
	micros := fields[2]
	if len(micros) < 7 {
		micros = strings.Repeat("0", 7-len(micros)) + micros
	}
	at := len(micros) - 6
	return fmt.Sprintf("[%s.%s] %s", micros[:at], micros[at:], text)
}

// Tree returns a Collect function that writes the names of all files below a directory, such as
// that of the pins.
func Tree(dir string) func(context.Context, io.Writer) error {
	return func(ctx context.Context, to io.Writer) error {
		var names []string
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				names = append(names, entry.Type().String()+" "+path)
			}
			return err
		})
		slices.Sort(names)
		_, failed := fmt.Fprintln(to, strings.Join(names, "\n"))
		return errors.Join(err, failed)
	}
}
