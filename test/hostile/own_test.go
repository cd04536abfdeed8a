package hostile

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestTunnelFromItself is the attack of a neighbor that sends to a node's tunnel from that node's own
// address, or from one that no Node lists. The kernel takes the former by IPv6, and by IPv4 where
// accept_local is set. Nothing comes out: neither what would fit behind that node, as from its own
// pods, nor what fits behind any, as from clients outside.
func TestTunnelFromItself(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=vxlan")
	near, far := w.nodes[0], w.nodes[1]
	victim := far.pod("victim")
	must(t, far.ns.SetSysctl("net/ipv4/conf/eth0/accept_local", "1"))
	second := map[bool]netip.Addr{true: netip.MustParseAddr("198.51.100.77"), false: netip.MustParseAddr("2001:db8:1::77")}
	var mac net.HardwareAddr
	must(t, far.ns.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		mac = link.Attrs().HardwareAddr
		return errors.Join(add(link, second[true]), add(link, second[false]))
	}))
	for is4, own := range map[bool]netip.Addr{true: netip.MustParseAddr("198.51.100.2"), false: netip.MustParseAddr("2001:db8:1::2")} {
		far.knows(second[is4])
		unlisted := map[bool]netip.Addr{true: netip.MustParseAddr("198.51.100.201"), false: netip.MustParseAddr("2001:db8:1::201")}[is4]
		must(t, w.outside.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return errors.Join(add(link, own), add(link, unlisted),
				netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: second[is4].AsSlice(), HardwareAddr: mac}))
		}))
		there := listen(t, victim.Netns, 400)
		to := netip.AddrPortFrom(victim.addr[is4], 400)
		inside := map[bool][2]string{true: {"10.1.2.250:99", "203.0.113.7:99"}, false: {"[fd00:1:2::250]:99", "[2001:db8:9::7]:99"}}[is4]
		before := far.drops("tc", "tunnel-source")
		for i, source := range []netip.Addr{own, unlisted} {
			for k, from := range inside {
				send(t, w.outside, netip.AddrPortFrom(source, uint16(61000+2*i+k)), netip.AddrPortFrom(second[is4], tunnelPort),
					inTunnel("n2", netip.MustParseAddrPort(from), to, "forged"))
			}
		}
		honest := netip.MustParseAddrPort(map[bool]string{true: "198.51.100.1:61000", false: "[2001:db8:1::1]:61000"}[is4])
		send(t, near.ns, honest, netip.AddrPortFrom(second[is4], tunnelPort), inTunnel("n2", netip.MustParseAddrPort(inside[1]), to, fmt.Sprint("from a node ", is4)))
		hear(t, there, fmt.Sprint("from a node ", is4), "forged")
		if dropped := far.drops("tc", "tunnel-source") - before; dropped != 4 {
			t.Errorf("IPv4 %t: %d of 4 packets dropped", is4, dropped)
		}
		there.Close()
	}
}

// add gives a device an address and its network no route, at once.
func add(link netlink.Link, addr netip.Addr) error {
	const nodad = 2
	flags := 0
	if addr.Is6() {
		flags = nodad
	}
	return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}, Flags: flags})
}
