package podnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/rig"
)

const entry = `{"type": "fairlead-cni", "socket": "SOCKET", "capabilities": {"portMappings": true, "bandwidth": true, "mac": true, "ips": true}}`

// TestVersions checks that each version of the specification gets its own form of result and its
// own verbs: CHECK since 0.4.0, GC and STATUS since 1.1.0.
func TestVersions(t *testing.T) {
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	info, err := n.cni.GetVersionInfo(context.Background(), "fairlead-cni")
	n.must(err)
	if diff := cmp.Diff([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, info.SupportedVersions()); diff != "" {
		t.Errorf("VERSION (-want +have):\n%s", diff)
	}
	for _, version := range info.SupportedVersions() {
		t.Run(version, func(t *testing.T) {
			n.t = t
			n.configure(version, entry)
			p := n.pod("v" + version)
			result := n.mustAdd(p)
			if len(result.IPs) != 2 || len(result.Routes) != 2 || len(result.Interfaces) != 2 {
				t.Errorf("result %+v", result)
			}
			err := n.check(p)
			if (version == "0.3.1") != (err != nil) {
				t.Errorf("CHECK: %v", err)
			}
			n.must(n.status())
			n.must(n.del(p))
			n.nothingLeft()
		})
	}
	n.t = t
	n.configure("0.2.0", entry)
	if _, err := n.add(n.pod("old")); code(err) != types.ErrIncompatibleCNIVersion {
		t.Errorf("ADD in version 0.2.0: %v", err)
	}
}

// TestTwice checks that repeated calls have the same outcome, also with an agent that has started
// since.
func TestTwice(t *testing.T) {
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	p := n.pod("a")
	first := n.mustAdd(p)
	before := n.left()
	if len(before) != 6 {
		t.Errorf("ADD made %q", before)
	}
	for range 2 {
		if diff := cmp.Diff(first, n.mustAdd(p)); diff != "" {
			t.Errorf("ADD again (-first +second):\n%s", diff)
		}
		n.restart()
		if diff := cmp.Diff(before, n.left()); diff != "" {
			t.Errorf("after a restart (-before +after):\n%s", diff)
		}
		n.must(n.check(p))
	}
	if seen := talk(t, n.ns, "icmp", p.addr[true]); seen != p.addr[true].String() {
		t.Errorf("the pod answers as %q", seen)
	}
	for range 3 {
		n.must(n.del(p))
		n.nothingLeft()
	}
	if err := n.check(p); err == nil {
		t.Error("CHECK of what is gone succeeds")
	}
}

// TestDelAlways checks that DEL succeeds whatever is missing, and that nothing is left once an
// agent runs again.
func TestDelAlways(t *testing.T) {
	for _, tt := range []struct {
		name string
		lose func(*node, *pod)
	}{
		{"the agent", func(n *node, _ *pod) { n.kill() }},
		{"the agent's files", func(n *node, _ *pod) {
			n.kill()
			n.must(os.RemoveAll(n.Dir))
		}},
		{"the namespace", func(n *node, p *pod) { n.must(p.Close()) }},
		{"the result of ADD", func(n *node, _ *pod) { n.must(os.RemoveAll(filepath.Join(n.cache, "results"))) }},
		{"all of it", func(n *node, p *pod) {
			n.kill()
			n.must(p.Close())
			n.must(os.RemoveAll(filepath.Join(n.cache, "results")))
		}},
		{"the device", func(n *node, p *pod) { n.removeDevice(p) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
			p := n.pod("a")
			n.mustAdd(p)
			conf := p.conf()
			tt.lose(n, p)
			for range 3 {
				n.must(n.ns.Do(func() error { return n.cni.DelNetworkList(context.Background(), n.list, conf) }))
			}
			n.restart()
			n.nothingLeft()
		})
	}
}

func (p *pod) device() string {
	return cni.Attachment{Network: "pods", Container: p.id, IfName: "eth0"}.Device()
}

func (n *node) removeDevice(p *pod) {
	n.t.Helper()
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName(p.device())
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
}

// removeIfThere does what the kernel does some time after the pod's namespace has ended.
func (n *node) removeIfThere(p *pod) {
	n.t.Helper()
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName(p.device())
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		return err
	}))
}

