package netns

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// The frontends are on loopback or nowhere: without a translation a dial fails at once.
var (
	vip4  = netip.MustParseAddrPort("127.66.0.1:80")
	vip6  = netip.MustParseAddrPort("[fd00:96::1]:80")
	back4 = []netip.AddrPort{
		netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.2:8080"),
		netip.MustParseAddrPort("127.0.0.3:8080"), netip.MustParseAddrPort("127.0.0.4:8080"),
	}
	back6 = netip.MustParseAddrPort("[::1]:8080")
)

// node is a datapath attached to a child cgroup.
type node struct {
	*datapath.Datapath
	t      *testing.T
	cgroup *rig.Cgroup
	next   uint32 // next free index, for all maps
}

func newNode(t *testing.T) *node {
	t.Helper()
	rig.Root(t)
	return newNodeIn(t, rig.NewNetns(t, "node"))
}

// newNodeIn returns a node whose own network namespace is host.
func newNodeIn(t *testing.T, host *rig.Netns) *node {
	t.Helper()
	bpffs := rig.BPFFS(t)
	n := &node{t: t, cgroup: rig.NewCgroup(t)}
	t.Cleanup(func() {
		if _, err := datapath.Cleanup(bpffs); err != nil {
			t.Error(err)
		}
	})
	d, err := datapath.Open(datapath.Config{
		BPFFS: bpffs, CgroupRoot: n.cgroup.Path(), HostNetns: netnsCookie(t, host), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	n.Datapath = d
	if err := errors.Join(d.Create(maps.Sizes{}), d.Attach()); err != nil {
		t.Fatal(err)
	}
	return n
}

// service is a service as tests write it.
type service struct {
	vip       netip.AddrPort
	proto     model.Protocol // TCP if 0
	kind      uint32
	algorithm bpf.MapsAlgorithm
	flags     uint8
	affinity  uint32           // seconds
	local     []netip.AddrPort // the backends of the local scope
	backends  []netip.AddrPort
}

func netnsCookie(t *testing.T, ns *rig.Netns) uint64 {
	t.Helper()
	cookie, err := ns.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

// cookieHere returns the cookie of the calling thread's network namespace.
func cookieHere() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// add writes the rows of a service in a safe order, and returns its index.
func (n *node) add(s service) uint32 {
	n.t.Helper()
	if s.proto == 0 {
		s.proto = model.TCP
	}
	tables, index := n.Tables(), n.next
	n.next++
	write := func(backends []netip.AddrPort, scope int) uint64 {
		off, tag := n.next, uint16(1+scope)
		for _, backend := range backends {
			tables.Backends[n.next] = maps.BackendOf(backend.Addr(), backend.Port(), s.proto)
			tables.Backends[n.next].Owner = maps.MakeOwner(index, 1<<scope)
			tables.Slots[n.next] = maps.MakeSlot(n.next, index, tag)
			n.next++
		}
		return uint64(maps.MakeWord(off, len(backends), tag))
	}
	tables.Services[index] = maps.Service{Algorithm: uint8(s.algorithm), Flags: s.flags, AffinitySeconds: s.affinity}
	tables.Services[index].Words[maps.ScopeAll] = write(s.backends, maps.ScopeAll)
	tables.Services[index].Words[maps.ScopeLocal] = write(s.local, maps.ScopeLocal)
	key := maps.KeyOf(s.vip.Addr(), s.vip.Port(), s.proto)
	if err := tables.Svcs.Insert([]maps.SvcKey{key}, []maps.Svc{{Service: index, Kind: s.kind}}); err != nil {
		n.t.Fatal(err)
	}
	return index
}

func mapped(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
}

func TestConnect(t *testing.T) {
	external := netip.MustParseAddrPort("127.66.0.2:80")
	empty4, empty6 := netip.MustParseAddrPort("127.66.0.3:80"), netip.MustParseAddrPort("[fd00:96::3]:80")
	local := netip.MustParseAddrPort("127.66.0.4:80")
	shortcut := netip.MustParseAddrPort("127.66.0.5:80")
	guarded := netip.MustParseAddrPort("127.66.0.6:80")
	plain := netip.MustParseAddrPort("127.0.0.9:9090")

	n := newNode(t)
	n.add(service{vip: guarded, kind: maps.LoadBalancer, flags: maps.SourceRanges, backends: back4[:1]})
	n.add(service{vip: vip4, backends: back4[:1]})
	n.add(service{vip: vip6, backends: []netip.AddrPort{back6}})
	n.add(service{vip: external, kind: maps.ExternalOnly, backends: back4[:1]})
	n.add(service{vip: empty4})
	n.add(service{vip: empty6})
	n.add(service{vip: local, flags: maps.InternalLocal, backends: back4[:1], local: back4[1:2]})
	n.add(service{vip: shortcut, kind: maps.LoadBalancer, flags: maps.InternalLocal, backends: back4[:1], local: back4[1:2]})
	p := newPod(t, n.cgroup)
	p.listen(append([]netip.AddrPort{back6, plain, external, guarded}, back4...)...)

	for _, test := range []struct {
		name         string
		order        order
		server, peer netip.AddrPort
		errno        syscall.Errno
	}{
		{"ClusterIP", order{Dial: vip4}, back4[0], vip4, 0},
		{"ClusterIP of IPv6", order{Dial: vip6}, back6, vip6, 0},
		{"ClusterIP with an IPv6 socket", order{Dial: vip4, Dual: true}, back4[0], mapped(vip4), 0},
		{"no backend", order{Dial: empty4}, netip.AddrPort{}, netip.AddrPort{}, unix.ECONNREFUSED},
		{"no backend of IPv6", order{Dial: empty6}, netip.AddrPort{}, netip.AddrPort{}, unix.ECONNREFUSED},
		{"no backend with an IPv6 socket", order{Dial: empty4, Dual: true}, netip.AddrPort{}, netip.AddrPort{},
			unix.ECONNREFUSED},
		{"internal traffic policy Local", order{Dial: local}, back4[1], local, 0},
		{"LoadBalancer from inside has every backend", order{Dial: shortcut}, back4[0], shortcut, 0},
		{"LoadBalancer with source ranges is left to the packets", order{Dial: guarded}, guarded, guarded, 0},
		{"no service", order{Dial: plain}, plain, plain, 0},
		{"another port of a service", order{Dial: netip.AddrPortFrom(vip4.Addr(), 81)}, netip.AddrPort{}, netip.AddrPort{},
			unix.ECONNREFUSED},
		{"not of the cluster", order{Dial: external}, external, external, 0},
		{"UDP to a TCP service", order{Dial: vip4, UDP: true}, netip.AddrPort{}, vip4, 0},
		{"UDP to a service without backends", order{Dial: empty4, UDP: true}, netip.AddrPort{}, empty4, 0},
		{"reconnected to no service", order{Dial: vip4, Redial: plain}, plain, plain, 0},
		{"reconnected to the backend itself", order{Dial: vip4, Redial: back4[0]}, back4[0], back4[0], 0},
		{"reconnected to the backend with an IPv6 socket", order{Dial: vip4, Redial: back4[0], Dual: true},
			back4[0], mapped(back4[0]), 0},
		{"reconnected to another service", order{Dial: vip4, Redial: local}, back4[1], local, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p.t = t
			a := p.do(test.order)
			if a.Server != test.server || a.Peer != test.peer || a.Errno != test.errno {
				t.Errorf("server %s, peer %s, error %v; want %s, %s, %v",
					a.Server, a.Peer, a.Errno, test.server, test.peer, test.errno)
			}
		})
	}
	p.t = t
	if refused := n.count(bpf.MapsReasonREASON_NO_BACKEND); refused != 3 {
		t.Errorf("%d refusals counted, want 3", refused)
	}
	if outside := newPod(t, rig.NewCgroup(t)).do(order{Dial: vip4}); outside.Errno != unix.ECONNREFUSED {
		t.Errorf("a process of another cgroup: %+v", outside)
	}
}

// count returns a reason's counter, summed over the CPUs.
func (n *node) count(reason bpf.MapsReason) (packets uint64) {
	n.t.Helper()
	var perCPU []maps.Counter
	if err := n.Maps().Counters.Lookup(uint32(reason), &perCPU); err != nil {
		n.t.Fatal(err)
	}
	for _, counter := range perCPU {
		packets += counter.Packets
	}
	return packets
}

func TestRoundRobinIsExact(t *testing.T) {
	n := newNode(t)
	index := n.add(service{vip: vip4, algorithm: bpf.MapsAlgorithmALGORITHM_ROUND_ROBIN, backends: back4[:3]})
	p := newPod(t, n.cgroup)
	p.listen(back4...)
	a := p.do(order{Dial: vip4, Times: 300})
	want := map[string]int{back4[0].String(): 100, back4[1].String(): 100, back4[2].String(): 100}
	if diff := cmp.Diff(want, a.Served); diff != "" {
		t.Errorf("connections (-want +got):\n%s", diff)
	}
	if turn := n.Tables().Services[index].Turn; turn != 300 {
		t.Errorf("turn %d", turn)
	}
}

func TestRandomReachesAll(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, backends: back4})
	p := newPod(t, n.cgroup)
	p.listen(back4...)
	if a := p.do(order{Dial: vip4, Times: 400}); len(a.Served) != len(back4) || len(a.Failed) > 0 {
		t.Errorf("connections: %v, failed %v", a.Served, a.Failed)
	}
}

