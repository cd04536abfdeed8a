package twin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/test/rig"
)

const (
	openRows  = 96 // so few that at times there is no room for another
	firstPort = 61000
	lastPort  = 61007
	slotsEach = 64 // of a service
)

// device is a link of the node and what is at its far end.
type device struct {
	index     int
	mac, peer MAC
	mtu       int
}

// kernelNode is the loaded programs with their maps, in a namespace with two devices.
type kernelNode struct {
	hook     string // where packets come in: "tc", or "xdp" with tc behind it
	maps     *maps.Maps
	tables   *maps.Tables
	netns    *rig.Netns
	handle   *netlink.Handle
	programs map[string]*ebpf.Program
	devices  map[int]device
	pods     map[int]device       // the same, with pods at the far ends
	counters map[[2]string]uint32 // by hook and reason: the row
	now      uint32
	shift    uint32
	routes   map[netip.Addr]Way // those that differ from the initial ones
	buffer   maps.FlowBuffer
	silent   bool   // there may be no tokens
	silentAt uint64 // when the tokens were taken
	cpus     int

	policies *policyWriter
	subjects map[int]bool // devices of pods that ask about policies

	role       clusterNode
	tunnelPort uint16
	fromTunnel *ebpf.Program // tc_from_tunnel, for a packet that came from the address in its control buffer
}

// newKernelNode loads the programs.
func newKernelNode(t *testing.T, hook string) *kernelNode {
	t.Helper()
	return newKernelNodeOf(t, hook, openRows, bpf.MapsPacketConfig{SnatFirst: firstPort, SnatLast: lastPort, TunnelPort: tunnelPort, Policies: 1})
}

// newKernelNodeOf is newKernelNode with room for that many established flows, and with these settings.
func newKernelNodeOf(t *testing.T, hook string, rows uint32, config bpf.MapsPacketConfig) *kernelNode {
	t.Helper()
	w := loadKernelNode(t, hook, rows, config)
	w.netns = rig.NewNetns(t, hook)
	w.connect(t)
	return w
}

// loadKernelNode loads the programs, without devices yet.
func loadKernelNode(t *testing.T, hook string, rows uint32, config bpf.MapsPacketConfig) *kernelNode {
	t.Helper()
	rig.Root(t)
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	small := replaceCt(t, m, rows)
	tables, err := m.Tables()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(small, tables.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	w := &kernelNode{hook: hook, maps: m, tables: tables, programs: map[string]*ebpf.Program{},
		devices: map[int]device{}, pods: map[int]device{}, routes: map[netip.Addr]Way{}, silent: true, cpus: ebpf.MustPossibleCPU(), role: firstClusterNode()}
	w.readClock(t)
	config.TickShift, config.DsrAccept, config.HashKey2, config.HashKey4 = uint16(w.shift), 1, 1<<63, 12345
	w.load(t, bpf.LoadTc, config)
	w.load(t, bpf.LoadXdp, config)
	w.load(t, bpf.LoadPod, config)
	config.Bypass = 1
	w.load(t, bpf.LoadPod, config)
	w.fromTunnel, w.tunnelPort = rig.OutOfTunnel(t, w.programs["tc_from_tunnel"]), uint16(config.TunnelPort)
	w.indexCounters(t)
	w.policies = newPolicyWriter(t, m)
	return w
}

// replaceCt gives m a map of established flows that fills up soon.
func replaceCt(t *testing.T, m *maps.Maps, rows uint32) error {
	t.Helper()
	specs, err := bpf.LoadMaps()
	if err != nil {
		t.Fatal(err)
	}
	specs.Maps["ct"].MaxEntries = rows
	small, err := ebpf.NewMap(specs.Maps["ct"])
	if err != nil {
		t.Fatal(err)
	}
	err = m.Ct.Close()
	m.Ct = small
	return err
}

func (w *kernelNode) load(t *testing.T, load func() (*ebpf.CollectionSpec, error), config any) {
	t.Helper()
	spec, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if config != nil {
		if err := spec.Variables["cfg"].Set(config); err != nil {
			t.Fatal(err)
		}
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: w.maps.Replacements(spec)})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(loaded.Close)
	packets, ok := config.(bpf.MapsPacketConfig)
	for name, program := range loaded.Programs {
		if packets.Bypass > 0 {
			name += pastStack
		}
		w.programs[name] = program
	}
	if ok {
		return
	}
	var run bpf.MapsCollectRun
	if _, err := loaded.Programs["collect_from_ct"].Run(nil); err != nil {
		t.Fatal(err)
	}
	if err := loaded.Maps["run"].Lookup(uint32(0), &run); err != nil {
		t.Fatal(err)
	}
	for w.shift = 24; run.Jiffies>>w.shift != (run.Jiffies+1<<24)>>w.shift; w.shift++ {
	}
	w.now = uint32(run.Jiffies >> w.shift)
}

