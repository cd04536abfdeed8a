// Package podnet calls the plugin through libcni, which container runtimes use, in network
// namespaces, with the agent's half in a process of its own.
package podnet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/test/rig"
)

// fakeName is the name under which the test's binary acts as a plugin.
const fakeName = "fairlead-test-fake"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == fakeName {
		fakePlugin()
	}
	code := rig.Main(m, rig.Funcs{
		"serve": serve, "echo": echo, "follow": follow, "dial": dial, "lead": lead, "fairlead": fairlead, "reside": reside, "spoof": spoof, "weigh": weigh,
		"proxy": proxy, "inquire": inquire, "drain": drain, "pour": pour, "swallow": swallow, "fetch": fetch, "stream": stream, "lavish": lavish, "gush": gush, "linger": linger, "beckon": beckon, "later": later, "heed": heed,
		"sayBack": sayBack, "converse": converse, "choose": choose, "enforce": enforce, "associate": associate, "knock": knock, "trickle": trickle, "rush": rush, "mirror": mirror, "besiege": besiege, "recite": recite, "parrot": parrot,
	})
	for _, b := range []*program{&plugin, &command, &policies} {
		if b.dir != "" {
			os.RemoveAll(b.dir)
		}
	}
	os.Exit(code)
}

// agentConfig configures the agent's half in the child process.
type agentConfig struct {
	Dir      string
	CIDRs    []netip.Prefix
	Boot     string
	Chained  bool
	Cooldown time.Duration

	Forwarding *forwarding           // how programs carry packets; nil: the stack alone does
	Less       int                   // by how much the MTU of pods is below that of the devices
	Big        bool                  // TCP packets may be larger than 64 KiB
	Kind       cni.Kind              // of pods' devices
	Rates      map[string]maps.Rates // the rates of pods, by their names; nil: the agent keeps none
}

// serve is the agent's half: it says when it is ready, reads other rates, one set on each line, and
// ends with its input.
func serve(args []string) int {
	var s agentConfig
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return 2
	}
	// Some kernels let only a parent trace a process, and the crash tests have another process do
	// that; others do not know this call.
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0)
	err := func() error {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		pair := 0
		if s.Rates != nil {
			var err error
			if pair, err = queues.MakePair(); err != nil {
				return err
			}
		}
		programs, err := s.Forwarding.open(log, pair, s.Chained)
		if err != nil {
			return err
		}
		largest := func() cni.Largest { return cni.Largest{} }
		if s.Big {
			controller, err := newBig(s.Dir, !s.Forwarding.Bypass)
			if err != nil {
				return err
			}
			largest = func() cni.Largest { return cni.Largest(controller.Status().Sizes()) }
		}
		if s.Rates != nil {
			if _, err := newQueues(pair); err != nil {
				return err
			}
		}
		rates := newRates(s.Rates)
		network, err := podnet.New(podnet.Config{
			Largest: largest, Kind: s.Kind, Traits: rates.traits, Changed: rates.changed, Programs: programs,
			Dir: s.Dir, Chained: s.Chained, Boot: s.Boot, Cooldown: s.Cooldown, Log: log,
			CIDRs: func() ([]netip.Prefix, error) {
				if len(s.CIDRs) == 0 {
					return nil, fmt.Errorf("the Node has no podCIDR")
				}
				return s.CIDRs, nil
			},
			Reserved: func(netip.Addr) bool { return false },
			MTU: func() (int, error) {
				mtu, err := podnet.DefaultMTU()
				return mtu - s.Less, err
			},
		})
		if err != nil {
			return err
		}
		if s.Forwarding != nil && s.Rates == nil {
			if _, err := queues.Restore(); err != nil {
				return err
			}
		}
		server, err := cni.NewServer(filepath.Join(s.Dir, cni.SocketName), network, log)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		failed := make(chan error, 2)
		go func() { failed <- server.Serve(ctx) }()
		go func() { failed <- network.Run(ctx) }()
		fmt.Println("ready")
		err = rates.follow(os.Stdin)
		cancel()
		for range 2 {
			err = errors.Join(err, <-failed)
		}
		return errors.Join(err, network.Close())
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// program is a program that is built once for all tests that need it: one of ours, with what its
// cost is compared with, or a third party's that a module of ours depends on.
type program struct {
	name   string
	module string // the directory in which to build it; "": here
	pkgs   []string
	once   sync.Once
	dir    string
	err    error
}

var (
	plugin   = program{name: "fairlead-cni", pkgs: []string{"fairlead.io/fairlead/cmd/fairlead-cni", "./byhand"}}
	command  = program{name: "fairlead", pkgs: []string{"fairlead.io/fairlead/cmd/fairlead"}}
	policies = program{name: "kube-network-policies", module: "../policies", pkgs: []string{"sigs.k8s.io/kube-network-policies/cmd"}}
)

// in returns the directory of the program: this one if it was put here, as on machines that cannot
// build it.
func (p *program) in(t *testing.T) string {
	t.Helper()
	if path, err := filepath.Abs(p.name); err == nil {
		if _, err := os.Stat(path); err == nil {
			return filepath.Dir(path)
		}
	}
	p.once.Do(func() {
		if p.dir, p.err = os.MkdirTemp("", p.name+"-"); p.err != nil {
			return
		}
		to := p.dir + "/"
		if len(p.pkgs) == 1 { // its package may have another name
			to += p.name
		}
		build := exec.Command("go", append([]string{"build", "-trimpath", "-o", to}, p.pkgs...)...)
		build.Dir = p.module
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			p.err = fmt.Errorf("build %s: %w\n%s", p.name, err, out)
		}
	})
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.dir
}

