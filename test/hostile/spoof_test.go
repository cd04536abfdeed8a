package hostile

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestSpoof is the attack of a pod that has given itself another pod's address, which takes
// CAP_NET_ADMIN in its namespace, and sends from it. The datagram is dropped at the pod's device
// and counted; one from its own address right behind it arrives.
func TestSpoof(t *testing.T) {
	w := newNodesOnLAN(t, 1)
	attacker, victim := w.nodes[0].pod("attacker"), w.nodes[0].pod("victim")
	for _, is4 := range []bool{true, false} {
		forged := victim.addr[is4]
		must(t, attacker.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			ip := net.IPNet{IP: forged.AsSlice(), Mask: net.CIDRMask(forged.BitLen(), forged.BitLen())}
			return netlink.AddrAdd(link, &netlink.Addr{IPNet: &ip, Flags: unix.IFA_F_NODAD})
		}))
		port := map[bool]int{true: 4, false: 6}[is4]
		there := listen(t, w.outside, port)
		to := netip.AddrPortFrom(netip.MustParseAddr(map[bool]string{true: "198.51.100.200", false: "2001:db8:1::c8"}[is4]), uint16(port))
		before := w.nodes[0].drops("pod", "spoofed")
		send(t, attacker.Netns, netip.AddrPortFrom(forged, 0), to, "I am another")
		if after := w.nodes[0].drops("pod", "spoofed"); after != before+1 {
			t.Errorf("IPv4 %t: %d of 1 datagram dropped", is4, after-before)
		}
		send(t, attacker.Netns, netip.AddrPortFrom(attacker.addr[is4], 0), to, "I am I")
		hear(t, there, "I am I", "I am another")
	}
}
