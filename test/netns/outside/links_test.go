package outside

import (
	"errors"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// The kinds of link that connect nodes.
const (
	plain  = iota
	tagged // a VLAN on another device
	bonded // a bond of several devices
)

const vlan = 5

// TestLinks checks that a node whose addresses are on a VLAN or bond device is served there, and on
// no device below it.
func TestLinks(t *testing.T) {
	rig.Root(t)
	for _, test := range []struct {
		name string
		link int
	}{{"VLAN", tagged}, {"bond", bonded}} {
		t.Run(test.name, func(t *testing.T) {
			if why := lacks(t, test.link); why != "" {
				rig.Lacking(t, "links", why)
			}
			w := newNodesBehindRouter(t, settings{xdp: "off", link: test.link, services: true})
			w.followAll(t, 1<<20, 1400)
			state := w.onA.do(nodeOrder{State: true})
			want := []deviceState{{Name: "eth0", XDPWhy: "off"}}
			if len(state.Devices) == 1 {
				want[0].TC = state.Devices[0].TC
			}
			if diff := gocmp.Diff(want, state.Devices); diff != "" || want[0].TC == "" {
				t.Errorf("devices (-want +have):\n%s", diff)
			}
		})
	}
}

// lacks returns why this machine cannot create a link of that kind, or "" if it can.
func lacks(t *testing.T, kind int) (why string) {
	t.Helper()
	n := rig.NewNetns(t, "probe")
	rig.Veth(t, n, "port", n, "peer")
	err := n.Do(func() error { return addLink(kind, "eth0", "port") })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return "this kernel has no VLAN devices or no bonds"
	}
	if err != nil {
		t.Fatal(err)
	}
	return ""
}

// connect connects a node to a port of the router.
func (w *nodesBehindRouter) connect(n *rig.Netns, kind int, port string) {
	w.t.Helper()
	if kind == plain {
		rig.Veth(w.t, n, "eth0", w.router, port)
		return
	}
	below := port
	if kind == tagged {
		below = "trunk-" + port
	}
	rig.Veth(w.t, n, "port", w.router, below)
	if err := n.Do(func() error { return addLink(kind, "eth0", "port") }); err != nil {
		w.t.Fatal(err)
	}
	if kind == tagged {
		if err := w.router.Do(func() error { return addLink(kind, port, below) }); err != nil {
			w.t.Fatal(err)
		}
	}
}

// addLink adds a link on top of another.
func addLink(kind int, name, over string) error {
	below, err := netlink.LinkByName(over)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	if kind == tagged {
		attrs.ParentIndex = below.Attrs().Index
		link := &netlink.Vlan{LinkAttrs: attrs, VlanId: vlan}
		return errors.Join(netlink.LinkAdd(link), netlink.LinkSetUp(link))
	}
	bond := netlink.NewLinkBond(attrs)
	bond.Mode = netlink.BOND_MODE_ACTIVE_BACKUP
	if err := netlink.LinkAdd(bond); err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetDown(below), netlink.LinkSetMaster(below, bond), netlink.LinkSetUp(bond))
}
