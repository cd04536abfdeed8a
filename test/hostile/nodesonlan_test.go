// Package hostile attacks nodes that run, and shows that each attack fails. Nodes are network
// namespaces on one link with a whole agent each; pods are added by the plugin. The attackers are
// who docs/security.md says they are: a pod with more or fewer privileges, a host on the nodes'
// link or behind it, another node, the author of objects of the API.
//
// What belongs here: an attack from its packets, calls or objects to what its victim sees, as its
// author would run it, that was seen to succeed before what stops it was made. Each attack is a
// file of its own. It asserts that the victim is unharmed, and that the attack was not stopped by
// chance: the reason is counted, the honest form of the same thing passes. What one packet at one
// hook shows belongs to test/bpf, and what random packets show to test/twin.
package hostile

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/test/rig"
)

// patience allows for a machine with other work to do.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	code := rig.Main(m, rig.Funcs{
		"fairlead": fairlead, "broadcast": broadcast,
	})
	if binaries.dir != "" {
		os.RemoveAll(binaries.dir)
	}
	os.Exit(code)
}

// fairlead becomes the program at a path.
func fairlead(args []string) int {
	fmt.Fprintln(os.Stderr, unix.Exec(args[0], append([]string{"fairlead"}, args[1:]...), os.Environ()))
	return 1
}

// binaries are the agent and the plugin, which are built once.
var binaries struct {
	once sync.Once
	dir  string
	err  error
}

func built(t *testing.T) string {
	t.Helper()
	binaries.once.Do(func() {
		if binaries.dir, binaries.err = os.MkdirTemp("", "hostile-"); binaries.err != nil {
			return
		}
		build := exec.Command("go", "build", "-trimpath", "-o", binaries.dir+"/", "fairlead.io/fairlead/cmd/fairlead", "fairlead.io/fairlead/cmd/fairlead-cni")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			binaries.err = fmt.Errorf("build: %w\n%s", err, out)
		}
	})
	if binaries.err != nil {
		t.Fatal(binaries.err)
	}
	return binaries.dir
}

// nodesOnLAN is nodes on one link, and a host on it that is no node.
type nodesOnLAN struct {
	t       *testing.T
	link    *rig.Netns // the bridge that all are plugged into
	outside *rig.Netns // at 198.51.100.200 and 2001:db8:1::c8
	nodes   []*node
	objects string   // the directory of the objects that every agent reads
	flags   []string // more flags, for every agent
}

// newNodesOnLAN returns that many nodes. Node i has the addresses 198.51.100.i and
// 2001:db8:1::i, and assigns pods addresses from 10.1.i.0/24 and fd00:1:i::/64.
func newNodesOnLAN(t *testing.T, nodes int, flags ...string) *nodesOnLAN {
	t.Helper()
	rig.Root(t)
	w := &nodesOnLAN{t: t, link: rig.NewNetns(t, "link"), outside: rig.NewNetns(t, "outside"), objects: t.TempDir(), flags: flags}
	rig.Bridge(t, w.link, "br0")
	w.connect(w.outside, 200)
	var objects strings.Builder
	for i := 1; i <= nodes; i++ {
		fmt.Fprintf(&objects, `---
apiVersion: v1
kind: Node
metadata: {name: n%[1]d, uid: uid-n%[1]d, labels: {kubernetes.io/hostname: n%[1]d}}
spec: {podCIDR: 10.1.%[1]d.0/24, podCIDRs: [10.1.%[1]d.0/24, "fd00:1:%[1]d::/64"]}
status: {addresses: [{type: InternalIP, address: 198.51.100.%[1]d}, {type: InternalIP, address: "2001:db8:1::%[1]x"}]}
`, i)
	}
	w.write("nodes", objects.String())
	for i := 1; i <= nodes; i++ {
		w.nodes = append(w.nodes, w.newNode(i))
	}
	return w
}

// connect connects a namespace to the link of the nodes, with the i-th address of either family.
func (w *nodesOnLAN) connect(ns *rig.Netns, i int) {
	w.t.Helper()
	rig.Veth(w.t, ns, "eth0", w.link, fmt.Sprintf("port%d", i))
	rig.Enslave(w.t, w.link, fmt.Sprintf("port%d", i), "br0")
	rig.Address(w.t, ns, "eth0", fmt.Sprintf("198.51.100.%d/24", i), fmt.Sprintf("2001:db8:1::%x/64", i))
}

// write writes a file of objects in one step; a file without objects removes those of before.
func (w *nodesOnLAN) write(name, text string) {
	w.t.Helper()
	path := filepath.Join(w.objects, name+".yaml")
	must(w.t, os.WriteFile(path+".tmp", []byte(text), 0o644))
	must(w.t, os.Rename(path+".tmp", path))
}

// node is a node's namespace with an agent in it.
type node struct {
	t      *testing.T
	name   string
	ns     *rig.Netns
	cgroup *rig.Cgroup // what runs in it has its sockets pointed at backends
	bpffs  string
	dir    string
	flags  []string // for every fairlead command
	more   []string // for the agent
	agent  *rig.Process
	cni    *libcni.CNIConfig
	list   *libcni.NetworkConfigList
}

