package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/devices"
)

// outcome is a change to a sound machine, and the line that one check must return for it.
type outcome struct {
	check  string
	name   string
	change func(*machine)
	state  State
	found  string // substring
	cure   string // substring
}

func set(name, text string) func(*machine) { return func(m *machine) { m.files[name] = text } }

func without(names ...string) func(*machine) {
	return func(m *machine) {
		for _, name := range names {
			maps.DeleteFunc(m.files, func(file, _ string) bool { return strings.HasPrefix(file, name) })
		}
	}
}

func all(changes ...func(*machine)) func(*machine) {
	return func(m *machine) {
		for _, change := range changes {
			change(m)
		}
	}
}

func options(change func(*Options)) func(*machine) { return func(m *machine) { change(&m.Options) } }

func chained(m *machine) { m.Options.PodNetwork = "chained" }
func off(m *machine)     { m.Options.PodNetwork = "off" }
func stack(m *machine)   { m.Options.HostRouting = "stack" }
func small(m *machine)   { m.link(func(d *devices.Device) { d.MTU = 1500 }) }

// A path that is a directory cannot be read as a file, even by root.
func unreadable(name string) func(*machine) {
	return all(without(name), set(name+"/x", ""))
}

func denied() error { return fmt.Errorf("look: %w", fs.ErrPermission) }

