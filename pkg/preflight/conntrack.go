package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// conntrack checks whether netfilter still tracks connections of pods, which costs each of their
// packets two lookups.
func (n *Node) conntrack() Line {
	const check = "conntrack"
	count, err := n.read("proc/sys/net/netfilter/nf_conntrack_count")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Line{check, OK, "netfilter tracks no connections", ""}
	case err != nil:
		return unknown(check, err)
	case count == "0":
		return Line{check, OK, "netfilter tracks no connections at present", ""}
	case len(n.Options.PodCIDRs) == 0:
		return Line{check, Unknown, "netfilter tracks " + count + " connections; without --pod-cidrs or an agent it is not known which are pods'",
			"run the command in the agent's container, or with --pod-cidrs"}
	}
	looked, pods, err := n.podFlows()
	switch {
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT):
		return Line{check, Unknown, "netfilter tracks " + count + " connections, but the kernel does not list them: " + err.Error(), "modprobe nf_conntrack_netlink"}
	case err != nil:
		return unknown(check, err)
	case pods == 0:
		return Line{check, OK, fmt.Sprintf("netfilter tracks %d connections; none is between a pod and another machine or pod", looked), ""}
	case n.Options.PodNetwork == "main" && n.Options.HostRouting == "bpf":
		return Line{check, Warn, fmt.Sprintf("netfilter tracks %d connections, %d of them of pods, which should bypass it", looked, pods),
			"they may be left from before; if not, see in \"fairlead status\" whether the pods' programs are attached"}
	}
	return Line{check, Warn, fmt.Sprintf("netfilter tracks %d connections, %d of them of pods", looked, pods),
		"with --pod-network=main and --host-routing=bpf, pods' packets bypass netfilter; otherwise add \"notrack\" rules for the pods' networks, if nothing filters by state"}
}

// podFlows counts the listed connections, and those of them between a pod and anything but the node
// itself.
func (n *Node) podFlows() (looked, pods int, err error) {
	err = n.Tracked(func(client, server netip.Addr) {
		looked++
		if (n.isPod(client) || n.isPod(server)) && !n.isOwn(client) && !n.isOwn(server) {
			pods++
		}
	})
	return looked, pods, err
}

func (n *Node) isPod(addr netip.Addr) bool {
	return slices.ContainsFunc(n.Options.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func (n *Node) isOwn(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(n.Own, addr)
}
