package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/ticks"
)

// Packets configures the packet programs and the devices to which they are attached.
type Packets struct {
	Devices           devices.Filter
	XDP               devices.Mode
	NodePorts         NodePortAddrs       // addresses at which NodePorts are open to clients outside
	Own               func() []netip.Addr // addresses by which others know the node, best first; nil if unknown
	SnatPorts         model.PortRange     // source ports of this node toward backends on other nodes
	ExternalClusterIP bool                // clients outside may use ClusterIPs
	AcceptDirect      bool                // other nodes may forward packets to backends here, to be answered directly
	HashKeys          [5]uint64           // key of the hash of flows; the same on all nodes

	IsPod      func(device string) bool // recognizes pods' devices by name; nil if there are none
	Pods       bool                     // fairlead provides the network of this node's pods: check what they send
	Chained    bool                     // pods' devices belong to another plugin: only limit their rates
	Bypass     bool                     // pods' packets bypass the node's stack
	Masquerade bool                     // pods' packets to outside the cluster get an address of this node
	// Pair is the index of the device that delays rate-limited packets that stay on the node; 0 if
	// there is none.
	Pair    int
	PairEnd string // name of the device from which these packets then come
	Proxies bool   // connections that pods open may be handed to proxies on this node
	Node    bool   // balance what the node itself sends to services from the start, and not from the first service outside
	Tunnel  string // name of the device that leads to the pods of other nodes; "" if there is none
	// TunnelPort is the UDP port at which nodes receive what is sent through the tunnel.
	TunnelPort uint16
	// Note saves a setting below /proc/sys before it is changed, with its value until then and after,
	// so that cleanup can restore it; nil if nobody does.
	Note func(setting, was, is string) error
	// Policies is whether the programs ask what policies say about pods.
	Policies bool
	// AnySourcePort is whether nodes may send through the tunnel and in Geneve from any source port.
	AnySourcePort bool
}

// deviceLinks attaches the packet programs to the devices that lead outside and to those of pods.
type deviceLinks struct {
	*shared
	packets Packets // its zero value serves no device
	hooks   *devices.Hooks
	outside outside
	checked token // marks packets that the programs at pods' devices have passed
}

// outside is what is known about the devices.
type outside struct {
	programs devices.Programs // empty if nothing needs them
	found    []devices.Device // by the last look
	tunnel   devices.Device   // leads to the pods of other nodes; its index is 0 if it does not exist yet
	scanned  bool
	primary  primary
	// unknown are addresses by which others know the node, of families in which it has none of
	// them.
	unknown []netip.Addr
	pods    map[uint32]devices.Device // by index
	// looking is held from a look at the devices until the programs are attached to what it found.
	looking sync.Mutex
}

// running returns the programs attached to devices.
func (o *outside) running() []*ebpf.Program {
	return o.programs.List()
}

// openHooks prepares the Hooks for devices. If packets is nil, no device is served, and Hooks
// removes what an earlier process attached.
func (d *deviceLinks) openHooks(packets *Packets) {
	d.packets = Packets{XDP: devices.Off}
	if packets != nil {
		d.packets = *packets
	} else {
		d.packets.Devices, _ = devices.ParseFilter("none")
	}
	if d.packets.IsPod == nil {
		d.packets.IsPod = func(string) bool { return false }
	}
	if d.packets.Own == nil {
		d.packets.Own = func() []netip.Addr { return nil }
	}
	d.hooks = devices.New(d.pins.devs, d.packets.XDP, d.log)
}

// servesDevices reports whether devices need programs, for a frontend or another feature.
func (d *deviceLinks) servesDevices() bool {
	needed := d.needs&packetHooks != 0 || d.packets.ExternalClusterIP || d.packets.Bypass || d.packets.Masquerade || d.packets.Node
	return needed && !d.packets.Devices.None()
}

// loadPackets loads the packet programs over the given maps, if they are needed.
func (d *deviceLinks) loadPackets(m *maps.Maps) (progs devices.Programs, err error) {
	if !d.servesDevices() && !d.packets.Pods && !d.packets.Chained {
		return progs, nil
	}
	fields, err := d.packetFields()
	if err != nil {
		return progs, err
	}
	if d.table != nil {
		fields["growing"] = 1
	}
	spec, err := bpf.LoadTc()
	if err != nil {
		return progs, fmt.Errorf("read program specs: %w", err)
	}
	if err := bpf.SetConfig(spec.Variables["cfg"], fields); err != nil {
		return progs, err
	}
	if d.packets.Tunnel == "" { // the program for its end is a third of what the verifier has to walk
		delete(spec.Programs, "tc_from_tunnel")
	}
	tc, err := d.loadPacketsOver(m, spec)
	if err != nil {
		return progs, err
	}
	defer tc.Close()
	progs.FromNetdev, progs.ToNetdev = tc.DetachProgram("tc_from_netdev"), tc.DetachProgram("tc_to_netdev")
	progs.FromTunnel = tc.DetachProgram("tc_from_tunnel")
	if err := d.loadPods(m, fields, &progs); err != nil {
		return devices.Programs{}, errors.Join(err, progs.Close())
	}
	if d.packets.XDP == devices.Off {
		return progs, nil
	}
	if spec, err = bpf.LoadXdp(); err == nil {
		err = bpf.SetConfig(spec.Variables["cfg"], fields)
	}
	if err != nil {
		return devices.Programs{}, errors.Join(fmt.Errorf("read program specs: %w", err), progs.Close())
	}
	xdp, err := d.loadPacketsOver(m, spec)
	if err != nil {
		return devices.Programs{}, errors.Join(err, progs.Close())
	}
	defer xdp.Close()
	progs.XDP = xdp.DetachProgram("xdp_from_netdev")
	return progs, nil
}

