package hostile

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestPodOutside is the attack of a host on the nodes' link that sends to a pod from the address of
// another: of one on the same node, and past the tunnel of one on another node.
func TestPodOutside(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=vxlan")
	near, far := w.nodes[0], w.nodes[1]
	victim := near.pod("victim")
	for i, posed := range []*pod{near.pod("beside"), far.pod("elsewhere")} {
		for j, is4 := range []bool{true, false} {
			port := uint16(400 + 2*i + j)
			there, to, forged := listen(t, victim.Netns, int(port)), netip.AddrPortFrom(victim.addr[is4], port), posed.addr[is4]
			via := netip.MustParseAddr(map[bool]string{true: "198.51.100.1", false: "2001:db8:1::1"}[is4])
			host := func(addr netip.Addr) *net.IPNet {
				return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
			}
			must(t, w.outside.Do(func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: host(forged), Flags: unix.IFA_F_NODAD}); err != nil {
					return err
				}
				return netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: host(to.Addr()), Gw: via.AsSlice()})
			}))
			own := netip.MustParseAddr(map[bool]string{true: "198.51.100.200", false: "2001:db8:1::c8"}[is4])
			before := near.drops("tc", "pod-source")
			send(t, w.outside, netip.AddrPortFrom(forged, 99), to, "forged")
			send(t, w.outside, netip.AddrPortFrom(own, 99), to, "honest")
			hear(t, there, "honest", "forged")
			// Its search for the neighbor may have that address too.
			if after := near.drops("tc", "pod-source"); after == before {
				t.Errorf("as %s: no packet is dropped", forged)
			}
			send(t, posed.Netns, netip.AddrPortFrom(forged, 98), to, "the pod itself")
			hear(t, there, "the pod itself")
		}
	}
}