func baseOutcomes() []outcome {
	kernel := func(lacks []string, err error) func(*machine) {
		return func(m *machine) { m.Kernel = func() ([]string, error) { return lacks, err } }
	}
	cgroup := func(err error) func(*machine) {
		return func(m *machine) { m.Cgroup = func() (string, error) { return "", err } }
	}
	memory := func(start, most uint64, err error) func(*machine) {
		return func(m *machine) { m.Memory = func() (Memory, error) { return Memory{start, most}, err } }
	}
	const limit, above = "sys/fs/cgroup/kubepods/pod1/memory.max", "sys/fs/cgroup/kubepods/memory.max"
	return []outcome{
		{"kernel", "too old", kernel(nil, errors.New("lacks all")), Fail, "Linux 6.12.1: lacks all", "boot Linux 6.1"},
		{"kernel", "lacks a feature", kernel([]string{"refuse", "fly"}, nil), Warn, "cannot refuse, or fly", "boot a newer one"},
		{"kernel", "may not be asked", kernel(nil, denied()), Unknown, "Linux 6.12.1; its features could not be checked", "as root"},
		{"kernel", "no release", without("proc/sys/kernel"), Unknown, "could not be checked", "all of /proc"},
		{"jit", "off", set("proc/sys/net/core/bpf_jit_enable", "0"), Warn, "interpreted", "bpf_jit_enable=1"},
		{"jit", "logs", set("proc/sys/net/core/bpf_jit_enable", "2\n"), Warn, "is 2, which logs", "bpf_jit_enable=1"},
		{"jit", "hardened", set("proc/sys/net/core/bpf_jit_harden", "2"), Warn, "bpf_jit_harden=2", "bpf_jit_harden=1"},
		{"jit", "none", without("proc/sys/net/core"), Unknown, "no BPF compiler", "CONFIG_BPF_JIT"},
		{"jit", "cannot be read", unreadable("proc/sys/net/core/bpf_jit_enable"), Unknown, "could not be checked", ""},
		{"cgroup2", "not mounted", cgroup(errors.New("no mount")), Warn, "no mount", "fairlead init"},
		{"cgroup2", "not in the kernel", all(cgroup(errors.New("no mount")), set("proc/filesystems", "nodev cgroup\n")), Fail, "built without it: no mount", "boot a kernel"},
		{"cgroup2", "may not be looked at", cgroup(denied()), Unknown, "permission", "as root"},
		{"cgroup2", "nothing known", all(cgroup(errors.New("no mount")), without("proc/filesystems")), Unknown, "no mount", ""},
		{"bpffs", "not in the kernel", all(func(m *machine) { m.BPFFS = func() (string, error) { return "", errors.New("none") } }, set("proc/filesystems", "x")),
			Fail, "built without", "boot a kernel"},
		{"memory", "a limit below the start", set(limit, "100000000"), Fail, "limited to 96 MiB (/" + limit + ")", "give the agent 184 MiB"},
		{"memory", "a limit of the start", set(limit, fmt.Sprint(120<<20)), Warn, "limited to 120 MiB", "give the agent 184 MiB"},
		{"memory", "a limit that is enough", set(limit, fmt.Sprint(184<<20)), OK, "limited to 184 MiB", ""},
		{"memory", "the limit above counts", all(set(limit, fmt.Sprint(184<<20)), set(above, "1000")), Fail, "limited to 1 MiB (/" + above, "memory"},
		{"memory", "hybrid cgroups", set("sys/fs/cgroup/unified/kubepods/memory.max", "1000"), Fail, "limited to 1 MiB (/sys/fs/cgroup/unified/kubepods", "memory"},
		{"memory", "cgroups of version 1", all(set("proc/self/cgroup", "5:cpu,memory:/kubepods/pod1\n1:name=systemd:/x\n"),
			set("sys/fs/cgroup/memory/kubepods/pod1/memory.limit_in_bytes", "100000000"), set("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")),
			Fail, "limited to 96 MiB (/sys/fs/cgroup/memory/kubepods/pod1/memory.limit_in_bytes)", "give the agent 184 MiB"},
		{"memory", "no limit in version 1", all(set("proc/self/cgroup", "5:memory:/\n"), set("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")),
			OK, "the machine has", ""},
		{"memory", "a cgroup that leads up", all(set("proc/self/cgroup", "0::/../../../../x\n"), set("sys/fs/cgroup/x/memory.max", "1000")), Fail, "limited to 1 MiB", "memory"},
		{"memory", "a cgroup by no path", all(set("proc/self/cgroup", "0::../x\n"), set("sys/fs/cgroup/x/memory.max", "1000")), Fail, "limited to 1 MiB", "memory"},
		{"memory", "a container that is its own root", all(set("proc/self/cgroup", "0::/\n"), set("proc/self/stat", "7 (fairlead) S 1"),
			set("sys/fs/cgroup/cgroup.procs", "0\n17\n"), set("sys/fs/cgroup/kubepods/pod1/cgroup.procs", "0\n"),
			set("sys/fs/cgroup/kubepods/pod1/agent/cgroup.procs", "0\n7\n"), set("sys/fs/cgroup/kubepods/pod2/memory.max", "1000"),
			set("sys/fs/cgroup/kubepods/pod1/agent/memory.max", "100000000")), Fail, "limited to 96 MiB (/sys/fs/cgroup/kubepods/pod1/agent/memory.max)", "give the agent 184 MiB"},
		{"memory", "a process in the root", all(set("proc/self/cgroup", "0::/\n"), set("proc/self/stat", "7 (fairlead) S 1"),
			set("sys/fs/cgroup/cgroup.procs", "7\n"), set(limit, "1000")), OK, "the machine has", ""},
		{"memory", "a small machine", set("proc/meminfo", "MemTotal: 700000 kB\n"), Warn, "has 684 MiB", "--conntrack-max"},
		{"memory", "no size known", memory(0, 0, errors.New("no maps")), Unknown, "no maps", ""},
		{"memory", "no total", set("proc/meminfo", "MemFree: 1\n"), Unknown, "has no MemTotal", "run the command again"},
		{"memory", "a strange total", set("proc/meminfo", "MemTotal: much kB\n"), Unknown, "invalid syntax", ""},
		{"forwarding", "off for IPv6", set("proc/sys/net/ipv6/conf/all/forwarding", "0"), Warn, "net.ipv6.conf.all.forwarding is off", "fairlead init"},
		{"forwarding", "no IPv6", without("proc/sys/net/ipv6"), OK, "on", ""},
		{"forwarding", "cannot be read", unreadable("proc/sys/net/ipv4/ip_forward"), Unknown, "could not be checked", ""},
		{"rp_filter", "strict", set("proc/sys/net/ipv4/conf/all/rp_filter", "1"), Warn, "is 1", "rp_filter=2"},
		{"rp_filter", "loose", set("proc/sys/net/ipv4/conf/all/rp_filter", "2"), OK, "is 2", ""},
		{"rp_filter", "cannot be read", without("proc/sys/net/ipv4/conf"), Unknown, "could not be checked", ""},
		{"network policies", "some", func(m *machine) { m.Policies = new(7) }, Warn, "the cluster has 7", "kube-network-policies"},
		{"network policies", "enforced", func(m *machine) { m.Options.Policies, m.Policies = "enforce", nil }, OK, "are enforced", ""},
		{"network policies", "audited", func(m *machine) { m.Options.Policies = "audit" }, Warn, "only reported", "--policies=enforce"},
		{"network policies", "not known", func(m *machine) { m.Policies = nil }, Warn, "not known", "kube-network-policies"},
	}
}

