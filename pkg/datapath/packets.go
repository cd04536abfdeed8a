package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/maps"
)

// Packets says which devices the programs of packets are attached to, and what they are told.
type Packets struct {
	Devices           devices.Filter
	XDP               devices.Mode
	NodePorts         Reach               // the addresses at which NodePorts are open to clients outside
	Own               func() []netip.Addr // by which the node is known to others, best first; nil if nobody knows
	SnatPorts         Ports               // of this node towards backends on others
	ExternalClusterIP bool                // clients outside may use ClusterIPs
	HashKeys          [5]uint64           // of the hash of flows; the same on all nodes

	IsPod      func(device string) bool // tells pods' devices by their names; nil if none are
	Pods       bool                     // pods of this node have their network from fairlead: what they send is checked
	Chained    bool                     // their devices are another plugin's, and they are kept to rates there; nothing else is done to them
	Bypass     bool                     // what they get and send goes past the node's stack
	Masquerade bool                     // what they send out of the cluster gets an address of this node
	Pair       int                      // they may be kept to rates, and what stays on the node waits at this device; 0 if none is
	PairEnd    string                   // name of the device from which it comes then
	Proxies    bool                     // what they dial may be handed to proxies of this node
	Node       bool                     // what this node itself sends to services as packets is balanced as well
	Tunnel     string                   // name of the device that leads to the pods of other nodes; "" for none
}

// outside is the part of a Datapath that is about devices.
type outside struct {
	programs devices.Programs // none if nothing needs them
	found    []devices.Device // by the last look
	tunnel   devices.Device   // that leads to the pods of other nodes; its index is 0 if there is none yet
	looked   bool
	primary  primary
	unknown  []netip.Addr              // addresses by which the node is known, of a family of which no device has one
	pods     map[uint32]devices.Device // by index
}

// running returns the programs that devices run.
func (o *outside) running() []*ebpf.Program {
	return o.programs.List()
}

// openHooks prepares what keeps programs attached to devices. Without a word about devices none is served, and what an
// earlier process attached is removed.
func (d *Datapath) openHooks(packets *Packets) {
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

// servesDevices reports whether there is a frontend that needs programs at devices.
func (d *Datapath) servesDevices() bool {
	needed := d.needs&packetHooks != 0 || d.packets.ExternalClusterIP || d.packets.Bypass || d.packets.Masquerade || d.packets.Node
	return needed && !d.packets.Devices.None()
}

// loadPackets loads the programs of packets over the given maps, if they are needed.
func (d *Datapath) loadPackets(m *maps.Maps) (progs devices.Programs, err error) {
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
	if err := setConfig(spec.Variables["cfg"], fields); err != nil {
		return progs, err
	}
	tc, err := d.loadPacketsOver(m, spec)
	if err != nil {
		return progs, err
	}
	defer tc.Close()
	progs.FromNetdev, progs.ToNetdev = tc.DetachProgram("tc_from_netdev"), tc.DetachProgram("tc_to_netdev")
	if err := d.loadPods(m, fields, &progs); err != nil {
		return devices.Programs{}, errors.Join(err, progs.Close())
	}
	if d.packets.XDP == devices.Off {
		return progs, nil
	}
	if spec, err = bpf.LoadXdp(); err == nil {
		err = setConfig(spec.Variables["cfg"], fields)
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

// loadPacketsOver loads an object of programs of packets over the given maps, and over both maps of established flows if
// there are two.
func (d *Datapath) loadPacketsOver(m *maps.Maps, spec *ebpf.CollectionSpec) (*ebpf.Collection, error) {
	over := m.Replacements(spec)
	if d.table != nil {
		d.table.replace(m.Ct, spec, over)
	}
	return loadReplacing(spec, over)
}

// attachDevices puts the programs of packets in force at the devices, and closes those that were.
func (d *Datapath) attachDevices(progs devices.Programs) error {
	if !d.outside.looked && !d.packets.Devices.None() {
		found, tunnel, err := d.detect(d.packets.Own())
		if err != nil {
			return errors.Join(err, progs.Close())
		}
		d.outside.found, d.outside.tunnel, d.outside.looked = found, tunnel, true
	}
	old := d.outside.programs
	d.outside.programs = progs
	return errors.Join(d.syncDevices(), old.Close())
}

// syncDevices has the devices that were found, and no others, run the programs, and tells the programs which ones do, and
// what their addresses are. XDP leaves to tc what comes in by a device of which it does not know that.
func (d *Datapath) syncDevices() error {
	list, tunnel := d.outside.found, d.outside.tunnel
	if tunnel.Index != 0 && !slices.ContainsFunc(list, func(device devices.Device) bool { return device.Index == tunnel.Index }) {
		list = append(slices.Clone(list), tunnel)
	}
	macs := map[uint32][6]byte{}
	for _, device := range list {
		if device.MAC != [6]byte{} {
			macs[uint32(device.Index)] = device.MAC
		}
	}
	sync := d.hooks.Sync
	if (d.packets.Pods || d.packets.Chained) && d.outside.pods == nil {
		sync = d.hooks.Run // nobody has told yet which pods there are: what they have from an earlier process is at work
	}
	between, err := d.between()
	err = errors.Join(err, d.maps.SetLinkAddrs(macs), sync(slices.Concat(between, d.podDevices(), list), d.outside.programs))
	served := map[uint32]bool{}
	for _, s := range d.hooks.States() {
		if s.TC != "" {
			served[uint32(s.Index)] = true
		}
	}
	return errors.Join(err, d.maps.SetServed(served), d.writeTunnel(served[uint32(tunnel.Index)]))
}

// Devices returns those that lead out of the node, as the last look found them.
func (d *Datapath) Devices() []devices.Device {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.outside.found)
}

// OutsideStatus is how clients outside reach this node.
type OutsideStatus struct {
	None    bool            // no device is to be served
	Idle    bool            // no frontend is reached from outside, so nothing is attached
	Devices []devices.State // what is attached where
	Chosen  []devices.Device
	Missing []string // devices that are named and not there
	Mended  uint64   // links and filters that were found gone and are attached again, since the start

	Addr4, Addr6 netip.Addr   // what backends on other nodes see as the client; not valid where there is none
	Unknown      []netip.Addr // addresses by which the node is known, and that it does not have
	SnatPorts    Ports
}

func (d *Datapath) outsideStatus() OutsideStatus {
	return OutsideStatus{
		None: d.packets.Devices.None(), Idle: !d.servesDevices(), Devices: d.hooks.States(), Chosen: d.outside.found,
		Missing: d.packets.Devices.Missing(d.outside.found), Mended: d.hooks.Mended(),
		Addr4: d.outside.primary[0], Addr6: d.outside.primary[1], Unknown: d.outside.unknown, SnatPorts: d.packets.SnatPorts,
	}
}
