package podnet

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/test/rig"
)

// slow is a rate at which the pieces of a datagram have to wait for their time, and all that a pod is sent here, without a pause where there is
// no fq, does not have to for too long.
const slow = 200_000

// waited returns how many packets have come from where they wait if they stay on the node.
func (n *node) waited() (packets uint64) {
	n.t.Helper()
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName(queues.FarName)
		if err == nil {
			packets = link.Attrs().Statistics.RxPackets
		}
		return err
	}))
	return packets
}

// What a pod that is kept to rates sends and gets on its node waits where there is a queue for it, and comes to whom it is for as if it
// had not, whatever looks at where it should have come from: by every protocol and family, by the stack or past it. Whether there is fq
// is no matter here.
func TestPair(t *testing.T) {
	rig.Root(t)
	testPair(t, cni.Veth)
}

func TestNetkitPair(t *testing.T) {
	rig.Root(t)
	needNetkit(t)
	testPair(t, cni.Netkit)
}

func testPair(t *testing.T, kind cni.Kind) {
	for _, bypass := range []bool{true, false} {
		t.Run(fmt.Sprintf("past the stack %t", bypass), func(t *testing.T) {
			w := newTownOf(t, bypass, func(s *served) {
				s.Kind, s.Rates = kind, map[string]maps.Rates{"a": {Out: slow, In: slow}}
			})
			w.must(w.ns.SetSysctl("net/ipv4/conf/all/rp_filter", "1"))
			a, b := w.pods[0], w.pods[1]
			for is4, addr := range a.addr {
				for _, way := range []struct {
					what     string
					from     *rig.Netns
					to, seen netip.Addr
				}{
					{"to a pod", a.Netns, b.addr[is4], addr},
					{"from a pod", b.Netns, addr, b.addr[is4]},
					{"to the node", a.Netns, nodeAddrs[is4], addr},
					{"from the node", w.ns, addr, nodeAddrs[is4]},
				} {
					before := w.waited()
					for _, protocol := range []string{"tcp", "udp", "icmp"} {
						seen, want := talk(t, way.from, protocol, way.to), way.seen
						if protocol == "icmp" {
							want = way.to
						}
						if seen != want.String() {
							t.Errorf("%s by %s, IPv4 %t: came from %s, want %s", way.what, protocol, is4, seen, want)
						}
					}
					if got := w.waited() - before; got < 2 {
						t.Errorf("%s, IPv4 %t: %d packets have waited", way.what, is4, got)
					}
				}
			}
			before := w.waited()
			talk(t, b.Netns, "tcp", nodeAddrs[true])
			if got := w.waited() - before; got != 0 {
				t.Errorf("%d packets of who has no rate have waited", got)
			}
		})
	}
}