func rivalOutcomes() []outcome {
	chains := func(list ...Chain) func(*machine) {
		return func(m *machine) { m.Chains = func() ([]Chain, error) { return list, nil } }
	}
	unseen := func(m *machine) { m.Chains = func() ([]Chain, error) { return nil, denied() } }
	const ours, dir = "etc/cni/net.d/05-fairlead.conflist", "etc/cni/net.d/"
	bridge := `{"type":"bridge"}`
	both := `{"plugins":[{"type":"bridge"},{"type":"fairlead-cni"}]}`
	return []outcome{
		{"kube-proxy", "process", set("proc/99/comm", "kube-proxy\n"), Warn, "its process", "--cleanup"},
		{"kube-proxy", "IPVS", set("sys/class/net/kube-ipvs0/x", ""), Warn, "device kube-ipvs0", "--cleanup"},
		{"forward chains", "Docker's", chains(Chain{"filter", "FORWARD", true}, Chain{"filter", "DOCKER", false}), Warn, "FORWARD of table filter drops", "-i lo -j ACCEPT"},
		{"forward chains", "pods by the stack", all(chains(Chain{"filter", "FORWARD", true}), func(m *machine) { m.Options.HostRouting = "stack" }), Warn, "all that pods send", "-i lo"},
		{"forward chains", "that accept", chains(Chain{"filter", "FORWARD", false}), OK, "none drops", ""},
		{"forward chains", "of legacy iptables", all(chains(), set("proc/net/ip_tables_names", "filter\n")), Unknown, "legacy", "-P FORWARD DROP"},
		{"forward chains", "cannot be listed", func(m *machine) { m.Chains = func() ([]Chain, error) { return nil, denied() } }, Unknown, "could not be checked", "as root"},
		{"kube-proxy", "iptables", chains(Chain{"nat", "KUBE-SERVICES", false}, Chain{"nat", "KUBE-SVC-X", false}, Chain{"nat", "INPUT", false}), Warn, "2 chains of its rules", "--cleanup"},
		{"kube-proxy", "nftables", chains(Chain{"kube-proxy", "services", false}), Warn, "1 chains", "--cleanup"},
		{"kube-proxy", "chains not seen", unseen, Unknown, "chains of nftables (look: permission denied)", "as root"},
		{"kube-proxy", "legacy iptables", set("proc/net/ip_tables_names", "nat\n"), Unknown, "legacy iptables", "as root"},
		{"kube-proxy", "in a container", set("proc/1/comm", "fairlead\n"), Unknown, "only the processes of this container", "on the node"},
		{"other networks", "devices", all(set("sys/class/net/cilium_host/x", ""), set("sys/class/net/cali123/x", "")), Warn, "device cali123 (Calico), device cilium_host (Cilium)", "recreated"},
		{"other networks", "chains", chains(Chain{"filter", "FLANNEL-FWD", false}), Warn, "chain FLANNEL-FWD (Flannel)", "recreated"},
		{"other networks", "many", func(m *machine) {
			for i := range 9 {
				m.files[fmt.Sprintf("sys/class/net/cali%d/x", i)] = ""
			}
		}, Warn, "and 4 more", "recreated"},
		{"other networks", "chained", all(chained, set("sys/class/net/cni0/x", "")), OK, "device cni0 (bridge); pods get their network from it", ""},
		{"other networks", "not seen", unseen, Unknown, "chains of nftables were not checked", "as root"},
		{"other networks", "no list", all(without("sys/class/net"), set("sys/class/net", "")), Unknown, "could not be checked", ""},
		{"cni", "nothing yet", without("etc"), OK, "is empty", ""},
		{"cni", "nothing at all", all(without("etc"), off), Warn, "pods have no network", "--pod-network=main"},
		{"cni", "in a container", all(without("etc"), set("proc/1/comm", "fairlead\n")), Unknown, "/etc/cni/net.d is not visible in this container", "on the node"},
		{"cni", "in a container that sees it", set("proc/1/comm", "fairlead\n"), OK, "05-fairlead.conflist", ""},
		{"cni", "another before ours", set(dir+"00-x.conf", bridge), Fail, "uses /etc/cni/net.d/00-x.conf (bridge)", "--cni-conf-name"},
		{"cni", "in an agent's container", all(func(m *machine) { m.Options.ConfDir = "/host/etc/cni/net.d" },
			set("host/etc/cni/net.d/00-x.conf", bridge),
			set("proc/self/mountinfo", "21 1 0:50 / / rw - overlay none rw\n22 21 8:1 /etc/cni/net.d /host/etc/cni/net.d rw - ext4 /dev/sda1 rw\n"),
			set("proc/1/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /var rw - ext4 /dev/sda2 rw\n")), Fail, "uses /etc/cni/net.d/00-x.conf (bridge)", "--cni-conf-name"},
		{"cni", "another behind ours", set(dir+"10-x.conf", bridge), Warn, "after it come 10-x.conf", "remove the others"},
		{"cni", "another until ours", all(without("etc"), set(dir+"10-x.conf", bridge)), Warn, "until the agent writes 05-fairlead.conflist", "remove it once"},
		{"cni", "what a runtime does not read", set(dir+"00-x.bak", bridge), OK, "05-fairlead.conflist", ""},
		{"cni", "chained", all(chained, set(ours, both)), OK, "(bridge, fairlead-cni)", ""},
		{"cni", "chained without us", all(chained, set(ours, bridge)), Warn, "does not have fairlead-cni", "as the last"},
		{"cni", "another's", all(off, set(ours, bridge)), OK, "(bridge)", ""},
		{"cni", "ours without the option", off, Warn, "needs --pod-network", "or remove the file"},
		{"cni", "broken", set(ours, "{"), Unknown, "unexpected end", ""},
		{"cni", "no list", all(without("etc"), set("etc/cni/net.d", "")), Unknown, "could not be checked", ""},
	}
}

