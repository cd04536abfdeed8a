// Package trial runs the packet programs on a packet that does not exist, over maps of its own, so
// that users see what would happen to it.
package trial

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
)

// Packet is the first packet of a flow that a user asks about.
type Packet struct {
	Source, Destination netip.AddrPort
	Protocol            uint8
	// Device is the device it comes in by; "" for the one through which the kernel would answer.
	Device string
}

// Result is what the programs do with a packet.
type Result struct {
	Inside  bool   // the client is not behind a device that is served, so these programs do not see its packets
	Idle    bool   // no frontend is reached from outside, so nothing is attached
	Device  string // device that the packet comes in by
	Hook    bpf.MapsHook
	Dropped bool
	Reason  bpf.MapsReason // why it is dropped
	Answer  bool           // the client is told about the drop
	// Row is what happens to packets of the flow; nil if they are dropped or left to the stack.
	Row   *maps.FlowRow
	Known bool // the flow existed already, with this row
	// Denials are what policies deny, at the devices of pods. If the packet is not dropped, they are only audited.
	Denials []Denial
	Way     string // name of the row's device; "" if the stack routes the packets
}

// ErrNoDevice is wrapped by the error of Try for a device that is not served.
var ErrNoDevice = errors.New("no programs are attached to the device")

// NotAttached is the error for a device that is not served; nil if the user names none.
func NotAttached(name string) error {
	if name == "" {
		return nil
	}
	return fmt.Errorf("try a packet: %s: %w", name, ErrNoDevice)
}

// FindAttached returns the served device by which a packet comes in, nil if there is none.
func FindAttached(states []devices.State, p Packet) (*devices.State, error) {
	index := -1
	if p.Device == "" {
		routes, err := netlink.RouteGet(p.Source.Addr().AsSlice())
		if err != nil || len(routes) == 0 {
			return nil, nil // no route back, so it is unknown where the client is
		}
		index = routes[0].LinkIndex
	}
	at := slices.IndexFunc(states, func(s devices.State) bool {
		return s.TC != "" && (s.Index == index && !s.Tunnel || p.Device != "" && s.Name == p.Device)
	})
	if at < 0 {
		return nil, NotAttached(p.Device)
	}
	return &states[at], nil
}

// Trial is one run of the programs over its own maps.
type Trial struct {
	packet Packet
	device *net.Interface
	meets  []object // in the order in which packets meet them
	dmac   net.HardwareAddr
	smac   net.HardwareAddr
	from   int // index of the device that the packet came in by; 0 if a process of the node sends it
	fields map[string]uint64

	live     *maps.Maps
	own      map[string]*ebpf.Map
	known    *maps.FlowRow   // row of the packet's flow in the live maps
	programs []*ebpf.Program // in the order in which packets meet them
	hooks    []bpf.MapsHook
	closers  []func() error
}

// New prepares a trial at a device whose programs have the given configuration and run over the
// given maps, of which it duplicates what it needs.
func New(p Packet, at *devices.State, fields map[string]uint64, live *maps.Maps) (*Trial, error) {
	device, err := net.InterfaceByIndex(at.Index)
	if err != nil {
		return nil, fmt.Errorf("try a packet: find device %s: %w", at.Name, err)
	}
	own, err := live.Clone()
	if err != nil {
		return nil, err
	}
	meets := []object{{bpf.LoadTc, "tc_from_netdev", bpf.MapsHookHOOK_TC}}
	if at.XDP != "" {
		meets = append([]object{{bpf.LoadXdp, "xdp_from_netdev", bpf.MapsHookHOOK_XDP}}, meets...)
	}
	return &Trial{packet: p, device: device, meets: meets, dmac: device.HardwareAddr, fields: fields, live: own}, nil
}

// object is a program in one of the objects.
type object struct {
	read    func() (*ebpf.CollectionSpec, error)
	program string
	hook    bpf.MapsHook
}

// Run loads the programs, runs them and closes the trial.
func (t *Trial) Run() (result Result, err error) {
	defer func() { err = errors.Join(err, t.close()) }()
	if err := t.load(); err != nil {
		return result, err
	}
	if err := t.remember(); err != nil {
		return result, err
	}
	return t.runPrograms()
}

// readByTrial lists the maps that packet programs only read. A trial uses the live ones of these,
// and its own copy of any other map, including maps missing from this list.
func readByTrial() []string {
	return []string{"svcs", "slots", "backends", "src_ranges", "node_addrs", "snat_addrs", "device_macs", "cluster_nodes", "node_sources",
		"tunnel", "nat_devices", "pods", "pod_links", "masq_skip", "pod_rates", "share_rates", "policy_state", "policy_pods", "policy_peers", "policy_regions", "policy_views", "policy_decisions", "policy_runs"}
}

// rowsOfTrial are the sizes of the trial's own maps that need fewer rows than the live ones.
func rowsOfTrial() map[string]uint32 {
	const few = 1024
	return map[string]uint32{"ct": few, "ct_pending": few, "affinity": few, "frags": few, "policy_flows": few, "policy_shares": few, "policy_pending": few, "policy_denials": few, "early_slots": 1, "early_frames": 1, "events": few * 4}
}

func (t *Trial) close() error {
	var errs []error
	for _, closer := range slices.Backward(t.closers) {
		errs = append(errs, closer())
	}
	return errors.Join(append(errs, t.live.Close())...)
}

// load creates the trial's own maps and loads the programs that the packet meets.
func (t *Trial) load() error {
	t.own = map[string]*ebpf.Map{}
	for _, o := range t.meets {
		spec, err := o.read()
		if err != nil {
			return fmt.Errorf("read program specs: %w", err)
		}
		program, err := t.loadOne(spec, o.program)
		if err != nil {
			return err
		}
		t.programs, t.hooks = append(t.programs, program), append(t.hooks, o.hook)
		t.closers = append(t.closers, program.Close)
	}
	return nil
}

func (t *Trial) loadOne(spec *ebpf.CollectionSpec, name string) (*ebpf.Program, error) {
	if err := bpf.SetConfig(spec.Variables["cfg"], t.fields); err != nil {
		return nil, err
	}
	for other := range spec.Programs {
		if other != name {
			delete(spec.Programs, other)
		}
	}
	replacements, err := t.replacements(spec, name)
	if err != nil {
		return nil, err
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		return nil, bpf.LoadError(err)
	}
	defer loaded.Close()
	return loaded.DetachProgram(name), nil
}

// replacements returns the maps over which a program runs, and creates the trial's own ones.
func (t *Trial) replacements(spec *ebpf.CollectionSpec, name string) (map[string]*ebpf.Map, error) {
	live, all := t.live.Replacements(spec), map[string]*ebpf.Map{}
	for i := range spec.Programs[name].Instructions {
		used := spec.Programs[name].Instructions[i].Reference()
		if live[used] == nil || all[used] != nil {
			continue
		}
		if slices.Contains(readByTrial(), used) {
			all[used] = live[used]
			continue
		}
		if rows := rowsOfTrial()[used]; rows > 0 {
			spec.Maps[used].MaxEntries = rows
		}
		if t.own[used] == nil {
			m, err := ebpf.NewMap(spec.Maps[used])
			if err != nil {
				return nil, fmt.Errorf("create map %s for a trial: %w", used, err)
			}
			t.own[used] = m
			t.closers = append(t.closers, m.Close)
		}
		all[used] = t.own[used]
	}
	for unused := range live {
		if all[unused] == nil {
			delete(spec.Maps, unused)
		}
	}
	return all, nil
}