func (w *nodesOnLAN) newNode(i int) *node {
	w.t.Helper()
	n := &node{
		t: w.t, name: fmt.Sprintf("n%d", i), ns: rig.NewNetns(w.t, fmt.Sprintf("n%d", i)),
		cgroup: rig.NewCgroup(w.t), bpffs: rig.BPFFS(w.t), dir: filepath.Join(w.t.TempDir(), "run"),
	}
	w.connect(n.ns, i)
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		must(w.t, n.ns.SetSysctl(name, "1"))
	}
	n.flags = []string{"--bpffs=" + n.bpffs, "--state-dir=" + n.dir}
	n.more = append([]string{
		"--source=" + w.objects, "--cgroup-root=" + n.cgroup.Path(), "--node-name=" + n.name,
		"--pod-network=main", "--devices=eth0", "--xdp=off", "--log-level=warn",
	}, w.flags...)
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{built(w.t)}, w.t.TempDir(), nil)
	var err error
	n.list, err = libcni.ConfListFromBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "fairlead-cni", "socket": %q, "capabilities": {"portMappings": true}}]}`,
		filepath.Join(n.dir, cni.SocketName)))
	must(w.t, err)
	n.start()
	return n
}

// start starts the agent, and waits until it has taken over.
func (n *node) start() {
	n.t.Helper()
	args := append([]string{filepath.Join(built(n.t), "fairlead"), "agent"}, n.more...)
	n.agent = rig.NewChild(n.t, nil, n.ns, "fairlead", append(args, n.flags...)...)
	n.run("status", "--wait", "--wait-duration=60s")
}

// run runs a fairlead command, and returns what it prints.
func (n *node) run(args ...string) string {
	n.t.Helper()
	args = append(append([]string{filepath.Join(built(n.t), "fairlead")}, args...), n.flags...)
	out, err := rig.RunChild(nil, n.ns, "fairlead", args...)
	if err != nil {
		n.t.Fatalf("%s: fairlead %s: %v\n%s", n.name, strings.Join(args[1:], " "), err, out)
	}
	return out
}

// drops returns how many packets were dropped at a hook for a reason, as status tells it.
func (n *node) drops(hook, reason string) (packets uint64) {
	n.t.Helper()
	list, err := reasons.ReadDrops(datapath.MapsDir(n.bpffs))
	must(n.t, err)
	for _, drop := range list {
		if drop.Hook == hook && drop.Reason == reason {
			packets += drop.Packets
		}
	}
	return packets
}

// pod is a network namespace that the plugin has attached.
type pod struct {
	*rig.Netns
	name string
	addr map[bool]netip.Addr // by whether it is IPv4
}

// pod adds a pod of the namespace shop to the node.
func (n *node) pod(name string) *pod {
	n.t.Helper()
	return n.podIn(rig.NewNetns(n.t, name), name)
}

// podIn adds a pod whose network namespace exists.
func (n *node) podIn(ns *rig.Netns, name string) *pod {
	n.t.Helper()
	p := &pod{Netns: ns, name: name, addr: map[bool]netip.Addr{}}
	conf := &libcni.RuntimeConf{
		ContainerID: name, NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}, {"K8S_POD_UID", "uid-" + name}},
	}
	must(n.t, n.ns.Do(func() error {
		got, err := n.cni.AddNetworkList(context.Background(), n.list, conf)
		if err != nil {
			return err
		}
		result, err := current.NewResultFromResult(got)
		if err != nil {
			return err
		}
		for _, ip := range result.IPs {
			addr, _ := netip.AddrFromSlice(ip.Address.IP)
			p.addr[addr.Unmap().Is4()] = addr.Unmap()
		}
		return nil
	}))
	return p
}

// listen receives datagrams at a port of every address of a namespace.
func listen(t *testing.T, ns *rig.Netns, port int) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	must(t, ns.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		return err
	}))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// send sends a datagram from a namespace. An invalid source leaves it to the kernel.
func send(t *testing.T, ns *rig.Netns, from, to netip.AddrPort, payload string) {
	t.Helper()
	must(t, ns.Do(func() error {
		local := net.UDPAddrFromAddrPort(from)
		if !from.IsValid() {
			local = nil
		}
		conn, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte(payload))
		return err
	}))
}

// hear waits for the datagram with that payload, and returns whom it came from. It fails the test
// if one of the payloads that must not arrive comes first.
func hear(t *testing.T, conn *net.UDPConn, payload string, never ...string) netip.AddrPort {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(patience)))
	buffer := make([]byte, 9000)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			t.Fatalf("did not hear %q: %v", payload, err)
		}
		if got := string(buffer[:n]); slices.Contains(never, got) {
			t.Errorf("heard %q from %s", got, from)
		} else if got == payload {
			return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
