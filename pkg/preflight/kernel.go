package preflight

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
)

func (n *Node) kernel() Line {
	const check = "kernel"
	release, err := n.read("proc/sys/kernel/osrelease")
	if err != nil {
		return unknown(check, err)
	}
	lacks, err := n.Kernel()
	switch {
	case errors.Is(err, fs.ErrPermission):
		l := unknown(check, err)
		l.Found = "Linux " + release + "; its features " + strings.TrimPrefix(l.Found, "it ")
		return l
	case err != nil:
		return Line{check, Fail, "Linux " + release + ": " + err.Error(), "boot Linux 6.1 or newer"}
	case len(lacks) > 0:
		return Line{check, Warn, "Linux " + release + " has what is needed, but cannot " + strings.Join(lacks, ", or "), "boot a newer one, such as Linux 6.12"}
	}
	return Line{check, OK, "Linux " + release + " has what is needed", ""}
}

func (n *Node) jit() Line {
	const check, file = "jit", "proc/sys/net/core/bpf_jit_enable"
	enabled, err := n.read(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Line{check, Unknown, "there is no net.core.bpf_jit_enable: the kernel has no BPF compiler, or this is not the node's own network namespace",
			"run the command on the node; if it says the same there, boot a kernel that was built with CONFIG_BPF_JIT"}
	case err != nil:
		return unknown(check, err)
	case enabled == "0":
		return Line{check, Warn, "programs are interpreted, which takes several times as long", "sysctl -w net.core.bpf_jit_enable=1"}
	case enabled != "1":
		return Line{check, Warn, "net.core.bpf_jit_enable is " + enabled + ", which logs every program", "sysctl -w net.core.bpf_jit_enable=1"}
	}
	if harden, err := n.read("proc/sys/net/core/bpf_jit_harden"); err == nil && harden == "2" {
		return Line{check, Warn, "programs are compiled, but net.core.bpf_jit_harden=2 disguises every constant in them, which makes them slower",
			"sysctl -w net.core.bpf_jit_harden=1, which exempts root's programs"}
	}
	return Line{check, OK, "programs are compiled", ""}
}

func (n *Node) cgroup() Line {
	return n.mounted("cgroup2", "cgroup2", n.Cgroup)
}

func (n *Node) bpffs() Line {
	return n.mounted("bpffs", "bpf", n.BPFFS)
}

// mounted checks a file system that the init step mounts if it can.
func (n *Node) mounted(check, kind string, look func() (string, error)) Line {
	path, err := look()
	switch {
	case err == nil:
		return Line{check, OK, "at " + path, ""}
	case errors.Is(err, fs.ErrPermission):
		return unknown(check, err)
	}
	known, failed := n.read("proc/filesystems")
	if failed != nil {
		return unknown(check, errors.Join(err, failed))
	}
	if !slices.Contains(strings.Fields(known), kind) {
		return Line{check, Fail, "the kernel is built without it: " + err.Error(), "boot a kernel that has it"}
	}
	return Line{check, Warn, err.Error(), "run \"fairlead init\", as the chart's first container does"}
}

// forwarding checks the settings that "fairlead init" makes.
func (n *Node) forwarding() Line {
	const check = "forwarding"
	var off []string
	for name, file := range map[string]string{
		"net.ipv4.ip_forward": "proc/sys/net/ipv4/ip_forward", "net.ipv6.conf.all.forwarding": "proc/sys/net/ipv6/conf/all/forwarding",
	} {
		value, err := n.read(file)
		if errors.Is(err, fs.ErrNotExist) { // no IPv6
			continue
		}
		if err != nil {
			return unknown(check, err)
		}
		if value == "0" {
			off = append(off, name)
		}
	}
	if len(off) == 0 {
		return Line{check, OK, "on", ""}
	}
	slices.Sort(off)
	return Line{check, Warn, "packets for pods are not forwarded: " + strings.Join(off, ", ") + " is off", "run \"fairlead init\", as the chart's first container does"}
}

func (n *Node) reversePath() Line {
	const check = "rp_filter"
	value, err := n.read("proc/sys/net/ipv4/conf/all/rp_filter")
	if err != nil {
		return unknown(check, err)
	}
	if value == "1" {
		return Line{check, Warn, "net.ipv4.conf.all.rp_filter is 1: pods' answers to the node itself through a Service are dropped",
			"sysctl -w net.ipv4.conf.all.rp_filter=2, also in /etc/sysctl.d"}
	}
	return Line{check, OK, "net.ipv4.conf.all.rp_filter is " + value, ""}
}

// preemption reports the kernel's preemption model, that is, how readily it interrupts kernel code.
// Only debugfs shows the current choice.
func (n *Node) preemption() Line {
	const check, cure = "preemption", "boot with preempt=none or preempt=lazy, as is usual for servers: packet processing is then interrupted less often"
	model := ""
	if text, err := n.read("sys/kernel/debug/sched/preempt"); err == nil {
		if _, rest, ok := strings.Cut(text, "("); ok {
			model, _, _ = strings.Cut(rest, ")")
		}
	}
	version, err := n.read("proc/version")
	if model == "" && err != nil {
		return unknown(check, err)
	}
	words := strings.Fields(version)
	if model == "" {
		for word := range strings.FieldsSeq(first(n.read("proc/cmdline"))) {
			if value, ok := strings.CutPrefix(word, "preempt="); ok && slices.Contains(words, "PREEMPT_DYNAMIC") {
				model = value
			}
		}
	}
	switch {
	case slices.Contains(words, "PREEMPT_RT"):
		return Line{check, Warn, "a real-time kernel, which trades throughput for predictability", "boot one that is not, unless something here needs it"}
	case model == "full":
		return Line{check, Warn, "full", cure}
	case model == "" && slices.Contains(words, "PREEMPT"):
		return Line{check, Warn, "full by the kernel's build, or lazy, which such a kernel does not tell apart",
			"use a kernel with CONFIG_PREEMPT_DYNAMIC, and boot it with preempt=none or preempt=lazy"}
	case model != "":
		return Line{check, OK, model, ""}
	case slices.Contains(words, "PREEMPT_DYNAMIC"):
		return Line{check, Unknown, "the kernel can change it, and shows its choice only in debugfs, which cannot be read here",
			"as root: cat /sys/kernel/debug/sched/preempt"}
	}
	return Line{check, OK, "none or voluntary, by the kernel's build", ""}
}

func first(text string, _ error) string { return text }
