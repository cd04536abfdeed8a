package queues

import (
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// MakePair makes the pair, it keeps the index that programs know if it is made again, and Restore
// removes it.
func TestPair(t *testing.T) {
	rig.Root(t)
	n := rig.NewNetns(t, "pair")
	do := func(fn func()) {
		t.Helper()
		if err := n.Do(func() error { fn(); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	require := func(what string, index int) {
		t.Helper()
		pair, err := findPair()
		if err != nil || len(pair) != 2 || pair[0].Attrs().Index != index {
			t.Fatalf("%s: %v, %v", what, pair, err)
		}
		for _, link := range pair {
			at := link.Attrs()
			addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			if err != nil || len(addrs) != 0 || at.OperState != netlink.OperUp || at.MTU != pairMTU || at.GSOMaxSize < at.TSOMaxSize || at.GSOIPv4MaxSize < at.TSOMaxSize {
				t.Errorf("%s: %s has addresses %v, %v, state %s, MTU %d, sizes %d and %d of %d", what, at.Name, addrs, err, at.OperState, at.MTU,
					at.GSOMaxSize, at.GSOIPv4MaxSize, at.TSOMaxSize)
			}
		}
	}
	do(func() {
		index, err := MakePair()
		if err != nil {
			t.Fatal(err)
		}
		require("made", index)
		if again, err := MakePair(); again != index || err != nil {
			t.Errorf("MakePair again: %d, %v, want %d", again, err, index)
		}
		pair, err := findPair()
		if err == nil {
			err = netlink.LinkDel(pair[1])
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := keepPair(index); again != index || err != nil {
			t.Errorf("keepPair after somebody removed the pair: %d, %v, want %d", again, err, index)
		}
		require("made again", index)
		if _, err := keepPair(index + 100); err == nil || !strings.Contains(err.Error(), "restart the agent") {
			t.Errorf("keepPair with an index that the pair does not have: %v", err)
		}
		if names, err := Restore(); len(names) != 0 || err != nil {
			t.Errorf("Restore: %v, %v, want no queues", names, err)
		}
		if pair, err := findPair(); pair != nil || err != nil {
			t.Errorf("pair after Restore: %v, %v, want none", pair, err)
		}
	})
	do(func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: nearName}, PeerName: "other"}); err != nil {
			t.Fatal(err)
		}
		if _, err := MakePair(); err == nil {
			t.Error("MakePair accepted a device of that name with another peer")
		}
		if _, err := Restore(); err != nil {
			t.Error(err)
		}
		if _, err := netlink.LinkByName(nearName); err != nil {
			t.Errorf("Restore removed somebody else's device: %v", err)
		}
	})
}
