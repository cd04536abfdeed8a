package podnet

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// fakePlugin is a third-party plugin: as the first one it makes a veth, after another it only
// records its calls.
func fakePlugin() {
	if e := skel.PluginMainFuncsWithError(skel.CNIFuncs{Add: fakeAdd, Del: fakeNote("DEL"), Check: fakeNote("CHECK"), GC: fakeNote("GC"), Status: fakeNote("STATUS")},
		version.All, "a plugin of a test"); e != nil {
		_ = e.Print()
		os.Exit(1)
	}
	os.Exit(0)
}

// fakeConf is the configuration of the fake plugin: the file in which it records its calls, and the
// kind of its device.
type fakeConf struct {
	types.PluginConf
	Notes string `json:"notes"`
	Peer  string `json:"peer"` // "pod": both ends are in the pod; "bridge": one is a port of br0
}

func fakeNote(verb string) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		conf := &fakeConf{}
		if err := json.Unmarshal(args.StdinData, conf); err != nil {
			return err
		}
		file, err := os.OpenFile(conf.Notes, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = fmt.Fprintf(file, "%s prevResult=%t\n", verb, conf.RawPrevResult != nil)
		return err
	}
}

func fakeAdd(args *skel.CmdArgs) error {
	conf := &fakeConf{}
	if err := json.Unmarshal(args.StdinData, conf); err != nil {
		return err
	}
	if err := fakeNote("ADD")(args); err != nil {
		return err
	}
	if conf.RawPrevResult != nil {
		if err := version.ParsePrevResult(&conf.PluginConf); err != nil {
			return err
		}
		return types.PrintResult(conf.PrevResult, conf.CNIVersion)
	}
	name, addrs, err := fakeDevice(args, conf.Peer)
	if err != nil {
		return err
	}
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion, Interfaces: []*current.Interface{{Name: name}, {Name: args.IfName, Sandbox: args.Netns}},
	}
	for _, addr := range addrs {
		whole := net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
		result.IPs = append(result.IPs, &current.IPConfig{Interface: current.Int(1), Address: whole})
	}
	return types.PrintResult(result, conf.CNIVersion)
}

// fakeDevice makes a device, and returns its name and its addresses.
func fakeDevice(args *skel.CmdArgs, peer string) (name string, addrs []netip.Addr, err error) {
	pod, err := netns.GetFromPath(args.Netns)
	if err != nil {
		return "", nil, err
	}
	defer pod.Close()
	handle, err := netlink.NewHandleAt(pod, unix.NETLINK_ROUTE)
	if err != nil {
		return "", nil, err
	}
	defer handle.Close()
	name = "other0"
	if peer == "bridge" {
		name = "other-" + args.ContainerID
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: args.IfName, PeerNamespace: netlink.NsFd(pod)}
	if peer == "pod" {
		err = handle.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: args.IfName}, PeerName: "eth1"})
	} else {
		err = netlink.LinkAdd(veth)
	}
	if err != nil {
		return "", nil, err
	}
	link, err := handle.LinkByName(args.IfName)
	if err != nil {
		return "", nil, err
	}
	if peer == "bridge" {
		addrs, err = atBridge(args.ContainerID, handle, veth, link)
		return name, addrs, err
	}
	addr, err := netlink.ParseAddr("10.9.0.5/32")
	if err != nil {
		return "", nil, err
	}
	return name, []netip.Addr{netip.MustParseAddr("10.9.0.5")}, handle.AddrAdd(link, addr)
}

// fakes makes the fake plugin callable: it is the test's own binary under another name.
func fakes(t *testing.T, n *node) (notes string) {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	n.must(err)
	n.must(os.Symlink(self, filepath.Join(dir, fakeName)))
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{plugin.in(t), dir}, n.cache, nil)
	return filepath.Join(dir, "notes")
}

