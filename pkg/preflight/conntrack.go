package preflight

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
)

// maxFlows limits how many connections are read.
const maxFlows = 65536

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
		return Line{check, Unknown, "netfilter tracks " + count + " connections; without --pod-cidrs or an agent it is not known which are pods'", ""}
	}
	looked, pods, err := n.podFlows()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Line{check, Unknown, "netfilter tracks " + count + " connections, but this kernel does not list them in /proc/net/nf_conntrack", "conntrack -L"}
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
	file, err := n.open("proc/net/nf_conntrack")
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() && looked < maxFlows {
		looked++
		client, server := endsOf(lines.Text())
		if (n.isPod(client) || n.isPod(server)) && !n.isOwn(client) && !n.isOwn(server) {
			pods++
		}
	}
	return looked, pods, lines.Err()
}

func (n *Node) isPod(addr netip.Addr) bool {
	return slices.ContainsFunc(n.Options.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func (n *Node) isOwn(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(n.Own, addr)
}

// endsOf returns the sources of the two directions in a conntrack line. These are the ends of the
// connection, however its addresses are translated on the way.
func endsOf(line string) (client, server netip.Addr) {
	for word := range strings.FieldsSeq(line) {
		text, ok := strings.CutPrefix(word, "src=")
		if !ok {
			continue
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		if client.IsValid() {
			return client, addr.Unmap()
		}
		client = addr.Unmap()
	}
	return client, server
}