// node is a node's namespace with the agent's half in it.
type node struct {
	t     *testing.T
	ns    *rig.Netns
	agent *rig.Process
	whole func() *rig.Process // starts a whole agent instead of the half for pods
	group *rig.Cgroup         // among nodes on a LAN: its sockets are pointed at backends
	agentConfig
	cni   *libcni.CNIConfig
	list  *libcni.NetworkConfigList
	cache string
}

// newNode returns a node whose agent assigns addresses from these CIDRs.
func newNode(t *testing.T, cidrs ...string) *node {
	t.Helper()
	return newNodeOf(t, func(n *node) { rig.Address(t, n.ns, "lo", "192.0.2.1/32", "2001:db8::1/128") }, cidrs...)
}

// newNodeOf is newNode with a node that is prepared before its agent starts.
func newNodeOf(t *testing.T, prepare func(*node), cidrs ...string) *node {
	t.Helper()
	rig.Root(t)
	n := &node{t: t, ns: rig.NewNetns(t, "node"), agentConfig: agentConfig{Dir: filepath.Join(t.TempDir(), "run"), Cooldown: podnet.Cooldown, Boot: "one"}}
	for _, cidr := range cidrs {
		n.CIDRs = append(n.CIDRs, netip.MustParsePrefix(cidr))
	}
	n.must(n.ns.SetSysctl("net/ipv4/ip_forward", "1"))
	n.must(n.ns.SetSysctl("net/ipv6/conf/all/forwarding", "1"))
	n.cache = t.TempDir()
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{plugin.in(t)}, n.cache, nil)
	n.configure("1.1.0", `{"type": "fairlead-cni", "socket": "SOCKET", "capabilities": {"portMappings": true, "bandwidth": true, "mac": true, "ips": true}}`)
	prepare(n)
	n.start()
	return n
}

// configure sets the node's network configuration: the version and the list of plugins.
func (n *node) configure(version string, plugins ...string) {
	n.t.Helper()
	text := fmt.Sprintf(`{"cniVersion": %q, "name": "pods", "plugins": [%s]}`, version, strings.Join(plugins, ","))
	var err error
	n.list, err = libcni.ConfListFromBytes([]byte(strings.ReplaceAll(text, "SOCKET", filepath.Join(n.Dir, cni.SocketName))))
	n.must(err)
}