// TestCheck checks that CHECK fails for everything that is not as ADD left it.
func TestCheck(t *testing.T) {
	in := func(ns *rig.Netns, device string, change func(netlink.Link) error) func() error {
		return func() error {
			return ns.Do(func() error {
				link, err := netlink.LinkByName(device)
				if err != nil {
					return err
				}
				return change(link)
			})
		}
	}
	for _, tt := range []struct {
		name string
		do   func(n *node, p *pod) func() error
	}{
		{"no address", func(_ *node, p *pod) func() error {
			return in(p.Netns, "eth0", func(l netlink.Link) error {
				return netlink.AddrDel(l, &netlink.Addr{IPNet: &net.IPNet{IP: p.addr[false].AsSlice(), Mask: net.CIDRMask(128, 128)}})
			})
		}},
		{"no way out", func(_ *node, p *pod) func() error {
			return in(p.Netns, "eth0", func(l netlink.Link) error {
				return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: net.IPv4(169, 254, 1, 1)})
			})
		}},
		{"no interface", func(_ *node, p *pod) func() error { return in(p.Netns, "eth0", netlink.LinkDel) }},
		{"another interface", func(_ *node, p *pod) func() error {
			return in(p.Netns, "eth0", func(l netlink.Link) error {
				if err := netlink.LinkDel(l); err != nil {
					return err
				}
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth1"})
			})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
			p := n.pod("a")
			n.mustAdd(p)
			n.must(n.check(p))
			n.must(tt.do(n, p)())
			if err := n.check(p); err == nil {
				t.Error("CHECK finds nothing")
			} else {
				t.Log(err)
			}
			n.must(n.del(p))
			n.nothingLeft()
		})
	}
}

// TestStatus checks that STATUS says whether ADD would work, and that ADD waits for an agent that
// restarts.
func TestStatus(t *testing.T) {
	t.Parallel() // ADD waits ten seconds for an agent that is not ready
	n := newNode(t, "10.1.0.0/24")
	n.must(n.status())
	n.kill()
	if err := n.status(); code(err) != cni.ErrNotAvailable {
		t.Errorf("STATUS without an agent: %v", err)
	}
	p := n.pod("a")
	added := make(chan error, 1)
	go func() { _, err := n.add(p); added <- err }()
	n.start()
	if err := <-added; err != nil {
		t.Errorf("ADD while the agent starts: %v", err)
	}
	n.must(n.del(p))
	n.nothingLeft()

	n.kill()
	n.CIDRs = nil
	n.start()
	err := n.status()
	if code(err) != cni.ErrNotAvailable || !strings.Contains(err.Error(), "podCIDR") {
		t.Errorf("STATUS without a podCIDR: %v", err)
	}
	if _, err := n.add(p); code(err) != types.ErrTryAgainLater {
		t.Errorf("ADD without a podCIDR: %v", err)
	}
	n.nothingLeft()
}

