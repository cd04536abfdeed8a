// Package bpf runs the packet programs on packets, with the same tables for tc and for XDP. It
// compares the output with packets that a builder writes from scratch, checksums included.
package bpf

import (
	"errors"
	stdmaps "maps"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/test/rig"
)

// hook is a program and its return codes.
type hook struct {
	name       string
	load       func() (*ebpf.CollectionSpec, error)
	in, out    string // programs; "" if the hook has none
	pass, drop uint32
	answer     uint32 // the packet goes back where it came from
}

func hooks() []hook {
	return []hook{
		{"tc", bpf.LoadTc, "tc_from_netdev", "tc_to_netdev", 1<<32 - 1, 2, 7},
		{"xdp", bpf.LoadXdp, "xdp_from_netdev", "", 2, 1, 3},
	}
}

// bareNode is a node without devices: the stack finds every way.
type bareNode struct {
	hook
	loaded   *loadedSet
	maps     *maps.Maps
	tables   *maps.Tables
	netns    *rig.Netns
	cpu      rig.CPU
	programs map[string]*ebpf.Program
	config   bpf.MapsPacketConfig
	services uint32
	flags    uint32   // of test runs, see sumUp
	context  []uint32 // of test runs, see outOfTunnel
}

func newBareNode(t *testing.T, h hook) *bareNode {
	t.Helper()
	return newBareNodeOf(t, h, standardConfig())
}

// standardConfig is the configuration of most stories: four ports for flows to other nodes.
func standardConfig() bpf.MapsPacketConfig {
	return bpf.MapsPacketConfig{
		SnatFirst: 61000, SnatLast: 61003, TickShift: 8, DsrAccept: 1, Checked: again,
	}
}

func newBareNodeOf(t *testing.T, h hook, config bpf.MapsPacketConfig) *bareNode {
	t.Helper()
	return newBareNodeSized(t, h, config, maps.Sizes{})
}

func newBareNodeSized(t *testing.T, h hook, config bpf.MapsPacketConfig, sizes maps.Sizes) *bareNode {
	t.Helper()
	g := left.take(t, config, sizes)
	m := g.maps
	tables, err := m.Tables()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tables.Close(); err != nil {
			t.Error(err)
		}
	})
	cpu, err := rig.NextCPU()
	if err != nil {
		t.Fatal(err)
	}
	w := &bareNode{
		hook: h, loaded: g, maps: m, tables: tables, netns: rig.NewNetns(t, "node"), cpu: cpu,
		programs: stdmaps.Clone(g.programs(t, h)), config: config,
	}
	snat4, snat6 := netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("fd01::1")
	ports := maps.NodeAddr{Ifindex: 1, Flags: maps.NodePorts}
	addrs := map[netip.Addr]maps.NodeAddr{config4(): ports, config6(): ports, snat4: {Ifindex: 1}, snat6: {Ifindex: 1}}
	_, err = m.SetNodeAddrs(addrs)
	lo := map[uint32][6]byte{1: {}} // all zero, as in test runs
	cluster := maps.Cluster{Known: true, Nodes: map[netip.Addr]maps.ClusterNode{}}
	for addr := range addrs {
		cluster.Nodes[addr] = maps.ClusterNode{Name: 1, Number: 1, Self: true}
	}
	// Packets that other nodes forward come from there too.
	for _, addr := range []netip.Addr{snat4, snat6, netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")} {
		cluster.Nodes[addr] = maps.ClusterNode{Name: 2, Number: 2}
	}
	_, clusterErr := m.SetCluster(cluster)
	if err := errors.Join(err, clusterErr, m.SetSnatAddr(snat4), m.SetSnatAddr(snat6), m.SetDeviceMacs(lo)); err != nil {
		t.Fatal(err)
	}
	return w
}

// reload loads the programs that a hook has now, over the maps that there are now.
func (w *bareNode) reload(t *testing.T, h hook) {
	t.Helper()
	loaded := load(t, h, w.config, w.maps)
	t.Cleanup(loaded.Close)
	stdmaps.Copy(w.programs, loaded.Programs)
}

// load loads the programs of a hook over maps.
func load(t *testing.T, h hook, config bpf.MapsPacketConfig, over *maps.Maps) *ebpf.Collection {
	t.Helper()
	spec, err := h.load()
	if err != nil {
		t.Fatal(err)
	}
	if err := spec.Variables["cfg"].Set(config); err != nil {
		t.Fatal(err)
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: over.Replacements(spec)})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	return loaded
}

func config4() netip.Addr { return netip.MustParseAddr("192.0.2.1") }
func config6() netip.Addr { return netip.MustParseAddr("2001:db8::1") }