// packetFields returns the configuration of the packet programs for a single map of established
// flows.
func (d *deviceLinks) packetFields() (map[string]uint64, error) {
	tick, err := ticks.Measure()
	if err != nil {
		return nil, err
	}
	fields := map[string]uint64{
		"snat_first": uint64(d.packets.SnatPorts.First), "snat_last": uint64(d.packets.SnatPorts.Last),
		"tick_shift": uint64(tick.Shift), "external_clusterip": flag(d.packets.ExternalClusterIP), "growing": 0,
		"bypass": flag(d.packets.Bypass), "masquerade": flag(d.packets.Masquerade), "host_flows": 1,
		"pacer": uint64(d.packets.Pair), "dsr_accept": flag(d.packets.AcceptDirect), "tunnel_port": uint64(d.packets.TunnelPort),
		"any_source_port": flag(d.packets.AnySourcePort), "checked": uint64(d.checked), "policies": flag(d.packets.Policies),
	}
	for i, key := range d.packets.HashKeys {
		fields[fmt.Sprintf("hash_key%d", i)] = key
	}
	return fields, nil
}

func flag(set bool) uint64 {
	if set {
		return 1
	}
	return 0
}

// loadPacketsOver loads an object of packet programs over the given maps, and over both maps of
// established flows if there are two.
func (d *deviceLinks) loadPacketsOver(m *maps.Maps, spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	over := m.Replacements(spec)
	if d.table != nil {
		d.table.replace(m.Ct, spec, over)
	}
	return bpf.NewCollection(spec, over)
}

// attachDevices attaches the packet programs to the devices and closes the previous ones.
func (d *deviceLinks) attachDevices(progs devices.Programs) error {
	if !d.outside.scanned && !d.packets.Devices.None() {
		found, tunnel, err := d.detect(d.packets.Own())
		if err != nil {
			return errors.Join(err, progs.Close())
		}
		d.outside.found, d.outside.tunnel, d.outside.scanned = found, tunnel, true
	}
	old := d.outside.programs
	d.outside.programs = progs
	return errors.Join(d.syncDevices(), old.Close())
}

// syncDevices makes the found devices, and no others, run the programs, and writes to the maps
// which devices those are and their hardware addresses. XDP passes packets to tc if it does not
// know the device's address.
func (d *deviceLinks) syncDevices() error {
	list, tunnel := slices.Clone(d.outside.found), d.outside.tunnel
	if at := slices.IndexFunc(list, func(device devices.Device) bool { return device.Index == tunnel.Index }); at >= 0 {
		list[at].Tunnel = true
	} else if tunnel.Index != 0 {
		list = append(list, tunnel)
	}
	macs := map[uint32][6]byte{}
	for _, device := range list {
		if device.MAC != [6]byte{} {
			macs[uint32(device.Index)] = device.MAC
		}
	}
	sync := d.hooks.Sync
	if (d.packets.Pods || d.packets.Chained) && d.outside.pods == nil {
		sync = d.hooks.Run // the pods are not known yet, so keep what an earlier process attached to theirs
	}
	between, err := d.between()
	if len(list) > 0 && d.servesDevices() {
		err = errors.Join(err, d.turnOnAcceptLocal())
	}
	err = errors.Join(err, d.maps.SetDeviceMacs(macs), sync(slices.Concat(between, d.podDevices(), list), d.outside.programs))
	natDevices := map[uint32]bool{}
	for _, s := range d.hooks.States() {
		if s.TC != "" {
			natDevices[uint32(s.Index)] = true
		}
	}
	return errors.Join(err, d.maps.SetNatDevices(natDevices), d.writeTunnel(natDevices[uint32(tunnel.Index)]))
}

// Devices returns the devices that lead out of the node, as of the last look.
func (d *deviceLinks) Devices() []devices.Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.outside.found)
}

// SnatPorts returns the source ports of this node toward backends on other nodes, or zero if no
// device is served, and whether flows of pods have half of them.
func (d *deviceLinks) SnatPorts() (ports model.PortRange, shared bool) {
	return d.packets.SnatPorts, d.packets.Masquerade
}