func TestSourceHashSticksPerNamespace(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, algorithm: bpf.MapsAlgorithmALGORITHM_SOURCE_HASH, backends: back4})
	used := map[string]bool{}
	for range 12 {
		p := newPod(t, n.cgroup)
		p.listen(back4...)
		a := p.do(order{Dial: vip4, Times: 20})
		if len(a.Served) != 1 || len(a.Failed) > 0 {
			t.Errorf("one namespace got %v, failed %v", a.Served, a.Failed)
		}
		used[fmt.Sprint(a.Served)] = true
	}
	if len(used) < 2 {
		t.Errorf("12 namespaces got the same backend: %v", used)
	}
}

// Every map grows twelve times in turn while ten thousand connects are made, or as many as a slow
// machine manages.
func TestGrowUnderConnects(t *testing.T) {
	n := newNode(t)
	n.add(service{vip: vip4, algorithm: bpf.MapsAlgorithmALGORITHM_ROUND_ROBIN, backends: back4})
	p := newPod(t, n.cgroup)
	p.listen(back4...)
	grown := make(chan error, 1)
	times := rig.Times(t, 3)
	go func() { grown <- n.growAll(times) }()
	served, enough := 0, rig.Times(t, 10_000)
	for growing := true; growing || served < enough; {
		select {
		case err := <-grown:
			if err != nil {
				t.Fatal(err)
			}
			growing = false
		default:
		}
		a := p.do(order{Dial: vip4, Times: 500})
		if len(a.Failed) > 0 || len(a.Served) != len(back4) {
			t.Fatalf("after %d connects: served %v, failed %v", served, a.Served, a.Failed)
		}
		served += 500
	}
	if s := maps.MinSizes(); n.Sizes() != (maps.Sizes{
		Svcs: s.Svcs << times, Services: s.Services << times, Slots: s.Slots << times, Backends: s.Backends << times, Flows: s.Flows,
	}) {
		t.Errorf("sizes: %+v", n.Sizes())
	}
}

// growAll doubles each map the given number of times, one map at a time.
func (n *node) growAll(times int) error {
	for range times {
		for _, double := range []func(*maps.Sizes){
			func(s *maps.Sizes) { s.Svcs *= 2 },
			func(s *maps.Sizes) { s.Services *= 2 },
			func(s *maps.Sizes) { s.Slots *= 2 },
			func(s *maps.Sizes) { s.Backends *= 2 },
		} {
			sizes := n.Sizes()
			double(&sizes)
			if err := n.Grow(sizes); err != nil {
				return err
			}
		}
	}
	return nil
}
