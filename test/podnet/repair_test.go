package podnet

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
)

// TestRoutesComeBack checks that routes to pods that somebody removes, as systemd-networkd does
// when it restarts, come back, and their neighbor entries too.
func TestRoutesComeBack(t *testing.T) {
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	p := n.pod("a")
	n.mustAdd(p)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	updates := make(chan netlink.RouteUpdate, 16)
	n.must(netlink.RouteSubscribeAt(netns.NsHandle(n.ns.FD()), updates, ctx.Done()))
	for is4, addr := range p.addr {
		to := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
		n.must(n.ns.Do(func() error {
			link, err := netlink.LinkByName(p.device())
			if err != nil {
				return err
			}
			family := netlink.FAMILY_V6
			if is4 {
				family = netlink.FAMILY_V4
			}
			if err := netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, Family: family, IP: addr.AsSlice(), State: unix.NUD_PERMANENT}); err != nil {
				return err
			}
			return netlink.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to, Scope: netlink.SCOPE_LINK})
		}))
		for gone := false; ; {
			update, ok := <-updates
			if !ok {
				t.Fatalf("the route to %s did not come back", addr)
			}
			if update.Dst == nil || update.Dst.String() != to.String() {
				continue
			}
			if update.Type == unix.RTM_DELROUTE {
				gone = true
			} else if gone {
				break
			}
		}
		if seen := talk(t, n.ns, "tcp-refused", addr); seen != "refused" {
			t.Errorf("the pod at %s: %s", addr, seen)
		}
	}
}

// TestFilesLost checks that an agent whose files are lost leaves running pods alone, and gives
// their addresses to no other pod.
func TestFilesLost(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(dir string) error
	}{
		{"all", os.RemoveAll},
		{"those of addresses", func(dir string) error { return os.RemoveAll(filepath.Join(dir, "ipam")) }},
		{"half of each", func(dir string) error {
			for _, sub := range []string{"ipam", "pods"} {
				entries, err := os.ReadDir(filepath.Join(dir, sub))
				if err != nil {
					return err
				}
				for _, entry := range entries {
					path := filepath.Join(dir, sub, entry.Name())
					content, err := os.ReadFile(path)
					if err != nil {
						return err
					}
					if err := os.WriteFile(path, content[:len(content)/2], 0o600); err != nil {
						return err
					}
				}
			}
			return nil
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, "10.1.0.0/30", "fd00:1::/64")
			a, b, c := n.pod("a"), n.pod("b"), n.pod("c")
			n.mustAdd(a)
			listenIn(t, a.Netns)
			n.kill()
			n.must(tt.lose(n.Dir))
			n.start()
			n.mustAdd(b)
			for _, addr := range a.addr {
				if seen := talk(t, b.Netns, "tcp", addr); seen != b.addr[addr.Is4()].String() {
					t.Errorf("%s was reached from %s", addr, seen)
				}
			}
			if a.addr[true] == b.addr[true] || a.addr[false] == b.addr[false] {
				t.Errorf("both pods have %v", a.addr)
			}
			if _, err := n.add(c); code(err) != cni.ErrNoAddress {
				t.Errorf("ADD of a third: %v", err)
			}
			for _, p := range []*pod{a, b} {
				n.must(n.del(p))
			}
			n.nothingLeft()
		})
	}
}

// TestFilesOfOthers checks that the agent starts whatever is in its files, and does not touch what
// belongs to the node.
func TestFilesOfOthers(t *testing.T) {
	n := newNode(t, "10.1.0.0/24")
	p := n.pod("a")
	n.mustAdd(p)
	before := n.left()
	n.kill()
	target := filepath.Join(t.TempDir(), "target")
	n.must(os.WriteFile(target, []byte("kept"), 0o600))
	for name, content := range map[string]string{
		"ipam/10.1.0.9": `{"address":"10.1.0.9","device":"lo","boot":"one"}`, "ipam/10.1.0.10": `{"address":"10.1.0.11","device":"fl0123456789ab","boot":"one"}`,
		"ipam/x": "x", "ipam/10.1.0.12": "", "ipam/.tmp-1": "{", "pods/fl0123456789ab": `{"owner":{},"boot":"one"}`, "pods/lo": "[]",
		"ipam/10.1.0.13": `{"address":"10.1.0.13","owner":{"network":"../..","container":"x","ifname":"eth0"},"device":"fl0123456789ab","boot":"one"}`,
	} {
		n.must(os.WriteFile(filepath.Join(n.Dir, name), []byte(content), 0o600))
	}
	n.must(os.Symlink(target, filepath.Join(n.Dir, "ipam/10.1.0.14")))
	n.must(unix.Mkfifo(filepath.Join(n.Dir, "ipam/10.1.0.15"), 0o600))
	n.start()
	if diff := cmp.Diff(before, n.left()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	if content, err := os.ReadFile(target); err != nil || string(content) != "kept" {
		t.Errorf("the target of a link is %q, %v", content, err)
	}
	n.must(n.check(p))
	n.must(n.del(p))
	n.nothingLeft()
}

// TestDeviceGone checks that when a pod's device is gone without a DEL, the agent notices and takes
// back what the pod had.
func TestDeviceGone(t *testing.T) {
	n := newNode(t, "10.1.0.0/24")
	p := n.pod("a")
	n.mustAdd(p)
	n.kill()
	n.removeDevice(p)
	if len(n.left()) == 0 {
		t.Fatal("the files are gone already")
	}
	n.start()
	n.nothingLeft()

	// It also removes a device whose addresses have no record, as a plugin leaves it that ended
	// long ago, while devices of others stay.
	n.kill()
	n.must(n.ns.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: p.device()}, PeerName: "fl0123"}); err != nil {
			return err
		}
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other0"}, PeerName: "other1"})
	}))
	n.start()
	if diff := cmp.Diff([]string{"device other0", "device other1"}, n.left()); diff != "" {
		t.Errorf("(-want +have):\n%s", diff)
	}
}
