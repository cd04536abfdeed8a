package podnet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/test/rig"
)

// lead keeps the routes to other nodes. Its arguments are the mode, the node's name and,
// optionally, its Node, which is then known from the start. Each line of its input is the list of
// all Nodes, or empty to have it print its state.
func lead(args []string) int {
	err := func() error {
		if err := unprivileged(); err != nil {
			return err
		}
		store := model.NewStore(args[1])
		if len(args) > 2 {
			self := &model.Node{}
			if err := json.Unmarshal([]byte(args[2]), self); err != nil {
				return err
			}
			store.SetNode(self)
		}
		ways, err := fabric.New(fabric.Config{
			Mode: args[0], Store: store, MTU: podnet.DefaultMTU, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
			CIDRs:    func() ([]netip.Prefix, error) { return store.Self().PodCIDRs, nil },
			Guard:    func() error { return nil },
			Accepted: func(map[netip.Prefix]string) error { return nil },
		})
		if err != nil {
			return err
		}
		store.ReplaceServices(nil)
		store.ReplaceSlices(nil)
		store.ReplaceNamespaces(nil)
		store.ReplacePods(nil)
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { ended <- ways.Run(ctx) }()
		lines := bufio.NewReader(os.Stdin)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			if len(line) == 1 {
				text, err := json.Marshal(ways.Status())
				if err != nil {
					return err
				}
				fmt.Printf("%s\n", text)
				continue
			}
			var nodes []*model.Node
			if err := json.Unmarshal(line, &nodes); err != nil {
				return err
			}
			store.ReplaceNodes(nodes)
		}
		cancel()
		return <-ended
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// unprivileged restarts the process where it cannot write below /proc/sys, as containers without
// privileges cannot.
func unprivileged() error {
	const done = "FAIRLEAD_TEST_UNPRIVILEGED=1"
	if slices.Contains(os.Environ(), done) {
		return nil
	}
	runtime.LockOSThread() // the process has this thread's mounts after exec
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	for _, mount := range []struct {
		at    string
		flags uintptr
	}{{"/", unix.MS_PRIVATE | unix.MS_REC}, {"/proc/sys", unix.MS_BIND}, {"/proc/sys", unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY}} {
		if err := unix.Mount(mount.at, mount.at, "", mount.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", mount.at, err)
		}
	}
	return unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), done))
}

// leader is the process that keeps a node's routes to other nodes.
type leader struct {
	*rig.Process
	t    *testing.T
	ns   *rig.Netns
	self string
}

func newLeader(t *testing.T, ns *rig.Netns, mode, self string, object ...string) *leader {
	t.Helper()
	if mode == fabric.VXLAN {
		needVXLAN(t, ns)
	}
	args := append([]string{mode, self}, object...)
	return &leader{Process: rig.NewChild(t, nil, ns, "lead", args...), t: t, ns: ns, self: self}
}

// needVXLAN ends the test on a kernel without VXLAN.
func needVXLAN(t *testing.T, ns *rig.Netns) {
	t.Helper()
	err := ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "flprobe"
		probe := &netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Port: 1}
		if err := netlink.LinkAdd(probe); err != nil {
			return err
		}
		return netlink.LinkDel(probe)
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		rig.Lacking(t, "vxlan", "this kernel has no VXLAN")
	} else if err != nil {
		t.Fatalf("add a device of VXLAN: %v", err)
	}
}

func (l *leader) write(line []byte) {
	l.t.Helper()
	if _, err := l.Stdin.Write(append(line, '\n')); err != nil {
		l.t.Fatalf("tell the leader of %s: %v, %v", l.self, err, l.Wait())
	}
}

func (l *leader) announceNodes(nodes []*model.Node) {
	l.t.Helper()
	text, err := json.Marshal(nodes)
	if err != nil {
		l.t.Fatal(err)
	}
	l.write(text)
}

func (l *leader) stats() (stats fabric.Status) {
	l.t.Helper()
	l.write(nil)
	line, err := l.ReadLine()
	if err == nil {
		err = json.Unmarshal([]byte(line), &stats)
	}
	if err != nil {
		l.t.Fatalf("ask the leader of %s: %v", l.self, err)
	}
	return stats
}