func deviceOutcomes() []outcome {
	xdp := func(offered bool, err error) func(*machine) {
		return func(m *machine) { m.XDP = func(int) (bool, error) { return offered, err } }
	}
	mode := func(mode devices.Mode) func(*machine) { return options(func(o *Options) { o.XDP = mode }) }
	found := func(list []devices.Device, err error) func(*machine) {
		return func(m *machine) { m.Devices = func() ([]devices.Device, error) { return list, err } }
	}
	heaped := all(set("proc/irq/31/effective_affinity_list", "0"))
	return []outcome{
		{"devices", "none wanted", options(func(o *Options) { o.NoDevices = true }), OK, "none to serve", ""},
		{"devices", "none there", found(nil, nil), Warn, "none leads outside", "--devices"},
		{"devices", "cannot be listed", found(nil, denied()), Unknown, "permission denied", "as root"},
		{"device eth0", "no native XDP", xdp(false, nil), OK, "the driver has no native XDP; the programs at tc", ""},
		{"device eth0", "XDP asked for in vain", all(xdp(false, nil), mode(devices.Native)), Fail, "has no native XDP", "--xdp=auto"},
		{"device eth0", "not told", xdp(false, fmt.Errorf("x: %w", devices.ErrNoXDPInfo)), OK, "will show when the agent attaches", ""},
		{"device eth0", "not known", xdp(false, denied()), Unknown, "native XDP: look: permission", "as root"},
		{"device eth0", "generic", mode(devices.Generic), Warn, "generic XDP", "--xdp=auto"},
		{"device eth0", "off", mode(devices.Off), OK, "no XDP: off", ""},
		{"device eth0", "a veth", func(m *machine) { m.link(func(d *devices.Device) { d.Kind = "veth" }) }, OK, "no XDP: packets on a veth", ""},
		{"device eth0", "without a driver", without("sys/devices/pci0"), OK, "device (it has the default route)", ""},
		{"device eth0", "one queue", without("sys/class/net/eth0/queues/rx-1"), Warn, "receive queues: 1, native XDP; one of 2 processors", "ethtool -L eth0"},
		{"device eth0", "one queue, one processor", without("sys/class/net/eth0/queues/rx-1", "sys/devices/system/cpu/cpu1"), OK, "receive queues: 1", ""},
		{"mtu", "differ", small, Warn, "eth0 1500, eth1 9000: they differ", "give all of them"},
		{"mtu", "too small", func(m *machine) { m.link(func(d *devices.Device) { d.MTU = 1279 }) }, Warn, "IPv6 needs at least 1280", "raise"},
		{"mtu", "none", found(nil, nil), OK, "no device", ""},
		{"jumbo frames", "small", small, Warn, "eth0 1500", "9000"},
		{"interrupts", "one processor", heaped, Warn, "eth0: 2 on processors 0", "spread them"},
		{"interrupts", "one processor there", all(heaped, without("sys/devices/system/cpu/cpu1")), OK, "eth0", ""},
		{"interrupts", "by what was asked for", all(without("proc/irq/30/", "proc/irq/31/"), set("proc/irq/30/smp_affinity_list", "0"), set("proc/irq/31/smp_affinity_list", "0")),
			Warn, "eth0: 2 on processors 0", "spread them"},
		{"interrupts", "anywhere", all(set("proc/irq/30/effective_affinity_list", "0-1"), set("proc/irq/31/effective_affinity_list", "0-1")), OK, "0-1", ""},
		{"interrupts", "of the device itself", all(set("sys/devices/pci0/virtio/msi_irqs/90", ""), set("proc/irq/90/effective_affinity_list", "1")), Warn, "eth0: 1 on processors 1", "spread"},
		{"interrupts", "none", without("sys/devices/pci"), OK, "no device has several queues", ""},
		{"interrupts", "cannot be read", without("proc/irq/30"), Unknown, "could not be checked", ""},
	}
}