// service adds a frontend with at most one backend, which is on this node if local.
func (w *bareNode) service(t *testing.T, frontend string, proto byte, kind uint32, backend string, local bool) {
	t.Helper()
	at := netip.MustParseAddrPort(frontend)
	w.services++
	index := w.services
	if backend != "" {
		to := netip.MustParseAddrPort(backend)
		row := maps.BackendOf(to.Addr(), to.Port(), model.Protocol(proto))
		if local {
			row.Flags = uint8(bpf.MapsBackendFlagBACKEND_LOCAL)
		}
		row.Owner = maps.MakeOwner(index, 1)
		w.tables.Backends[index] = row
		w.tables.Slots[index] = maps.MakeSlot(index, index, 3)
		w.tables.Services[index] = maps.Service{Words: [2]uint64{uint64(maps.MakeWord(index, 1, 3))}}
	}
	key := maps.KeyOf(at.Addr(), at.Port(), model.Protocol(proto))
	if err := w.tables.Svcs.Update(key, maps.Svc{Service: index, Kind: kind}); err != nil {
		t.Fatal(err)
	}
	if err := w.tables.Svcs.Update(maps.FrontendAddrKey(key.Addr), maps.Svc{Service: index, Kind: maps.Hosted}); err != nil {
		t.Fatal(err)
	}
}

// do calls f in the network namespace of the node, and always on the same CPU: the ways that the
// programs have looked up and the budgets for answers and events are kept per CPU.
func (w *bareNode) do(f func() error) error {
	return w.netns.Do(func() error { return w.cpu.Do(f) })
}

// run gives a packet to a program and returns the verdict as text and the packet.
func (w *bareNode) run(t *testing.T, program string, frame []byte) (string, []byte) {
	t.Helper()
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+1024), Flags: w.flags}
	if w.context != nil {
		options.Context = w.context
	}
	var code uint32
	err := w.do(func() (err error) {
		code, err = w.programs[program].Run(&options)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	switch code {
	case w.pass:
		return "pass", options.DataOut
	case w.drop:
		return "drop", options.DataOut
	case w.answer:
		return "answer", options.DataOut
	}
	t.Fatalf("%s returned %d", program, code)
	return "", nil
}

// sumUp has the programs get packets from now on as from a device that computes a checksum over the
// whole packet (CHECKSUM_COMPLETE), or no longer. A run then fails with EBADMSG unless the program
// has updated that checksum along with what it writes. Tests turn it off for SCTP, whose own checksum
// is of another kind, and for answers, which get a new one. Linux 6.13 is the first with such runs.
func (w *bareNode) sumUp(t *testing.T, yes bool) {
	t.Helper()
	w.flags = 0
	if !yes || w.name != "tc" {
		return
	}
	const flags = unix.BPF_F_TEST_SKB_CHECKSUM_COMPLETE
	switch _, err := w.programs[w.out].Run(&ebpf.RunOptions{Data: make([]byte, 64), Flags: flags}); {
	case errors.Is(err, unix.EINVAL):
		t.Log("this kernel cannot run tests with CHECKSUM_COMPLETE")
	case err != nil:
		t.Fatal(err)
	default:
		w.flags = flags
	}
}

// reasons returns what the hook has counted.
func (w *bareNode) reasons(t *testing.T) map[string]uint64 {
	t.Helper()
	list, err := reasons.ReadCounters(w.maps.Counters)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]uint64{}
	for _, c := range list {
		if c.Hook == w.name && c.Packets > 0 {
			have[c.Reason] = c.Packets
		}
	}
	return have
}

// counted returns how often the hook counted a reason.
func (w *bareNode) counted(t *testing.T, reason string) uint64 {
	t.Helper()
	return w.reasons(t)[reason]
}

// shortest returns the length of the shortest packet on which the kernel runs a program.
func (w *bareNode) shortest(f family) int {
	switch {
	case w.name != "tc":
		return 14
	case f.any == "[::]":
		return 14 + 40
	}
	return 14 + 20
}

// mostInstructions is how many instructions the verifier may walk for one program: a fifth of its
// limit.
const mostInstructions = 200_000

func TestInstructions(t *testing.T) {
	rig.Root(t)
	for _, h := range hooks() {
		for name, program := range newBareNode(t, h).programs {
			info, err := program.Info()
			if err != nil {
				t.Fatal(err)
			}
			walked, ok := info.VerifiedInstructions()
			t.Logf("%s: the verifier walked %d instructions", name, walked)
			if !ok || walked > mostInstructions {
				t.Errorf("%s: the verifier walked %d instructions, the most is %d", name, walked, mostInstructions)
			}
		}
	}
}
