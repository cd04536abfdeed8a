package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/devices"
)

// LargePackets says how large packets of TCP may be inside of the node; 0 is as usual, for the reason.
type LargePackets struct {
	V4, V6     int
	Why4, Why6 string
}

// governor tells how the processors choose their speed.
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
		return Line{check, OK, "the kernel does not choose the processors' speed, as in a virtual machine", ""}
	}
	var all []string
	for governor, cpus := range count {
		all = append(all, fmt.Sprintf("%s on %d processors", governor, cpus))
	}
	slices.Sort(all)
	if len(count) == 1 && count["performance"] > 0 {
		return Line{check, OK, all[0], ""}
	}
	return Line{check, Warn, strings.Join(all, ", ") + ": a processor that sleeps or slows down answers later", "cpupower frequency-set -g performance"}
}

// irqbalance moves interrupts about, and what a processor has of their queue in its cache is then elsewhere.
func (n *Node) irqbalance() Line {
	const check = "irqbalance"
	processes, err := n.processes()
	switch {
	case processes["irqbalance"]:
		return Line{check, Warn, "it runs, and may move the interrupts of queues from processor to processor",
			"stop it and give each queue a processor, or have it leave those of network devices alone (--banmod, --policyscript)"}
	case err != nil:
		return Line{check, Unknown, "it is not seen, but " + err.Error(), "run the command on the node"}
	}
	return Line{check, OK, "it does not run", ""}
}

func (n *Node) tuned() Line {
	const check = "tuned"
	profile, err := n.read("etc/tuned/active_profile")
	switch {
	case errors.Is(err, fs.ErrNotExist) && n.contained():
		return Line{check, Unknown, "the node's files are not seen from this container", "run the command on the node"}
	case errors.Is(err, fs.ErrNotExist):
		return Line{check, OK, "not in use", ""}
	case err != nil:
		return unknown(check, err)
	case profile == "network-latency", profile == "network-throughput":
		return Line{check, OK, profile, ""}
	}
	return Line{check, Warn, "its profile is " + profile, "tuned-adm profile network-throughput, or network-latency where answers should be quick"}
}

func (n *Node) jumbo(found []devices.Device) Line {
	const check, jumbo = "jumbo frames", 9000
	var small []string
	for _, d := range found {
		if d.MTU < jumbo {
			small = append(small, fmt.Sprintf("%s %d", d.Name, d.MTU))
		}
	}
	if len(small) > 0 {
		return Line{check, Warn, strings.Join(small, ", ") + ": bytes cost less in larger packets", "an MTU of 9000, where the network of all nodes carries it"}
	}
	return Line{check, OK, "every device that is served has an MTU of 9000 or more", ""}
}

func (n *Node) bigTCP() Line {
	const check = "big TCP"
	if n.Options.PodNetwork != "main" {
		return Line{check, OK, "not fairlead's to set: pods have their network from elsewhere", ""}
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
		return Line{check, Warn, "it is asked for and cannot be: " + found, "--big-tcp=false, or what the reason says"}
	case !n.Options.BigTCP && could:
		return Line{check, Warn, "it could be: " + found, "--big-tcp=true, for pods that move much"}
	case could:
		return Line{check, OK, found, ""}
	}
	return Line{check, OK, "it cannot be: " + found, ""}
}

// bbr needs the sockets of packets to be known until they leave, which the node's stack forgets when it forwards them.
func (n *Node) bbr() Line {
	const check = "bbr"
	available, err := n.read("proc/sys/net/ipv4/tcp_available_congestion_control")
	if err != nil {
		return unknown(check, err)
	}
	chosen := first(n.read("proc/sys/net/ipv4/tcp_congestion_control"))
	switch {
	case !slices.Contains(strings.Fields(available), "bbr"):
		return Line{check, Warn, "the kernel offers " + available, "modprobe tcp_bbr, for connections over long ways that lose packets"}
	case n.Options.PodNetwork == "main" && n.Options.HostRouting == "stack":
		return Line{check, Warn, "it is there, the choice is " + chosen + "; pods should not choose it, since the node's stack forgets whose packets it forwards",
			"--host-routing=bpf, if pods are to use it"}
	}
	return Line{check, OK, "it is there, the choice is " + chosen, ""}
}

func (n *Node) hostRouting() Line {
	const check = "host routing"
	switch {
	case n.Options.PodNetwork != "main":
		return Line{check, OK, "not fairlead's: pods have their network from elsewhere (--pod-network=" + n.Options.PodNetwork + ")", ""}
	case n.Options.HostRouting == "stack":
		return Line{check, Warn, "what pods send passes the node's whole stack", "--host-routing=bpf, unless something filters pods' packets there by netfilter"}
	}
	return Line{check, OK, "packets of pods go past the node's stack", ""}
}

func (n *Node) policies() Line {
	const check = "network policies"
	cure := "run something that enforces them, such as kube-network-policies with --host-routing=stack, or do without"
	switch p := n.Policies; {
	case p == nil:
		return Line{check, Warn, "NetworkPolicies are not enforced; whether the cluster has any is not known here", cure}
	case *p > 0:
		return Line{check, Warn, fmt.Sprintf("NetworkPolicies are not enforced, and the cluster has %d", *p), cure}
	}
	return Line{check, OK, "NetworkPolicies are not enforced; the cluster has none", ""}
}
