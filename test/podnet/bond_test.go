package podnet

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// parts are the devices of a bond.
var parts = []string{"left", "right"}

// TestBandwidthBond checks that a pod is kept to its rate out of a bond whose parts both carry what
// it sends, and that its packets wait at the parts and not at the bond.
func TestBandwidthBond(t *testing.T) {
	rig.Root(t)
	needFq(t)
	w := newOneNodeLinked(t, true, func(in, outside *rig.Netns) { bondBetween(t, in, outside) }, func(s *agentConfig) { s.Rates = map[string]maps.Rates{} })
	rate := judgeable(t, "by UDP", measured(t, w.pods[1].Netns, w.outside, outsiders[true], 1, 2000))
	w.rerate(map[string]maps.Rates{"a": {Out: uint64(rate)}})
	before := w.bytesByLink(t)
	for is4, to := range outsiders {
		want, all := leaves(rate, is4)
		passed := w.pace(false)
		got, ok := measuredAt(t, w.pods[0].Netns, w.outside, to, 16, all, want)
		if !ok {
			t.Fatal("the machine is too busy to judge the rate")
		}
		requireRate(t, "out of a bond to "+to.String(), got, want, 0.02)
		if now := w.pace(false); now.Passed == passed.Passed || now.Dropped != passed.Dropped {
			t.Errorf("to %s: counted %+v, before %+v", to, now, passed)
		}
	}
	w.requireQueues(t, parts...)
	if over := w.queued("eth0"); len(over) > 0 {
		t.Errorf("the bond has a queue too: %v", over)
	}
	for name, bytes := range w.bytesByLink(t) {
		if bytes -= before[name]; bytes < rate/10 { // of more than two seconds' worth
			t.Errorf("%s has carried %.0f bytes", name, bytes)
		}
	}
}

// bytesByLink returns how many bytes have left the queues of each part of the bond.
func (w *oneNode) bytesByLink(t *testing.T) map[string]float64 {
	t.Helper()
	bytes := map[string]float64{}
	for _, name := range parts {
		for _, q := range w.queued(name) {
			bytes[name] += float64(q.Attrs().Statistics.Basic.Bytes)
		}
	}
	return bytes
}

// bondBetween connects the eth0 of two namespaces, each of which is a bond that spreads flows over
// two devices.
func bondBetween(t *testing.T, a, b *rig.Netns) {
	t.Helper()
	for _, part := range parts {
		rig.Veth(t, a, part, b, part)
	}
	for _, ns := range []*rig.Netns{a, b} {
		err := ns.Do(func() error {
			bond := netlink.NewLinkBond(netlink.NewLinkAttrs())
			bond.Name, bond.Mode, bond.XmitHashPolicy = "eth0", netlink.BOND_MODE_BALANCE_XOR, netlink.BOND_XMIT_HASH_POLICY_LAYER3_4
			if err := netlink.LinkAdd(bond); err != nil {
				return err
			}
			for _, part := range parts {
				link, err := netlink.LinkByName(part)
				if err == nil {
					err = errors.Join(netlink.LinkSetDown(link), netlink.LinkSetMaster(link, bond))
				}
				if err != nil {
					return err
				}
			}
			return netlink.LinkSetUp(bond)
		})
		if errors.Is(err, unix.EOPNOTSUPP) {
			rig.Lacking(t, "links", "this kernel has no bonds")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