// TestMistakes checks that mistakes of the runtime and in the configuration get the error codes
// that the specification assigns.
func TestMistakes(t *testing.T) {
	n := newNode(t, "10.1.0.0/24")
	for _, tt := range []struct {
		name, entry string
		change      func(*pod)
		netns       func(*pod) string
		code        uint
	}{
		{"socket is no path", `{"type": "fairlead-cni", "socket": "here"}`, nil, nil, types.ErrInvalidNetworkConfig},
		{"socket is a number", `{"type": "fairlead-cni", "socket": 1}`, nil, nil, types.ErrDecodingFailure},
		{"no address", entry, func(p *pod) { p.caps = map[string]any{"ips": []string{"x"}} }, nil, types.ErrInvalidNetworkConfig},
		{"address of others", entry, func(p *pod) { p.caps = map[string]any{"ips": []string{"10.2.0.1"}} }, nil, cni.ErrNoAddress},
		{"address of the network", entry, func(p *pod) { p.caps = map[string]any{"ips": []string{"10.1.0.0"}} }, nil, cni.ErrNoAddress},
		{"two addresses of a family", entry, func(p *pod) { p.caps = map[string]any{"ips": []string{"10.1.0.7", "10.1.0.8"}} }, nil, cni.ErrNoAddress},
		{"no MAC", entry, func(p *pod) { p.caps = map[string]any{"mac": "x"} }, nil, types.ErrInvalidNetworkConfig},
		{"MAC of many", entry, func(p *pod) { p.caps = map[string]any{"mac": "01:00:5e:00:00:01"} }, nil, types.ErrInvalidNetworkConfig},
		{"no port", entry, func(p *pod) {
			p.caps = map[string]any{"portMappings": []map[string]any{{"hostPort": 0, "containerPort": 1, "protocol": "tcp"}}}
		}, nil, types.ErrInvalidNetworkConfig},
		{"namespace is not there", entry, nil, func(*pod) string { return "/run/netns/none-of-this-name" }, types.ErrInvalidNetNS},
		{"namespace is a directory", entry, nil, func(*pod) string { return "/proc" }, types.ErrInvalidNetNS},
		{"namespace is the node's", entry, nil, func(*pod) string { return n.ns.Path() }, types.ErrInvalidNetNS},
		{"namespace is of processes", entry, nil, func(*pod) string { return "/proc/self/ns/pid" }, types.ErrInvalidNetNS},
		{"container has no good name", entry, func(p *pod) { p.id = "../x" }, nil, types.ErrInvalidEnvironmentVariables},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n.t = t
			n.configure("1.1.0", tt.entry)
			p := n.pod("a")
			if tt.change != nil {
				tt.change(p)
			}
			conf := p.conf()
			if tt.netns != nil {
				conf.NetNS = tt.netns(p)
			}
			err := n.ns.Do(func() error { _, err := n.cni.AddNetworkList(context.Background(), n.list, conf); return err })
			if code(err) != tt.code {
				t.Errorf("error %d, want %d: %v", code(err), tt.code, err)
			}
			n.nothingLeft()
		})
	}
	n.t = t
}

// TestCapabilities checks that a pod gets what the runtime asks for by capabilities.
func TestCapabilities(t *testing.T) {
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	p := n.pod("a")
	p.caps = map[string]any{
		"ips": []string{"10.1.0.77/24", "fd00:1::77"}, "mac": "02:11:22:33:44:55",
		"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "TCP"}},
		"bandwidth":    map[string]any{"ingressRate": 1000000, "egressRate": 2000000},
	}
	result := n.mustAdd(p)
	if p.addr[true].String() != "10.1.0.77" || p.addr[false].String() != "fd00:1::77" || result.Interfaces[1].Mac != "02:11:22:33:44:55" {
		t.Errorf("addresses %v, MAC %s", p.addr, result.Interfaces[1].Mac)
	}
	if seen := talk(t, n.ns, "icmp", p.addr[false]); seen != "fd00:1::77" {
		t.Errorf("the pod answers as %q", seen)
	}
	record, err := os.ReadFile(filepath.Join(n.Dir, "pods", p.device()))
	n.must(err)
	for _, want := range []string{`"hostPorts":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]`, `"ingressRate":1000000`, `"egressRate":2000000`, `"netnsCookie":`, `"name":"a"`} {
		if !strings.Contains(string(record), want) {
			t.Errorf("the record lacks %s: %s", want, record)
		}
	}
	other := n.pod("b")
	other.caps = map[string]any{"ips": []string{"10.1.0.77"}}
	if _, err := n.add(other); code(err) != cni.ErrNoAddress {
		t.Errorf("ADD with another's address: %v", err)
	}
	n.must(n.del(p))
	n.nothingLeft()
	// An address that the runtime asks for by name need not rest.
	n.mustAdd(other)
	n.must(n.del(other))
	n.nothingLeft()
}

