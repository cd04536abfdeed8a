package outside

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// The addresses of the network, IPv4 and IPv6:
//
// client .7 -- 198.51.100.0/24, 2001:db8:1::/64 -- .1 router .254 -- 192.0.2.0/24, 2001:db8::/64 --
// .1 node a, .2 node b
// node a .1 -- 10.244.1.0/24, fd02:1::/64 -- .5 pod a node b .1 -- 10.244.2.0/24, fd02:2::/64 -- .5
// pod b
//
// and so on for further nodes.
var (
	clientAddr = family{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:1::7")}
	nodeA      = family{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	nodeB      = family{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
	nodeC      = family{netip.MustParseAddr("192.0.2.3"), netip.MustParseAddr("2001:db8::3")}
	podA       = family{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd02:1::5")}
	podB       = family{netip.MustParseAddr("10.244.2.5"), netip.MustParseAddr("fd02:2::5")}
	podD       = family{netip.MustParseAddr("10.244.4.5"), netip.MustParseAddr("fd02:4::5")}
	anyAddr    = family{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
)

// family has an address of each family.
type family [2]netip.Addr

func (f family) at(v6 bool, port uint16) netip.AddrPort {
	if v6 {
		return netip.AddrPortFrom(f[1], port)
	}
	return netip.AddrPortFrom(f[0], port)
}

// settings are the differences between networks.
type settings struct {
	xdp      string // the XDP mode
	mtu      int    // of every device; 0 for 1500
	sums     bool   // senders leave checksums to the device, and packets inside the machine are large
	narrow   int    // the MTU of the router toward the client, if smaller
	devices  string // of nodes; "" for auto
	services bool   // add the services that the tests of paths use
	link     int    // kind of link that connects the nodes
	sctp     bool   // the services echo by SCTP too
	// backends on other nodes answer in fragments, the first one last
	backwards bool
	passed    bool // another XDP program in the stack of the nodes passes everything
	nodes     int  // how many there are; 0 for two
}

// nodesBehindRouter is the network that the package comment describes.
type nodesBehindRouter struct {
	t                    *testing.T
	client, router, a, b *rig.Netns // a and b are the first two nodes
	onA, onB             *child[nodeOrder, nodeState]
	user                 *child[order, seen]
	pods                 []*rig.Netns // one for each node
	nodes                []*node
}

// node is a node; its agent's files are in their own directories.
type node struct {
	*rig.Netns
	bpffs  string
	cgroup *rig.Cgroup
}

func newNodesBehindRouter(t *testing.T, s settings) *nodesBehindRouter {
	t.Helper()
	rig.Root(t)
	w := &nodesBehindRouter{t: t, router: rig.NewNetns(t, "router"), client: rig.NewNetns(t, "client")}
	rig.Bridge(t, w.router, "lan")
	rig.Veth(t, w.client, "eth0", w.router, "wan")
	rig.Address(t, w.router, "wan", "198.51.100.1/24", "2001:db8:1::1/64")
	rig.Address(t, w.client, "eth0", "198.51.100.7/24", "2001:db8:1::7/64")
	rig.Address(t, w.router, "lan", "192.0.2.254/24", "2001:db8::254/64")
	rig.Route(t, w.client, "0.0.0.0/0", "198.51.100.1")
	rig.Route(t, w.client, "::/0", "2001:db8:1::1")
	w.forwards(w.router)
	for id := 1; id <= cmp.Or(s.nodes, 2); id++ {
		w.addNode(id, s)
	}
	w.a, w.b = w.nodes[0].Netns, w.nodes[1].Netns
	w.setUp(s)
	if s.narrow != 0 {
		w.narrow(s.narrow)
	}
	// A veth receives what XDP sends through its peer only if it has an XDP program itself.
	if s.xdp == "native" {
		for i := range w.nodes {
			w.passXDP(link.XDPDriverMode, w.router, portOf(i+1))
		}
	}
	if s.passed {
		w.passXDP(link.XDPGenericMode, w.a, "eth0")
		w.passXDP(link.XDPGenericMode, w.b, "eth0")
	}
	w.onA = w.startNode(0, s)
	w.onB = w.startNode(1, s)
	w.user = w.process(w.client)
	if s.services {
		w.addServices(s)
	}
	return w
}

// forwards makes a namespace forward packets.
func (w *nodesBehindRouter) forwards(n *rig.Netns) {
	w.t.Helper()
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := n.SetSysctl(name, "1"); err != nil {
			w.t.Fatal(err)
		}
	}
}

// portOf returns the name of the router's port to which a node is connected.
func portOf(id int) string { return fmt.Sprintf("node%d", id) }

// addNode connects a node and its pod; id is 1 for a.
func (w *nodesBehindRouter) addNode(id int, s settings) {
	t, n, pod := w.t, rig.NewNetns(w.t, "node"), rig.NewNetns(w.t, "pod")
	w.connect(n, s.link, portOf(id))
	rig.Enslave(t, w.router, portOf(id), "lan")
	rig.Address(t, n, "eth0", fmt.Sprintf("192.0.2.%d/24", id), fmt.Sprintf("2001:db8::%d/64", id))
	rig.Route(t, n, "0.0.0.0/0", "192.0.2.254")
	rig.Route(t, n, "::/0", "2001:db8::254")
	w.forwards(n)
	rig.Veth(t, n, "pod0", pod, "eth0")
	rig.Address(t, n, "pod0", fmt.Sprintf("10.244.%d.1/24", id), fmt.Sprintf("fd02:%d::1/64", id))
	rig.Address(t, pod, "eth0", fmt.Sprintf("10.244.%d.5/24", id), fmt.Sprintf("fd02:%d::5/64", id))
	rig.Route(t, pod, "0.0.0.0/0", fmt.Sprintf("10.244.%d.1", id))
	rig.Route(t, pod, "::/0", fmt.Sprintf("fd02:%d::1", id))
	for other := 1; other <= cmp.Or(s.nodes, 2); other++ {
		if other != id {
			rig.Route(t, n, fmt.Sprintf("10.244.%d.0/24", other), fmt.Sprintf("192.0.2.%d", other))
			rig.Route(t, n, fmt.Sprintf("fd02:%d::/64", other), fmt.Sprintf("2001:db8::%d", other))
		}
	}
	w.nodes, w.pods = append(w.nodes, &node{Netns: n}), append(w.pods, pod)
}

// setUp sets the MTU and the offloads of the devices.
func (w *nodesBehindRouter) setUp(s settings) {
	w.t.Helper()
	type devices struct {
		n     *rig.Netns
		names string
	}
	all := []devices{{w.client, "eth0"}, {w.router, "wan lan"}}
	for i, n := range w.nodes {
		all = append(all, devices{w.router, portOf(i + 1)}, devices{n.Netns, "eth0 pod0"}, devices{w.pods[i], "eth0"})
	}
	for _, d := range all {
		for name := range strings.FieldsSeq(d.names) {
			if s.mtu != 0 {
				rig.SetMTU(w.t, d.n, name, s.mtu)
			}
			if name != "lan" && s.link == plain {
				rig.SetOffloads(w.t, d.n, name, rig.Offloads{Sums: s.sums, Merge: s.sums})
			}
		}
	}
}

// passXDP attaches an XDP program that passes everything to devices.
func (w *nodesBehindRouter) passXDP(how link.XDPAttachFlags, n *rig.Netns, names ...string) {
	t := w.t
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, Flags: unix.BPF_F_XDP_HAS_FRAGS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	for _, name := range names {
		var attached link.Link
		err := n.Do(func() error {
			device, err := net.InterfaceByName(name)
			if err == nil {
				attached, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: device.Index, Flags: how})
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { attached.Close() })
	}
}

// startNode starts the agent of a node.
func (w *nodesBehindRouter) startNode(i int, s settings) *child[nodeOrder, nodeState] {
	t, n := w.t, w.nodes[i]
	t.Helper()
	if n.bpffs == "" {
		n.bpffs, n.cgroup = rig.BPFFS(t), rig.NewCgroup(t)
		t.Cleanup(func() {
			err := n.Do(func() error {
				_, err := datapath.Cleanup(n.bpffs)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	devices := s.devices
	if devices == "" {
		devices = "auto"
	}
	process := rig.NewChild(t, nil, n.Netns, "node", n.bpffs, n.cgroup.Path(), s.xdp, devices)
	c := &child[nodeOrder, nodeState]{t, process}
	t.Cleanup(func() {
		process.Kill()
		if err := process.Wait(); t.Failed() {
			t.Logf("node %d: %v", i, err)
		}
	})
	return c
}

// narrow makes the router refuse to send larger packets to the client, as if a link further on had
// a smaller MTU.
func (w *nodesBehindRouter) narrow(mtu int) {
	w.t.Helper()
	err := w.router.Do(func() error {
		wan, err := netlink.LinkByName("wan")
		if err != nil {
			return err
		}
		var errs []error
		for _, text := range []string{"198.51.100.7/32", "2001:db8:1::7/128"} {
			_, to, err := net.ParseCIDR(text)
			errs = append(errs, err, netlink.RouteReplace(&netlink.Route{
				Dst: to, LinkIndex: wan.Attrs().Index, Scope: netlink.SCOPE_LINK, MTU: mtu,
			}))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// cut takes a port of the router down.
func (w *nodesBehindRouter) cut(port string) {
	w.t.Helper()
	err := w.router.Do(func() error {
		device, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(device)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// process starts a process that uses sockets.
func (w *nodesBehindRouter) process(n *rig.Netns) *child[order, seen] {
	w.t.Helper()
	return &child[order, seen]{w.t, rig.NewChild(w.t, nil, n, "sockets")}
}

// The ports of node a on which the services are.
const (
	toPodA  = 30001
	toPodB  = 30002
	toNodeA = 30003
	toNodeB = 30004
	nowhere = 30005
)

// addServices starts servers in the pods and on the nodes, and gives node a a NodePort for each.
func (w *nodesBehindRouter) addServices(with settings) {
	w.t.Helper()
	for _, v6 := range []bool{false, true} {
		for _, s := range []struct {
			port  uint16
			at    netip.AddrPort
			where *rig.Netns
			local bool
		}{
			{toPodA, podA.at(v6, 8080), w.pods[0], true},
			{toPodB, podB.at(v6, 8080), w.pods[1], false},
			{toNodeA, nodeA.at(v6, 9090), w.a, true},
			{toNodeB, nodeB.at(v6, 9090), w.b, false},
		} {
			w.process(s.where).do(order{Serve: s.at, SCTP: with.sctp, Backwards: with.backwards && !s.local})
			w.onA.do(nodeOrder{Service: &service{At: anyAddr.at(v6, s.port), Kind: maps.NodePort, Backend: s.at, Local: s.local}})
		}
		w.onA.do(nodeOrder{Service: &service{At: anyAddr.at(v6, nowhere), Kind: maps.NodePort}})
	}
}