// until waits for a state of the leader and of the kernel.
func (l *leader) until(what string, is func(fabric.Status) bool) fabric.Status {
	l.t.Helper()
	var stats fabric.Status
	for late := time.Now().Add(patience); time.Now().Before(late); time.Sleep(20 * time.Millisecond) {
		if stats = l.stats(); is(stats) {
			return stats
		}
	}
	l.t.Fatalf("node %s: not %s in %s: %+v; routes %q", l.self, what, patience, stats, l.routes())
	return stats
}

func (l *leader) untilRoutes(n int) fabric.Status {
	l.t.Helper()
	return l.until(fmt.Sprintf("%d routes", n), func(s fabric.Status) bool { return s.Routes == n && s.Error == "" && len(l.routes()) == n })
}

// ours is the protocol number that marks a fabric's routes.
const ours = 102

// routes returns the destinations of a fabric's routes in the kernel.
func (l *leader) routes() []string {
	l.t.Helper()
	var list []string
	err := l.ns.Do(func() error {
		filter := &netlink.Route{Protocol: ours, Table: unix.RT_TABLE_MAIN}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		for i := range routes {
			list = append(list, routes[i].Dst.String())
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

// TestFabric checks that pods of three nodes on a link reach each other under their own addresses,
// and that nodes reach the pods of other nodes.
func TestFabric(t *testing.T) {
	for _, mode := range []string{fabric.Native, fabric.VXLAN} {
		for _, l := range []lanForm{
			{name: "IPv4", addr4: true, pods4: true},
			{name: "IPv6", addr6: true, pods6: true},
			{name: "dual", addr4: true, addr6: true, pods4: true, pods6: true},
			{name: "IPv4 over IPv6", addr6: true, pods4: true},
			{name: "dual by programs", addr4: true, addr6: true, pods4: true, pods6: true, byPrograms: true},
		} {
			t.Run(mode+", "+l.name, func(t *testing.T) {
				l.mode = mode
				k := newServingNodesOnLAN(t, l)
				k.announceNodes(k.objects)
				for i := range k.pods {
					k.reach(t, &l, i, (i+1)%3)
				}
			})
		}
	}
}

// reach has a pod and its node ask a pod of another node, and the pod also that node, by every
// protocol.
func (k *nodesOnLAN) reach(t *testing.T, l *lanForm, i, j int) {
	t.Helper()
	for is4, to := range k.pods[j].addr {
		for _, protocol := range []string{"tcp", "udp", "icmp"} {
			check := func(what, seen string, want ...netip.Addr) {
				t.Helper()
				if !slices.ContainsFunc(want, func(a netip.Addr) bool { return a.String() == seen }) {
					t.Errorf("%s by %s, IPv4 %t: came from %s, want one of %v", what, protocol, is4, seen, want)
				}
			}
			seen := func(addr netip.Addr) netip.Addr {
				if protocol == "icmp" {
					return to
				}
				return addr
			}
			check("pod to pod", talk(t, k.pods[i].Netns, protocol, to), seen(k.pods[i].addr[is4]))
			node := []netip.Addr{to}
			if protocol != "icmp" {
				node = k.objects[i].Addrs
				if l.mode == fabric.VXLAN {
					node = []netip.Addr{networkOf(k.objects[i], is4)}
				}
			}
			if is4 && !l.addr4 && l.mode == fabric.Native {
				continue // the node has no IPv4 address that the other nodes know
			}
			check("node to pod", talk(t, k.nodes[i].ns, protocol, to), node...)
		}
	}
	if l.byPrograms {
		for _, addr := range k.objects[j].Addrs {
			want := k.pods[i].addr[addr.Is4()]
			if at := slices.IndexFunc(k.objects[i].Addrs, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }); l.mode == fabric.VXLAN {
				want = k.objects[i].Addrs[at]
			}
			for _, protocol := range []string{"tcp", "udp"} {
				if seen := talk(t, k.pods[i].Netns, protocol, addr); seen != want.String() {
					t.Errorf("pod to node by %s: came from %s, want %s", protocol, seen, want)
				}
			}
		}
	}
}

// networkOf returns the first address of a node's pod CIDR of a family.
func networkOf(node *model.Node, is4 bool) netip.Addr {
	for _, cidr := range node.PodCIDRs {
		if cidr.Addr().Is4() == is4 {
			return cidr.Addr()
		}
	}
	return netip.Addr{}
}

// TestFabricChanges checks that the routes of a node come and go with it while those of others
// stay, that routes that somebody removes come back, that the next agent takes over what there is,
// and that another mode leaves nothing of the one before.
func TestFabricChanges(t *testing.T) {
	for _, mode := range []string{fabric.Native, fabric.VXLAN} {
		t.Run(mode, func(t *testing.T) {
			l := lanForm{mode: mode, addr4: true, addr6: true, pods4: true, pods6: true}
			k := newServingNodesOnLAN(t, l)
			k.announceNodes(k.objects[:2])
			k.announceNodes(k.objects)
			k.reach(t, &l, 0, 2)
			k.announceNodes(k.objects[:2])
			if want := []string{"10.1.0.0/24", "10.2.0.0/24", "fd00:1::/64", "fd00:2::/64"}; !reflect.DeepEqual(k.leaders[0].routes(), want) {
				t.Errorf("routes %q, want %q", k.leaders[0].routes(), want)
			}
			k.reach(t, &l, 0, 1)

			at := k.leaders[0]
			before := at.stats()
			at.removeAll()
			at.until("mended", func(s fabric.Status) bool { return s.Mended >= before.Mended+4 && len(at.routes()) == 4 })
			k.reach(t, &l, 0, 1)

			thief := &model.Node{Name: "a", Addrs: k.objects[2].Addrs, PodCIDRs: slices.Clone(k.objects[1].PodCIDRs)}
			for _, cidr := range []string{"0.0.0.0/0", "::/0", "10.1.0.128/25", "198.51.100.0/24"} {
				thief.PodCIDRs = append(thief.PodCIDRs, netip.MustParsePrefix(cidr))
			}
			at.announceNodes([]*model.Node{thief, k.objects[0], k.objects[1]})
			at.until("refused", func(s fabric.Status) bool { return len(s.Refused) == 6 && len(at.routes()) == 4 })
			k.reach(t, &l, 0, 1)

			at.Kill()
			k.reach(t, &l, 0, 1)
			at = newLeader(t, k.nodes[0].ns, mode, "n1")
			k.leaders[0] = at
			at.announceNodes(k.objects[:2])
			if after := at.untilRoutes(4); after.Changes > 0 {
				t.Errorf("the next agent made %d changes", after.Changes)
			}
			at.Kill()
			other := map[string]string{fabric.Native: fabric.VXLAN, fabric.VXLAN: fabric.None}[mode]
			at = newLeader(t, k.nodes[0].ns, other, "n1")
			at.announceNodes(k.objects[:2])
			if other == fabric.None {
				at.until("empty", func(fabric.Status) bool { return len(at.routes()) == 0 && !at.hasDevice() })
				return
			}
			at.untilRoutes(4)
			at.until("a tunnel", func(fabric.Status) bool { return at.hasDevice() })
		})
	}
}

func (l *leader) hasDevice() (has bool) {
	_ = l.ns.Do(func() error {
		_, err := netlink.LinkByName(fabric.DeviceName)
		has = err == nil
		return nil
	})
	return has
}

// removeAll removes all routes of a fabric behind its back.
func (l *leader) removeAll() {
	l.t.Helper()
	err := l.ns.Do(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: ours}, netlink.RT_FILTER_PROTOCOL)
		for i := range routes {
			if err := netlink.RouteDel(&routes[i]); err != nil {
				return fmt.Errorf("remove %s: %w", routes[i].Dst, err)
			}
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

// TestFabricUnsynced checks that nothing is removed before the agent knows which nodes there are.
func TestFabricUnsynced(t *testing.T) {
	l := lanForm{mode: fabric.VXLAN, addr4: true, pods4: true}
	k := newServingNodesOnLAN(t, l)
	k.announceNodes(k.objects)
	k.leaders[0].Kill()
	self, err := json.Marshal(k.objects[0])
	if err != nil {
		t.Fatal(err)
	}
	k.leaders[0] = newLeader(t, k.nodes[0].ns, fabric.VXLAN, "n1", string(self))
	k.leaders[0].stats() // it runs
	k.reach(t, &l, 0, 1)
	if left := k.leaders[0].routes(); len(left) != 3 {
		t.Errorf("routes %q", left)
	}
}

// TestFabricScale checks that one node that comes or goes among thousands takes no more changes
// than it would alone.
func TestFabricScale(t *testing.T) {
	const many = 5000
	for _, mode := range []string{fabric.Native, fabric.VXLAN} {
		t.Run(mode, func(t *testing.T) {
			rig.Root(t)
			ns := rig.NewNetns(t, "node")
			if err := ns.SetSysctl("net/ipv6/conf/all/forwarding", "1"); err != nil { // as "fairlead init" does
				t.Fatal(err)
			}
			rig.Veth(t, ns, "eth0", rig.NewNetns(t, "wire"), "eth0")
			rig.Address(t, ns, "eth0", "198.18.0.1/16", "2001:db8:1::1/64")
			at := newLeader(t, ns, mode, "n0")
			var objects []*model.Node
			for i := range many + 1 {
				objects = append(objects, &model.Node{
					Name:  fmt.Sprintf("n%d", i),
					Addrs: []netip.Addr{netip.AddrFrom4([4]byte{198, 18, byte((i + 1) >> 8), byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("2001:db8:1::%x", i+1))},
					PodCIDRs: []netip.Prefix{
						netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24), netip.MustParsePrefix(fmt.Sprintf("fd00:%x::/64", i)),
					},
				})
			}
			wait := func(what string, nodes int) fabric.Status {
				t.Helper()
				return at.until(what, func(s fabric.Status) bool { return s.Nodes == nodes && s.Routes == 2*nodes+2 && s.Error == "" })
			}
			began := time.Now()
			at.announceNodes(objects[:many])
			first := wait("all there", many-1)
			t.Logf("%d nodes: %d changes, %s", many, first.Changes, time.Since(began).Round(time.Millisecond))
			if left := at.routes(); len(left) != 2*many {
				t.Errorf("%d routes, want %d", len(left), 2*many)
			}
			began = time.Now()
			at.announceNodes(objects)
			one := wait("one more", many)
			t.Logf("one more: %d changes, %s", one.Changes-first.Changes, time.Since(began).Round(time.Millisecond))
			at.announceNodes(objects[:many])
			gone := wait("one less", many-1)
			each := uint64(2) // a route of each family
			if mode == fabric.VXLAN {
				each = 4 // and a neighbor of each
			}
			if came, went := one.Changes-first.Changes, gone.Changes-one.Changes; came != each || went != each {
				t.Errorf("a node that came took %d changes, and one that went %d, want %d", came, went, each)
			}
		})
	}
}

// TestTunnelWithoutIPv6 checks that a node on which new devices have IPv6 disabled gets a tunnel as
// soon as somebody does what the error says.
func TestTunnelWithoutIPv6(t *testing.T) {
	t.Parallel() // it mostly waits
	rig.Root(t)
	ns := rig.NewNetns(t, "node")
	rig.Veth(t, ns, "eth0", rig.NewNetns(t, "network"), "node0")
	rig.Address(t, ns, "eth0", "198.51.100.1/24")
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/default/disable_ipv6"} {
		if err := ns.SetSysctl(name, "1"); err != nil {
			t.Fatal(err)
		}
	}
	var nodes []*model.Node
	for i := range 2 {
		nodes = append(nodes, &model.Node{
			Name: fmt.Sprintf("n%d", i+1), UID: fmt.Sprint(i), Addrs: []netip.Addr{netip.MustParseAddr(fmt.Sprintf("198.51.100.%d", i+1))},
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", i+1))},
		})
	}
	l := newLeader(t, ns, fabric.VXLAN, "n1")
	l.announceNodes(nodes)
	l.until("an error", func(s fabric.Status) bool {
		return strings.Contains(s.Error, "set net.ipv6.conf.flvxlan0.disable_ipv6=0")
	})
	if err := ns.SetSysctl("net/ipv6/conf/flvxlan0/disable_ipv6", "0"); err != nil {
		t.Fatal(err)
	}
	l.untilRoutes(len(nodes))
}