// TestCollect checks that GC removes what the runtime no longer has, and nothing else.
func TestCollect(t *testing.T) {
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	var pods []*pod
	for i := range 4 {
		p := n.pod(fmt.Sprintf("p%d", i))
		n.mustAdd(p)
		pods = append(pods, p)
	}
	n.kill() // the next agent knows as much
	n.start()
	n.must(n.collect(pods...))
	all := n.left()
	if len(all) != 24 {
		t.Errorf("after GC of nothing: %q", all)
	}
	n.configure("1.1.0", entry)
	other := *n.list
	other.Name = "others"
	n.must(n.ns.Do(func() error { return n.cni.GCNetworkList(context.Background(), &other, nil) }))
	if diff := cmp.Diff(all, n.left()); diff != "" {
		t.Errorf("after GC of another network (-before +after):\n%s", diff)
	}
	n.must(n.collect(pods[1], pods[3]))
	if left := n.left(); len(left) != 12 || !slices.Contains(left, "address "+pods[1].addr[true].String()) {
		t.Errorf("after GC of two: %q", left)
	}
	for _, p := range []*pod{pods[1], pods[3]} {
		n.must(n.check(p))
	}
	n.must(n.collect())
	n.nothingLeft()
}

// TestExhausted checks that a pod for which there is no address is refused with the numbers, and
// leaves nothing.
func TestExhausted(t *testing.T) {
	n := newNode(t, "10.1.0.0/30", "fd00:1::/64")
	a, b, c := n.pod("a"), n.pod("b"), n.pod("c")
	n.mustAdd(a)
	n.mustAdd(b)
	before := n.left()
	_, err := n.add(c)
	if code(err) != cni.ErrNoAddress || !strings.Contains(err.Error(),
		"2 are in use, 0 belong to others and 0 rest") {
		t.Errorf("ADD of the third: %v", err)
	}
	if diff := cmp.Diff(before, n.left()); diff != "" {
		t.Errorf("a failed ADD changed (-before +after):\n%s", diff)
	}
	n.must(n.del(a))
	if _, err = n.add(c); code(err) != cni.ErrNoAddress || !strings.Contains(err.Error(), "1 are in use, 0 belong to others and 1 rest") {
		t.Errorf("ADD while an address rests: %v", err)
	}
	n.must(n.del(b))
	n.nothingLeft()
}

// TestReboot checks that after a reboot nothing is left from before.
func TestReboot(t *testing.T) {
	n := newNode(t, "10.1.0.0/29")
	for i := range 6 {
		p := n.pod(fmt.Sprintf("p%d", i))
		n.mustAdd(p)
		if i < 3 {
			n.must(n.del(p))
		}
		n.must(p.Close())
	}
	n.kill()
	// On a reboot, devices are gone; here they go with the namespaces, sooner or later.
	n.Boot = "two"
	n.ns.Close()
	n.ns = rig.NewNetns(t, "node after")
	n.start()
	n.nothingLeft()
	for i := range 6 {
		p := n.pod(fmt.Sprintf("q%d", i))
		n.mustAdd(p)
	}
}

// TestMTU checks that both ends have the MTU of the node's device with the default route, of
// whichever family, and the lower one if there are two.
func TestMTU(t *testing.T) {
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	for i, tt := range []struct {
		mtu  int
		dst  string
		want int
	}{{9000, "::/0", 9000}, {1400, "0.0.0.0/0", 1400}} {
		n.must(n.ns.Do(func() error {
			name := fmt.Sprintf("up%d", i)
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: tt.mtu}, PeerName: "peer" + name}); err != nil {
				return err
			}
			for _, end := range []string{name, "peer" + name} {
				link, err := netlink.LinkByName(end)
				if err != nil {
					return err
				}
				if err := netlink.LinkSetUp(link); err != nil {
					return err
				}
			}
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			_, dst, err := net.ParseCIDR(tt.dst)
			if err != nil {
				return err
			}
			return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst})
		}))
		n.restart() // a running agent may take ten seconds to notice the route
		p := n.pod(fmt.Sprintf("p%d", i))
		n.mustAdd(p)
		for _, end := range []struct {
			ns   *rig.Netns
			name string
		}{{n.ns, p.device()}, {p.Netns, "eth0"}} {
			n.must(end.ns.Do(func() error {
				link, err := netlink.LinkByName(end.name)
				if err == nil && link.Attrs().MTU != tt.want {
					t.Errorf("%s has the MTU %d, want %d", end.name, link.Attrs().MTU, tt.want)
				}
				return err
			}))
		}
		n.must(n.del(p))
	}
}
