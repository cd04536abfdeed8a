package podnetwork

import (
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/model"
)

// TestNativeInside checks the networks that can route pod addresses. With a tunnel, the network
// between the nodes may not, so other nodes see packets of pods with an address of their node. A
// Node that claims all addresses is ignored.
func TestNativeInside(t *testing.T) {
	store := model.NewStore("a")
	for i, name := range []string{"a", "b"} {
		store.SetNode(&model.Node{
			Name: name, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24)},
		})
	}
	store.SetNode(&model.Node{Name: "thief", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/1")}})
	for routing, want := range map[string]string{
		fabric.None:   "[10.0.0.0/24 10.0.1.0/24 192.0.2.0/32 192.0.2.1/32]",
		fabric.Native: "[10.0.0.0/24 10.0.1.0/24 192.0.2.0/32 192.0.2.1/32]",
		fabric.VXLAN:  "[10.0.0.0/24 192.0.2.0/32 10.0.1.0/24]",
	} {
		n := &Network{Config: Config{Options: &config.Config{Routing: routing}, Store: store}}
		if got := fmt.Sprint(n.nativeInside()); got != want {
			t.Errorf("%s: pod addresses are routed in %s, want %s", routing, got, want)
		}
	}
}
