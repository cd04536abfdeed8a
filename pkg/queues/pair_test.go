package queues

import (
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// The pair is there once it was made, keeps the index that programs know whatever happens to it, and is gone when it is not needed.
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
			t.Errorf("again: %d, %v, want %d", again, err, index)
		}
		pair, err := findPair()
		if err == nil {
			err = netlink.LinkDel(pair[1])
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := keepPair(index); again != index || err != nil {
			t.Errorf("after somebody has removed it: %d, %v, want %d", again, err, index)
		}
		require("made once more", index)
		if _, err := keepPair(index + 100); err == nil || !strings.Contains(err.Error(), "restart the agent") {
			t.Errorf("another than programs know: %v", err)
		}
		if names, err := Restore(); len(names) != 0 || err != nil {
			t.Errorf("removed: %v, %v", names, err)
		}
		if pair, err := findPair(); pair != nil || err != nil {
			t.Errorf("after that: %v, %v", pair, err)
		}
	})
	do(func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: nearName}, PeerName: "other"}); err != nil {
			t.Fatal(err)
		}
		if _, err := MakePair(); err == nil {
			t.Error("a device of that name passes for it")
		}
		if _, err := Restore(); err != nil {
			t.Error(err)
		}
		if _, err := netlink.LinkByName(nearName); err != nil {
			t.Errorf("what is somebody else's is gone: %v", err)
		}
	})
}
