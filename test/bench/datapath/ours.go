package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/bench/topology"
)

// ours is our programs on a node's device toward the client, attached as the agent does: those of
// tc always.
type ours struct {
	port  *topology.Port
	maps  *maps.Maps
	parts parts
}

// nodePort is a service with its one backend.
type nodePort struct {
	port    uint16
	backend netip.AddrPort
	local   bool
}

// attachOurs attaches the programs.
func attachOurs(port *topology.Port, services []nodePort, xdp bool) (_ *ours, err error) {
	o := &ours{port: port}
	if o.maps, err = maps.Create(maps.Sizes{}); err != nil {
		return nil, err
	}
	o.parts.add(o.maps.Close)
	err = errors.Join(follow(o.maps), o.serve(services))
	if err == nil {
		err = port.Host.Do(func() error { return limited.Do(func() error { return o.attach(xdp) }) })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach our programs to %s of %s: %w", port.Name, port.Host, err), o.Close())
	}
	return o, nil
}

// follow sets what an agent sets that sees no route change, for longer than any benchmark runs.
func follow(m *maps.Maps) error {
	if err := m.RouteEpoch.Put(uint32(0), maps.RouteEpoch{Until: 1 << 30}); err != nil {
		return fmt.Errorf("mark the routes as followed: %w", err)
	}
	return nil
}

// Close detaches the programs.
func (o *ours) Close() error { return o.parts.Close() }

// serve writes the rows of the services, which use UDP, and of the node.
func (o *ours) serve(services []nodePort) error {
	node := o.port.Addr(topology.IPv4)
	rows := map[netip.Addr]maps.NodeAddr{node: {Ifindex: uint32(o.port.Index), Flags: maps.NodePorts}}
	if _, err := o.maps.SetNodeAddrs(rows); err != nil {
		return err
	}
	macs := map[uint32][6]byte{uint32(o.port.Index): [6]byte(o.port.MAC)}
	if err := errors.Join(o.maps.SetSnatAddr(node), o.maps.SetDeviceMacs(macs)); err != nil {
		return err
	}
	tables, err := o.maps.Tables()
	if err != nil {
		return err
	}
	o.parts.add(tables.Close)
	for i, s := range services {
		index := uint32(i + 1)
		row := maps.BackendOf(s.backend.Addr(), s.backend.Port(), model.UDP)
		row.Owner = maps.MakeOwner(index, 1)
		if s.local {
			row.Flags = uint8(bpf.MapsBackendFlagBACKEND_LOCAL)
		}
		tables.Backends[index], tables.Slots[index] = row, maps.MakeSlot(index, index, 1)
		tables.Services[index] = maps.Service{Words: [2]uint64{uint64(maps.MakeWord(index, 1, 1))}}
		key := maps.KeyOf(netip.IPv4Unspecified(), s.port, model.UDP)
		if err := tables.Svcs.Update(key, maps.Svc{Service: index, Kind: maps.NodePort}); err != nil {
			return err
		}
	}
	return nil
}

func (o *ours) attach(xdp bool) error {
	tc, err := o.load(bpf.LoadTc)
	if err != nil {
		return err
	}
	for name, at := range map[string]ebpf.AttachType{
		"tc_from_netdev": ebpf.AttachTCXIngress, "tc_to_netdev": ebpf.AttachTCXEgress,
	} {
		l, err := link.AttachTCX(link.TCXOptions{Interface: o.port.Index, Program: tc.Programs[name], Attach: at})
		if err != nil {
			return err
		}
		o.parts.add(l.Close)
	}
	if !xdp {
		return nil
	}
	early, err := o.load(bpf.LoadXdp)
	if err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{
		Interface: o.port.Index, Program: early.Programs["xdp_from_netdev"], Flags: link.XDPDriverMode,
	})
	if err == nil {
		o.parts.add(l.Close)
	}
	return err
}

// load loads an object that uses the maps.
func (o *ours) load(read func() (*ebpf.CollectionSpec, error)) (*ebpf.Collection, error) {
	spec, err := read()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	if err := spec.Variables["cfg"].Set(bpf.MapsPacketConfig{SnatFirst: 1024, SnatLast: 29999, TickShift: 8}); err != nil {
		return nil, fmt.Errorf("configure programs: %w", err)
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: o.maps.Replacements(spec)})
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	o.parts.add(func() error { loaded.Close(); return nil })
	return loaded, nil
}
