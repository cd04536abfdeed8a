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

// slow is a rate at which the fragments of a datagram have to wait for their time, but at which
// everything that this test sends to a pod, at once where there is no fq, need not wait for too
// long.
const slow = 200_000

// waited returns how many packets have left the device at which packets that stay on the node wait.
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

// TestPair checks that what a pod with rates sends and gets within its node waits at the device for
// that, and arrives as if it had not, although reverse path filtering is on: by every protocol and
// family, through the stack or bypassing it. This does not depend on fq.
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
			w := newOneNodeOf(t, bypass, func(s *agentConfig) {
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
			// A connection is ten packets or so. The pod with rates may report the groups that its kernel
			// listens to meanwhile.
			if got := w.waited() - before; got > 2 {
				t.Errorf("%d packets of who has no rate have waited", got)
			}
		})
	}
}