func tuningOutcomes() []outcome {
	const debug = "sys/kernel/debug/sched/preempt"
	large := func(can LargePackets, err error) func(*machine) {
		return func(m *machine) { m.BigTCP = func() (LargePackets, error) { return can, err } }
	}
	usual := LargePackets{Why4: "too old", Why6: "too small"}
	noBig := options(func(o *Options) { o.BigTCP = false })
	flow := func(client, server string) func(*machine) {
		return func(m *machine) { m.Tracked = tracked([2]string{client, server}) }
	}
	unlisted := func(err error) func(*machine) {
		return func(m *machine) { m.Tracked = func(func(netip.Addr, netip.Addr)) error { return err } }
	}
	version := func(words string) func(*machine) { return all(without(debug), set("proc/version", "Linux "+words)) }
	sockmap := func(unfit string, except ...string) func(*machine) {
		return func(m *machine) {
			m.Sockmap, m.Except = func() (string, []string) { return unfit, []string{"MSG_WAITALL is short", "and more"} }, except
		}
	}
	return []outcome{
		{"acceleration", "not asked for", func(*machine) {}, OK, "--sockmap is false", ""},
		{"acceleration", "fit", all(sockmap("", "haproxy"), set("proc/55/comm", "haproxy\n")), OK, "the kernel supports it", ""},
		{"acceleration", "otherwise than TCP", all(sockmap("", "haproxy"), set("proc/55/comm", "haproxy\n")), OK, "on this kernel: MSG_WAITALL is short, and more", ""},
		{"acceleration", "unfit", sockmap("this kernel is not fit: it loses bytes"), Warn, "it loses bytes", "fairlead init --sockmap=true"},
		{"acceleration", "who splices late", all(sockmap("", "nginx"), set("proc/55/comm", "haproxy\n")), Warn, "haproxy is running", "add haproxy to --sockmap-except"},
		{"acceleration", "in a container", all(sockmap(""), set("proc/1/comm", "fairlead\n")), Unknown, "splice late are not visible", "on the node"},
		{"preemption", "full", set(debug, "none voluntary (full) lazy"), Warn, "full", "preempt=none"},
		{"preemption", "none", set(debug, "(none) voluntary full"), OK, "none", ""},
		{"preemption", "by the command line", all(version("PREEMPT_DYNAMIC"), set("proc/cmdline", "quiet preempt=full")), Warn, "full", "preempt=none"},
		{"preemption", "not told", version("PREEMPT_DYNAMIC"), Unknown, "debugfs", "as root"},
		{"preemption", "full, built so", version("SMP PREEMPT today"), Warn, "full by the kernel's build, or lazy", "CONFIG_PREEMPT_DYNAMIC"},
		{"preemption", "a command line without effect", all(version("SMP today"), set("proc/cmdline", "preempt=full")), OK, "by the kernel's build", ""},
		{"preemption", "real-time", version("SMP PREEMPT_RT today"), Warn, "real-time", "boot one that is not"},
		{"preemption", "no version", without(debug, "proc/version"), Unknown, "could not be checked", ""},
		{"governor", "powersave", set("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave"), Warn, "performance on 1 processors, powersave on 1", "cpupower"},
		{"governor", "none", without("sys/devices/system/cpu/cpu0", "sys/devices/system/cpu/cpu1"), OK, "does not control", ""},
		{"governor", "no list", all(without("sys/devices/system/cpu"), set("sys/devices/system/cpu", "")), Unknown, "could not be checked", ""},
		{"irqbalance", "runs", set("proc/55/comm", "irqbalance\n"), Warn, "it is running", "stop it"},
		{"irqbalance", "in a container", set("proc/1/comm", "fairlead\n"), Unknown, "not found", "on the node"},
		{"tuned", "another profile", set("etc/tuned/active_profile", "powersave"), Warn, "powersave", "network-throughput"},
		{"tuned", "latency", set("etc/tuned/active_profile", "network-latency"), OK, "network-latency", ""},
		{"tuned", "none", without("etc/tuned"), OK, "not in use", ""},
		{"tuned", "in a container", all(without("etc/tuned"), set("proc/1/comm", "fairlead\n")), Unknown, "not visible in this container", "on the node"},
		{"tuned", "cannot be read", unreadable("etc/tuned/active_profile"), Unknown, "could not be checked", ""},
		{"big TCP", "could be", noBig, Warn, "it is possible: IPv4 up to 196608", "--big-tcp=true"},
		{"big TCP", "cannot be", all(noBig, large(usual, nil)), OK, "not possible: IPv4 as usual: too old; IPv6 as usual: too small", ""},
		{"big TCP", "asked for in vain", large(usual, nil), Warn, "requested but not possible", "--big-tcp=false"},
		{"big TCP", "others' pods", off, OK, "not fairlead's", ""},
		{"big TCP", "not known", large(usual, denied()), Unknown, "permission denied", "as root"},
		{"bbr", "none", set("proc/sys/net/ipv4/tcp_available_congestion_control", "reno cubic"), Warn, "offers reno cubic", "modprobe tcp_bbr"},
		{"bbr", "through the stack", stack, Warn, "should not use it", "--host-routing=bpf"},
		{"bbr", "cannot be read", without("proc/sys/net/ipv4/tcp_available"), Unknown, "could not be checked", ""},
		{"host routing", "stack", stack, Warn, "whole stack", "--host-routing=bpf"},
		{"host routing", "others'", chained, OK, "--pod-network=chained", ""},
		{"conntrack", "not there", without("proc/sys/net/netfilter"), OK, "tracks no connections", ""},
		{"conntrack", "nothing", set("proc/sys/net/netfilter/nf_conntrack_count", "0"), OK, "at present", ""},
		{"conntrack", "pods to the outside", flow("10.1.0.3", "203.0.113.1"), Warn, "tracks 1 connections, 1 of them of pods, which", "fairlead status"},
		{"conntrack", "from the outside to pods", all(stack, flow("203.0.113.1", "10.1.0.3")), Warn, "1 of them of pods", "notrack"},
		{"conntrack", "IPv6", all(stack, flow("fd00:1::5", "2001:db8::1")), Warn, "1 of them of pods", "--host-routing=bpf"},
		{"conntrack", "the node to its pods", flow("192.0.2.1", "10.1.0.3"), OK, "none is between a pod", ""},
		{"conntrack", "pods of other nodes", flow("10.2.0.3", "203.0.113.1"), OK, "none is between a pod", ""},
		{"conntrack", "no networks of pods", options(func(o *Options) { o.PodCIDRs = []netip.Prefix{} }), Unknown, "tracks 2 connections", "--pod-cidrs"},
		{"conntrack", "not listed", unlisted(unix.EINVAL), Unknown, "does not list them: invalid argument", "modprobe nf_conntrack_netlink"},
		{"conntrack", "not for everybody", unlisted(unix.EPERM), Unknown, "not permitted", "as root"},
		{"conntrack", "no room for the list", unlisted(unix.ENOBUFS), Unknown, "could not be checked: no buffer space", ""},
		{"conntrack", "no count", unreadable("proc/sys/net/netfilter/nf_conntrack_count"), Unknown, "could not be checked", ""},
	}
}

