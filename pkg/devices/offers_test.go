package devices

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

// A veth can run XDP programs and the loopback device cannot. A missing device is an error.
func TestOffersXDP(t *testing.T) {
	rig.Root(t)
	ns := rig.NewNetns(t, "offers")
	if err := ns.Do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "veth1"}
		veth.Name = "veth0"
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		for name, want := range map[string]bool{"veth0": true, "lo": false} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if offers, err := OffersXDP(link.Attrs().Index); errors.Is(err, ErrNoXDPInfo) {
				t.Logf("%s: %v", name, err)
			} else if err != nil || offers != want {
				t.Errorf("%s offers XDP: %v, %v", name, offers, err)
			}
		}
		if _, err := OffersXDP(1 << 20); err == nil {
			t.Error("OffersXDP succeeds for a device that does not exist")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