// TestBeforeAnother checks that a plugin after ours sees our result and is called for every verb.
func TestBeforeAnother(t *testing.T) {
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	notes := fakes(t, n)
	n.configure("1.1.0", entry, fmt.Sprintf(`{"type": %q, "notes": %q}`, fakeName, notes))
	p := n.pod("a")
	if result := n.mustAdd(p); len(result.IPs) != 2 {
		t.Errorf("the last result is %+v", result)
	}
	n.must(n.check(p))
	n.must(n.status())
	n.must(n.collect(p))
	n.must(n.del(p))
	n.nothingLeft()
	content, err := os.ReadFile(notes)
	n.must(err)
	// Before GC, libcni releases containers that are in its cache and no longer in use; this one is
	// in use.
	want := "ADD prevResult=true\nCHECK prevResult=true\nSTATUS prevResult=false\nGC prevResult=false\nDEL prevResult=true\n"
	if string(content) != want {
		t.Errorf("the other plugin was called for\n%swant\n%s", content, want)
	}
}

// TestAfterAnother checks that our plugin after another one makes nothing, records the other's
// device, and passes its result on.
func TestAfterAnother(t *testing.T) {
	n := newNode(t)
	notes := fakes(t, n)
	n.kill()
	n.Chained = true
	n.start()
	n.configure("1.0.0", fmt.Sprintf(`{"type": %q, "notes": %q}`, fakeName, notes), entry)
	p := n.pod("a")
	result := n.mustAdd(p)
	if len(result.IPs) != 1 || result.IPs[0].Address.String() != "10.9.0.5/32" || len(result.Interfaces) != 2 {
		t.Errorf("the result of the other became %+v", result)
	}
	for range 2 {
		record, err := os.ReadFile(filepath.Join(n.Dir, "pods", p.device()))
		n.must(err)
		for _, want := range []string{`"addresses":["10.9.0.5"]`, `"name":"other0"`, `"chained":true`, `"netnsCookie":`} {
			if !strings.Contains(string(record), want) {
				t.Errorf("the record lacks %s: %s", want, record)
			}
		}
		n.must(n.check(p))
		n.restart() // the next agent knows as much
	}
	n.must(n.del(p))
	if left := n.left(); len(left) != 1 || left[0] != "device other0" {
		t.Errorf("DEL left %q, want the device of the other plugin", left)
	}

	// When a pod's device is gone, the agent forgets it.
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName("other0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
	n.mustAdd(p)
	n.kill()
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName("other0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
	n.start()
	n.nothingLeft()
}

// TestAfterAnotherRefuses checks that configurations that our plugin cannot serve after another one
// are refused with an error.
func TestAfterAnotherRefuses(t *testing.T) {
	n := newNode(t)
	notes := fakes(t, n)
	// A device on the node that merely has the same index as the peer in the pod is not that peer.
	n.must(n.ns.Do(func() error {
		for i := range 4 {
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("a%d", i)}, PeerName: fmt.Sprintf("b%d", i)}
			if err := netlink.LinkAdd(link); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, tt := range []struct {
		name    string
		chained bool
		plugins []string
	}{
		{"the agent gives addresses itself", false, []string{fmt.Sprintf(`{"type": %q, "notes": %q}`, fakeName, notes), entry}},
		{"no other plugin", true, []string{entry}},
		{"both ends are in the pod", true, []string{fmt.Sprintf(`{"type": %q, "notes": %q, "peer": "pod"}`, fakeName, notes), entry}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n.t = t
			n.kill()
			n.Chained = tt.chained
			n.start()
			n.configure("1.1.0", tt.plugins...)
			p := n.pod("x")
			conf := p.conf()
			err := n.ns.Do(func() error { _, err := n.cni.AddNetworkList(context.Background(), n.list, conf); return err })
			if code(err) != types.ErrInvalidNetworkConfig {
				t.Errorf("ADD: %v", err)
			}
			n.must(n.del(p))
		})
	}
	n.t = t
}