// Every check returns the right line in each of its states.
func TestOutcomes(t *testing.T) {
	files := &tree{root: t.TempDir()}
	for _, o := range slices.Concat(baseOutcomes(), rivalOutcomes(), deviceOutcomes(), tuningOutcomes()) {
		t.Run(o.check+"/"+o.name, func(t *testing.T) {
			m := sound()
			o.change(m)
			report := m.checkIn(t, files)
			at := slices.IndexFunc(report.Lines, func(l Line) bool { return l.Check == o.check })
			if at < 0 {
				t.Fatalf("no line of that check: %+v", report.Lines)
			}
			l := report.Lines[at]
			if l.State != o.state || !strings.Contains(l.Found, o.found) || !strings.Contains(l.Cure, o.cure) {
				t.Errorf("%+v,\nwant %s: ...%s... -> ...%s...", l, o.state, o.found, o.cure)
			}
			if needs := l.State == Warn || l.State == Fail; needs && o.cure == "" || (l.State == OK) != (l.Cure == "") {
				t.Errorf("every line but those that are ok must have a cure: %+v", l)
			}
		})
	}
}

// Wherever connections may bypass TCP, the line says in full what differs on this kernel, and what is
// not recognized.
func TestDifferencesReported(t *testing.T) {
	differences := []string{ // the longest ones there are
		"readers by edge-triggered epoll use TCP", "FIONREAD says that 1000 bytes wait when it is 1000",
		"MSG_WAITALL returns with less than was asked for", "a signal ends a blocking read (resource temporarily unavailable)",
	}
	parts := append([]string{
		"SO_ZEROCOPY", "MSG_WAITALL", "FIONREAD", "kTLS", "blocking reads", "edge-triggered epoll", "EPOLL_CTL_MOD", "an epoll within an epoll", "io_uring's poll", "SIGIO",
	}, differences...)
	for state, change := range map[State]func(*machine){
		OK: func(*machine) {}, Warn: all(set("proc/55/comm", "haproxy\n"), set("proc/56/comm", "nginx\n")), Unknown: set("proc/1/comm", "fairlead\n"),
	} {
		m := sound()
		m.Sockmap = func() (string, []string) { return "", differences }
		change(m)
		lines := m.check(t).Lines
		l := lines[slices.IndexFunc(lines, func(l Line) bool { return l.Check == "acceleration" })]
		if l.State != state || strings.HasSuffix(l.Found, "...") {
			t.Errorf("%+v, want %s, and in full", l, state)
		}
		for _, part := range parts {
			if !strings.Contains(l.Found, part) {
				t.Errorf("%s: %q does not say %q", state, l.Found, part)
			}
		}
	}
}
