package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/devices"
)

// LargePackets is the largest size of TCP packets possible within the node, by family. 0 means the
// usual size, for the reason given.
type LargePackets struct {
	V4, V6     int
	Why4, Why6 string
}

// governor checks how the processors choose their speed.
func (n *Node) governor() Line {
	const check = "governor"
	names, err := n.list("sys/devices/system/cpu")
	if err != nil {
		return unknown(check, err)
	}
	count := map[string]int{}
	for _, name := range names {
		if governor, err := n.read("sys/devices/system/cpu/" + name + "/cpufreq/scaling_governor"); err == nil {
			count[governor]++
		}
	}
	if len(count) == 0 {
		return Line{check, OK, "the kernel does not control the processors' speed, as in a virtual machine", ""}
	}
	var all []string
	for governor, cpus := range count {
		all = append(all, fmt.Sprintf("%s on %d processors", governor, cpus))
	}
	slices.Sort(all)
	if len(count) == 1 && count["performance"] > 0 {
		return Line{check, OK, all[0], ""}
	}
	return Line{check, Warn, strings.Join(all, ", ") + ": a processor that sleeps or slows down responds later", "cpupower frequency-set -g performance"}
}

// irqbalance checks for irqbalance, which moves interrupts away from the processors that have their
// queues in the cache.
func (n *Node) irqbalance() Line {
	const check = "irqbalance"
	processes, err := n.processes()
	switch {
	case processes["irqbalance"]:
		return Line{check, Warn, "it is running, and may move the queues' interrupts between processors",
			"stop it and assign each queue to a processor, or make it leave network devices alone (--banmod, --policyscript)"}
	case err != nil:
		return Line{check, Unknown, "it was not found, but " + err.Error(), "run the command on the node"}
	}
	return Line{check, OK, "it is not running", ""}
}

func (n *Node) tuned() Line {
	const check = "tuned"
	profile, err := n.read("etc/tuned/active_profile")
	switch {
	case errors.Is(err, fs.ErrNotExist) && n.contained():
		return Line{check, Unknown, "the node's files are not visible in this container", "run the command on the node"}
	case errors.Is(err, fs.ErrNotExist):
		return Line{check, OK, "not in use", ""}
	case err != nil:
		return unknown(check, err)
	case profile == "network-latency", profile == "network-throughput":
		return Line{check, OK, profile, ""}
	}
	return Line{check, Warn, "its profile is " + profile, "tuned-adm profile network-throughput, or network-latency for quick responses"}
}

func (n *Node) jumbo(found []devices.Device) Line {
	// Clouds carry 8,896 to 9,001 bytes.
	const check, jumbo = "jumbo frames", 8896
	var small []string
	for _, d := range found {
		if d.MTU < jumbo {
			small = append(small, fmt.Sprintf("%s %d", d.Name, d.MTU))
		}
	}
	if len(small) > 0 {
		return Line{check, Warn, strings.Join(small, ", ") + ": larger packets cost less per byte", "set an MTU of 9000, if the network of all nodes carries it"}
	}
	return Line{check, OK, "every served device has an MTU of 8896 or more", ""}
}

func (n *Node) bigTCP() Line {
	const check = "big TCP"
	if n.Options.PodNetwork != "main" {
		return Line{check, OK, "not fairlead's to set: pods get their network elsewhere", ""}
	}
	can, err := n.BigTCP()
	if err != nil {
		return unknown(check, err)
	}
	family := func(name string, size int, why string) string {
		if size > 0 {
			return fmt.Sprintf("%s up to %d bytes", name, size)
		}
		return name + " as usual: " + why
	}
	found := family("IPv4", can.V4, can.Why4) + "; " + family("IPv6", can.V6, can.Why6)
	switch could := can.V4+can.V6 > 0; {
	case n.Options.BigTCP && !could:
		return Line{check, Warn, "it is requested but not possible: " + found, "set --big-tcp=false, or follow the reason"}
	case !n.Options.BigTCP && could:
		return Line{check, Warn, "it is possible: " + found, "set --big-tcp=true, for pods that move much data"}
	case could:
		return Line{check, OK, found, ""}
	}
	return Line{check, OK, "it is not possible: " + found, ""}
}

// bbr checks for BBR. It needs to know the sockets of packets until they leave, which the node's
// stack forgets when it forwards packets.
func (n *Node) bbr() Line {
	const check = "bbr"
	available, err := n.read("proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		return unknown(check, err)
	}
	chosen := first(n.read("proc/sys/net/ipv4/tcp_congestion_control"))
	switch {
	case !slices.Contains(strings.Fields(available), "bbr"):
		return Line{check, Warn, "the kernel offers " + available, "modprobe tcp_bbr, for long-distance connections that lose packets"}
	case n.Options.PodNetwork == "main" && n.Options.HostRouting == "stack":
		return Line{check, Warn, "available; the default is " + chosen + "; pods should not use it, because the node's stack forgets whose packets it forwards",
			"set --host-routing=bpf, if pods should use it"}
	}
	return Line{check, OK, "available; the default is " + chosen, ""}
}

func (n *Node) hostRouting() Line {
	const check = "host routing"
	switch {
	case n.Options.PodNetwork != "main":
		return Line{check, OK, "not fairlead's: pods get their network elsewhere (--pod-network=" + n.Options.PodNetwork + ")", ""}
	case n.Options.HostRouting == "stack":
		return Line{check, Warn, "pods' packets pass through the node's whole stack", "set --host-routing=bpf, unless netfilter filters pods' packets there"}
	}
	return Line{check, OK, "pods' packets bypass the node's stack", ""}
}

func (n *Node) policies() Line {
	const check = "network policies"
	cure := "set --pod-network=main and --policies=enforce, run something that enforces them, such as kube-network-policies with --host-routing=stack, or do without them"
	switch p := n.Policies; {
	case n.Options.Policies == "enforce":
		return Line{check, OK, "NetworkPolicies and ClusterNetworkPolicies are enforced", ""}
	case n.Options.Policies == "audit":
		return Line{check, Warn, "what NetworkPolicies and ClusterNetworkPolicies deny is only reported", "set --policies=enforce once nothing is denied that should not be"}
	case p == nil:
		return Line{check, Warn, "NetworkPolicies are not enforced; it is not known here whether the cluster has any", cure}
	case *p > 0:
		return Line{check, Warn, fmt.Sprintf("NetworkPolicies are not enforced, and the cluster has %d", *p), cure}
	}
	return Line{check, OK, "NetworkPolicies are not enforced; the cluster has none", ""}
}