// pastStack is the suffix here of the names of programs that let pods' packets bypass the stack.
const pastStack = ", past the stack"

// readClock sets a tick length of hours, so that no tick ends during a test; the test ages rows
// itself.
func (w *kernelNode) readClock(t *testing.T) {
	t.Helper()
	w.load(t, bpf.LoadCollect, nil)
}

// connect gives the node two links, and one to each of its pods.
func (w *kernelNode) connect(t *testing.T) {
	t.Helper()
	handle, err := netlink.NewHandleAt(netns.NsHandle(w.netns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(handle.Close)
	w.handle = handle
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := w.netns.SetSysctl(name, "1"); err != nil {
			t.Fatal(err)
		}
	}
	far := rig.NewNetns(t, "far")
	for id, mtu := range map[int]int{1: 1500, 2: 1280, tunnelDevice: 1450} {
		w.devices[id] = w.link(t, far, fmt.Sprintf("out%d", id), device{mac: MAC{2, 0, 0, 0, byte(id), 1}, peer: MAC{2, 0, 0, 0, byte(id), 2}, mtu: mtu})
	}
	for addr, way := range routes() {
		if err := w.setRoute(addr, way); err != nil {
			t.Fatal(err)
		}
	}
	w.connectPods(t, far)
}

func (w *kernelNode) connectPods(t *testing.T, far *rig.Netns) {
	t.Helper()
	for _, id := range podAddrs() {
		if _, ok := w.pods[id]; !ok {
			w.pods[id] = w.link(t, far, fmt.Sprintf("pod%d", id), device{mac: MAC{2, 0, 0, 0, byte(id), 1}, peer: MAC{2, 0, 0, 0, byte(id), 2}, mtu: 1500 - 50*(id-firstPod)})
		}
	}
	if err := w.setPods(maps.Proxy{}); err != nil {
		t.Fatal(err)
	}
}

// setPods tells the programs about the pods. The last one has a proxy, or none.
func (w *kernelNode) setPods(proxy maps.Proxy) error {
	pods := map[int]*maps.Pod{}
	for addr, id := range w.role.pods {
		if pods[id] == nil {
			pods[id] = &maps.Pod{Index: uint32(w.pods[id].index), MAC: w.pods[id].peer, HostMAC: w.pods[id].mac, Policy: w.subjects[id]}
		}
		pods[id].Addrs = append(pods[id].Addrs, addr)
	}
	var list []maps.Pod
	pods[firstPod+2].Proxy = proxy
	for _, pod := range pods {
		list = append(list, *pod)
	}
	_, err := w.maps.SetPods(list)
	return err
}

// link connects the node to another namespace through a new device.
func (w *kernelNode) link(t *testing.T, far *rig.Netns, name string, d device) device {
	t.Helper()
	rig.Veth(t, w.netns, name, far, name)
	link, err := w.handle.LinkByName(name)
	if err == nil {
		err = errors.Join(w.handle.LinkSetMTU(link, d.mtu), w.handle.LinkSetHardwareAddr(link, d.mac[:]))
		d.index = link.Attrs().Index
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// setRoute changes the way to an address; the zero way removes it.
func (w *kernelNode) setRoute(addr netip.Addr, way Way) error {
	at := func(id int) (*netlink.Route, *netlink.Neigh) {
		d := w.devices[id]
		return &netlink.Route{LinkIndex: d.index, Scope: netlink.SCOPE_LINK,
				Dst: &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}},
			&netlink.Neigh{LinkIndex: d.index, IP: addr.AsSlice(), HardwareAddr: d.peer[:], State: netlink.NUD_PERMANENT}
	}
	for id := range w.devices {
		route, neighbor := at(id)
		if err := w.handle.NeighDel(neighbor); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		if err := w.handle.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	if way.Device == 0 {
		return nil
	}
	route, neighbor := at(way.Device)
	if err := w.handle.RouteAdd(route); err != nil || !way.known() {
		return err
	}
	return w.handle.NeighSet(neighbor)
}

// way returns the way through a device.
func (w *kernelNode) way(id int, known bool) Way {
	if !known || id == 0 {
		return Way{Device: id}
	}
	return Way{id, w.devices[id].peer, w.devices[id].mac}
}

func (w *kernelNode) indexCounters(t *testing.T) {
	t.Helper()
	list, err := reasons.ReadCounters(w.maps.Counters)
	if err != nil {
		t.Fatal(err)
	}
	w.counters = map[[2]string]uint32{}
	hook, row := list[0].Hook, uint32(0)
	for _, c := range list {
		if c.Hook != hook {
			hook, row = c.Hook, (row/counterRoom+1)*counterRoom
		}
		w.counters[[2]string{c.Hook, c.Reason}] = row
		row++
	}
}

const counterRoom = uint32(bpf.MapsCounterRoomCOUNTER_REASONS)

// counted returns how often a reason was counted, summed over all hooks that count packets.
func (w *kernelNode) counted(reason Reason) (uint64, error) {
	var total uint64
	for _, hook := range []string{"tc", "xdp", "pod"} {
		var perCPU []maps.Counter
		if err := w.maps.Counters.Lookup(w.counters[[2]string{hook, string(reason)}], &perCPU); err != nil {
			return 0, err
		}
		for _, c := range perCPU {
			total += c.Packets
		}
	}
	return total, nil
}

// reasons returns all reasons for which the programs count packets. One that the model does not know may never occur.
func (w *kernelNode) reasons() (all []Reason) {
	for by := range w.counters {
		if by[0] == "tc" && by[1] != "none" {
			all = append(all, Reason(by[1]))
		}
	}
	return all
}

// The return codes of the programs.
const (
	tcNext     = 1<<32 - 1
	tcDrop     = 2
	tcRedirect = 7
	xdpDrop    = 1
	xdpPass    = 2
	xdpTX      = 3
)

// result is what the programs did with a frame.
type result struct {
	verdict Verdict
	data    []byte
	byXDP   bool
}

// receive has a frame come in.
func (w *kernelNode) receive(frame []byte, id int) (result, error) {
	if w.hook == "xdp" {
		code, data, err := w.run("xdp_from_netdev", frame, []uint32{0, uint32(len(frame)), 0, uint32(w.devices[id].index), 0, 0})
		if err != nil || code != xdpPass {
			return result{map[uint32]Verdict{xdpDrop: Drop, xdpTX: Out}[code], data, true}, err
		}
		frame = data
	}
	return w.runTC("tc_from_netdev", frame, w.devices[id])
}

// leave has a frame about to leave.
func (w *kernelNode) leave(frame []byte) (result, error) {
	return w.runTC("tc_to_netdev", frame, w.devices[1])
}

// pass has a frame pass the device of a pod.
func (w *kernelNode) pass(f *podFrame) (result, error) {
	name := "tc_from_pod"
	if f.To {
		name = "tc_to_pod"
	}
	if f.Past {
		name += pastStack
	}
	return w.runFrom(name, f.Frame, w.pods[f.Pod], w.indexOf(f.By))
}

func (w *kernelNode) runTC(name string, frame []byte, d device) (result, error) {
	return w.runFrom(name, frame, d, 0)
}

// runFrom is runTC for a packet that came in by the device with this index, or that a process of the node sent.
func (w *kernelNode) runFrom(name string, frame []byte, d device, from int) (result, error) {
	if tooShort(frame) {
		return result{verdict: Stack, data: frame}, nil
	}
	code, data, err := w.run(name, frame, []uint32{9: uint32(from), 10: uint32(d.index)})
	return result{verdict: tcVerdict(code), data: data}, err
}

// indexOf returns the index of a device or of a pod's.
func (w *kernelNode) indexOf(id int) int {
	if d, ok := w.devices[id]; ok {
		return d.index
	}
	return w.pods[id].index
}

func tcVerdict(code uint32) Verdict {
	return map[uint32]Verdict{tcNext: Stack, tcDrop: Drop, tcRedirect: Out}[code]
}

// tooShort reports whether a frame is too short for the kernel to run a tc program with it.
func tooShort(frame []byte) bool {
	return len(frame) < 14+20 || frame[12] == 0x86 && frame[13] == 0xdd && len(frame) < 14+40
}

// tally returns the programs' counts of fragments that overtook their first.
func (w *kernelNode) tally() (tally bpf.MapsEarlyTally, err error) {
	err = w.maps.EarlyTally.Lookup(uint32(0), &tally)
	return tally, err
}

// largest is the size of the largest frame, which another may replace.
const largest = 14 + 1500

func (w *kernelNode) run(name string, frame []byte, context []uint32) (uint32, []byte, error) {
	return w.runProgram(w.programs[name], frame, context)
}

func (w *kernelNode) runProgram(program *ebpf.Program, frame []byte, context []uint32) (uint32, []byte, error) {
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, max(len(frame), largest)+128), Context: context}
	code, err := program.Run(&options)
	return code, options.DataOut, err
}
