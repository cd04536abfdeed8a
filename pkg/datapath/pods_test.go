package datapath

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// While a starting agent does not know the pods yet, their devices keep the programs of an earlier
// agent. Without those, a pod's replies would leave with the node's address, and the rows of these
// flows would then stand in the way of later packets.
func TestPodsOfAnEarlierAgent(t *testing.T) {
	w := newForwardingNode(t, devices.Off)
	w.Packets.Pods = true
	rig.Veth(t, w.node, "pod0", rig.NewNetns(t, "pod"), "eth0")
	var pod maps.Pod
	filters := func(when string, want int) {
		t.Helper()
		w.do(t, func() error {
			device, err := netlink.LinkByName("pod0")
			if err != nil {
				return err
			}
			pod = maps.Pod{Addrs: []netip.Addr{netip.MustParseAddr("10.244.1.5")}, Device: "pod0", Index: uint32(device.Attrs().Index)}
			for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
				found, err := netlink.FilterList(device, parent)
				if err != nil {
					return err
				}
				if len(found) != want {
					t.Errorf("%s: %d filters at %x, want %d", when, len(found), parent, want)
				}
			}
			return nil
		})
	}
	filters("before", 0)
	first := w.start(t)
	w.do(t, func() error { return first.SetPods([]maps.Pod{pod}) })
	filters("with an agent", 1)
	if loaded := first.outside.programs; loaded.FromTunnel != nil || loaded.FromLo != nil || loaded.FromPair != nil {
		t.Errorf("without a tunnel, proxies and rates, their programs are loaded: %+v", loaded)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	w.Packets.Tunnel, w.Packets.Proxies = "tunnel0", true // which may come later
	second := w.start(t)
	if loaded := second.outside.programs; loaded.FromTunnel == nil || loaded.FromLo == nil || loaded.ToLo == nil {
		t.Errorf("with a tunnel and proxies, their programs are not loaded: %+v", loaded)
	}
	filters("with another agent that does not know the pods yet", 1)
	w.do(t, func() error { return second.SetPods([]maps.Pod{pod}) })
	filters("once it knows the pods", 1)
	w.do(t, func() error { return second.SetPods(nil) })
	filters("without the pod", 0)
}