func (n *node) start() {
	n.t.Helper()
	if n.whole != nil {
		n.agent = n.whole()
		return
	}
	text, err := json.Marshal(n.agentConfig)
	n.must(err)
	n.agent = rig.NewChild(n.t, nil, n.ns, "serve", string(text))
	line, err := n.agent.ReadLine()
	if err != nil || line != "ready" {
		n.t.Fatalf("the agent's half said %q, %v: %v", line, err, n.agent.Wait())
	}
}

// kill ends the agent as kill -9 does.
func (n *node) kill() { n.agent.Kill() }

func (n *node) restart() {
	n.t.Helper()
	n.kill()
	n.start()
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// pod is a network namespace that is attached, or is to be.
type pod struct {
	*rig.Netns
	id   string
	caps map[string]any
	addr map[bool]netip.Addr // by whether it is IPv4
}

func (n *node) pod(id string) *pod {
	n.t.Helper()
	return &pod{Netns: rig.NewNetns(n.t, id), id: id, addr: map[bool]netip.Addr{}}
}

func (p *pod) conf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.id, NetNS: p.Path(), IfName: "eth0", CapabilityArgs: p.caps,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", p.id}, {"K8S_POD_UID", "uid-" + p.id}},
	}
}

// add attaches a pod, in the node's namespace as a runtime does.
func (n *node) add(p *pod) (*current.Result, error) {
	var result *current.Result
	err := n.ns.Do(func() error {
		got, err := n.cni.AddNetworkList(context.Background(), n.list, p.conf())
		if err == nil {
			result, err = current.NewResultFromResult(got)
		}
		return err
	})
	if err == nil {
		clear(p.addr)
		for _, ip := range result.IPs {
			addr, _ := netip.AddrFromSlice(ip.Address.IP)
			p.addr[addr.Unmap().Is4()] = addr.Unmap()
		}
	}
	return result, err
}

func (n *node) del(p *pod) error {
	return n.ns.Do(func() error { return n.cni.DelNetworkList(context.Background(), n.list, p.conf()) })
}

func (n *node) check(p *pod) error {
	return n.ns.Do(func() error { return n.cni.CheckNetworkList(context.Background(), n.list, p.conf()) })
}

func (n *node) status() error {
	return n.ns.Do(func() error { return n.cni.GetStatusNetworkList(context.Background(), n.list) })
}

func (n *node) collect(valid ...*pod) error {
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	for _, p := range valid {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: p.id, IfName: "eth0"})
	}
	return n.ns.Do(func() error { return n.cni.GCNetworkList(context.Background(), n.list, args) })
}

func (n *node) mustAdd(p *pod) *current.Result {
	n.t.Helper()
	result, err := n.add(p)
	if err != nil {
		n.t.Fatalf("ADD %s: %v", p.id, err)
	}
	return result
}

// left lists what the node has of pods: devices, routes, used addresses, records.
func (n *node) left() []string {
	n.t.Helper()
	var list []string
	n.must(n.ns.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			if link.Attrs().Name != "lo" {
				list = append(list, "device "+link.Attrs().Name)
			}
		}
		routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		for _, route := range routes {
			if route.Dst != nil && n.isPods(route.Dst.IP) {
				list = append(list, "route "+route.Dst.String())
			}
		}
		return nil
	}))
	leases, err := podnet.List(n.Dir)
	n.must(err)
	for _, lease := range leases {
		if lease.State() == podnet.Used {
			list = append(list, "address "+lease.Address.String())
		}
	}
	records, err := os.ReadDir(filepath.Join(n.Dir, "pods"))
	n.must(err)
	for _, record := range records {
		list = append(list, "record "+record.Name())
	}
	slices.Sort(list)
	return list
}

func (n *node) isPods(ip []byte) bool {
	addr, _ := netip.AddrFromSlice(ip)
	return slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}

func (n *node) nothingLeft() {
	n.t.Helper()
	if left := n.left(); len(left) > 0 {
		n.t.Errorf("left behind: %q", left)
	}
}

// code returns the code of an error that a plugin printed, 0 for none.
func code(err error) uint {
	var refusal *types.Error
	if !errors.As(err, &refusal) {
		return 0
	}
	return refusal.Code
}
