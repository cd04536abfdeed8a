package twin

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// change applies an operation that is not a packet to the maps and to the model.
func (r *run) change(o operation) error {
	switch {
	case o.Service != nil:
		return r.changeService(o.Service)
	case o.Frontend != nil:
		return r.changeFrontend(o.Frontend)
	case o.Node != nil:
		return r.changeNode(o.Node)
	case o.Route != nil:
		way := r.kernel.way(o.Route.Device, o.Route.Known)
		r.node.Routes[o.Route.Addr] = way
		r.kernel.routes[o.Route.Addr] = way
		return errors.Join(r.kernel.setRoute(o.Route.Addr, way), r.kernel.forgetAsked())
	case o.RouteEpoch != nil:
		r.node.Changed, r.node.Followed = r.node.Now+uint32(o.RouteEpoch.Changed), r.node.Now+uint32(o.RouteEpoch.Followed)
		r.node.RangeEpochs = r.node.Now + uint32(o.RouteEpoch.RangeEpochs)
		return errors.Join(r.kernel.maps.RouteEpoch.Put(uint32(0), maps.RouteEpoch{Changed: r.node.Changed, Until: r.node.Followed}),
			r.kernel.maps.RangeEpochs.Put(uint32(0), maps.RangeEpoch{Changed: r.node.RangeEpochs}))
	case o.Inside != nil:
		before := r.node.Inside
		r.node.Inside = o.Inside.Prefixes
		return r.writeRanges(maps.Inside, before, o.Inside.Prefixes)
	case o.ClusterIPs != nil:
		before := r.node.ClusterIPs
		r.node.ClusterIPs = o.ClusterIPs.Prefixes
		return r.writeRanges(maps.ClusterIPs, before, o.ClusterIPs.Prefixes)
	case o.Hosted != nil:
		return r.changeHosted(o.Hosted)
	case o.NatDevice != nil:
		return r.changeNatDevice(o.NatDevice)
	case o.Flow != nil:
		return r.changeFlow(o.Flow)
	case o.Policies != nil:
		return r.changePolicies(o.Policies)
	case o.Asked != nil:
		return r.changeAsked(o.Asked)
	case o.Visit != nil:
		return r.changeVisit(o.Visit)
	}
	return errors.New("operation without content")
}

// changeService writes a service as the reconciler does: backends, slots, words.
func (r *run) changeService(c *serviceChange) error {
	service := c.Service
	t := r.kernel.tables
	old := r.node.Services[c.Index]
	if old != nil {
		service.epoch, service.turn = old.epoch+1, old.turn
	}
	row := maps.Service{AffinitySeconds: uint32(service.Affinity), Algorithm: uint8(service.Algorithm), Turn: service.turn}
	for flag, on := range map[uint8]bool{
		maps.InternalLocal: service.InternalLocal, maps.ExternalLocal: service.ExternalLocal, maps.SourceRanges: service.Ranged,
	} {
		if on {
			row.Flags |= flag
		}
	}
	row.Flags |= maps.DirectFlags(uint8(service.Direct))
	scopes := map[int]uint8{}
	tag := uint16(service.epoch + 1)
	for scope, slots := range service.Slots {
		off := c.Index*slotsEach + scope*slotsEach/2
		for i, id := range slots {
			scopes[id] |= 1 << scope
			t.Slots[off+i] = maps.MakeSlot(uint32(id), uint32(c.Index), tag)
			if service.Broken == TableRace {
				t.Slots[off+i] = maps.MakeSlot(uint32(id), uint32(c.Index), tag+1)
			}
		}
		if service.Broken == BadTable {
			off = 1 << 30
		}
		row.Words[scope] = uint64(maps.MakeWord(uint32(off), len(slots), tag))
	}
	for i, b := range c.Backends {
		id := c.Index*backendsEach + i
		r.node.Backends[id] = b
		backend := maps.BackendOf(b.At.Addr(), b.At.Port(), 0)
		if b.Local {
			backend.Flags = maps.BackendLocal
		}
		if scopes[id] != 0 {
			backend.Owner = maps.MakeOwner(uint32(c.Index), scopes[id])
		}
		t.Backends[id] = backend
	}
	t.Services[c.Index] = row
	r.node.Services[c.Index] = &service
	before := r.node.Ranges[c.Index]
	r.node.Ranges[c.Index] = c.Ranges
	return r.writeRanges(uint32(c.Index), before, c.Ranges)
}

func (r *run) writeRanges(index uint32, before, after []netip.Prefix) error {
	rows := func(list []netip.Prefix) (rows []maps.Range) {
		for _, prefix := range list {
			rows = append(rows, maps.Range{Service: index, Prefix: prefix})
		}
		return rows
	}
	return errors.Join(r.kernel.tables.Ranges.Delete(rows(before)), r.kernel.tables.Ranges.Insert(rows(after)))
}

func (r *run) changeFrontend(c *frontendChange) error {
	key := maps.KeyOf(c.Key.At.Addr(), c.Key.At.Port(), model.Protocol(c.Key.Proto))
	closed := maps.ClosedKey(key)
	delete(r.node.Frontends, c.Key)
	delete(r.node.Closed, c.Key)
	gone := []maps.SvcKey{key, closed}
	if !r.node.isFrontendAddr(c.Key.At.Addr()) {
		gone = append(gone, maps.FrontendAddrKey(key.Addr))
	}
	if err := r.kernel.tables.Svcs.Delete(gone); err != nil {
		return err
	}
	if c.Gone || r.node.Services[c.Frontend.Service] == nil { // the service was removed while a failure was shortened
		return nil
	}
	row := maps.Svc{Service: uint32(c.Frontend.Service), Kind: uint32(c.Frontend.Kind)}
	if err := r.kernel.tables.Svcs.Update(maps.FrontendAddrKey(key.Addr), row); err != nil {
		return err
	}
	if c.Closed {
		r.node.Closed[c.Key] = c.Frontend
		return r.kernel.tables.Svcs.Update(closed, row)
	}
	r.node.Frontends[c.Key] = c.Frontend
	return r.kernel.tables.Svcs.Update(key, row)
}

// changeHosted adds or removes a backend on this node. Its address has a row as long as it has any
// backend.
func (r *run) changeHosted(c *hostedChange) error {
	row := maps.Svc{Service: 1, Kind: maps.Hosted}
	svcs := r.kernel.tables.Svcs
	var gone []maps.SvcKey
	for index := 1; index <= serviceCount; index++ {
		gone = append(gone, maps.HostedKey(c.At, uint32(index)))
	}
	delete(r.node.Hosted, c.At)
	err := svcs.Delete(gone)
	if c.Gone {
		for at := range r.node.Hosted {
			if at.Addr() == c.At.Addr() {
				return err
			}
		}
		return errors.Join(err, svcs.Delete([]maps.SvcKey{maps.HostedAddrKey(c.At.Addr())}))
	}
	r.node.Hosted[c.At] = c.Service
	for index := 1; index <= serviceCount; index++ {
		if c.Service == 0 || c.Service == index {
			err = errors.Join(err, svcs.Update(maps.HostedKey(c.At, uint32(index)), row))
		}
	}
	return errors.Join(err, svcs.Update(maps.HostedAddrKey(c.At.Addr()), row))
}

func (r *run) changeNatDevice(c *natDeviceChange) error {
	if delete(r.node.NatDevices, c.Device); !c.Gone {
		r.node.NatDevices[c.Device] = true
	}
	devices := map[uint32]bool{}
	for id := range r.node.NatDevices {
		devices[uint32(r.kernel.devices[id].index)] = true
	}
	return r.kernel.maps.SetNatDevices(devices)
}

func (r *run) changeNode(c *nodeChange) error {
	switch {
	case c.Own.IsValid():
		if delete(r.node.Addresses, c.Own); !c.Gone {
			r.node.Addresses[c.Own] = c.Ports
		}
		rows := map[netip.Addr]maps.NodeAddr{}
		for addr, ports := range r.node.Addresses {
			rows[addr] = maps.NodeAddr{Ifindex: 1}
			if ports {
				rows[addr] = maps.NodeAddr{Ifindex: 1, Flags: maps.NodePorts}
			}
		}
		_, err := r.kernel.maps.SetNodeAddrs(rows)
		return err
	case c.Masquerade.IsValid():
		r.node.Masquerade[c.Masquerade.Is4()] = c.Masquerade
		return r.kernel.maps.SetSnatAddr(c.Masquerade)
	case c.Gone:
		delete(r.node.Pings, c.Ping)
		return r.kernel.tables.Svcs.Delete([]maps.SvcKey{maps.PingKey(c.Ping)})
	}
	r.node.Pings[c.Ping] = true
	return r.kernel.tables.Svcs.Update(maps.PingKey(c.Ping), maps.Svc{})
}

// keyOf returns the key of a flow's row.
func keyOf(flow Flow) maps.Flow {
	return maps.Flow{
		Saddr: maps.AddrOf(flow.Source.Addr()), Daddr: maps.AddrOf(flow.Dest.Addr()),
		Sport: maps.PortOf(flow.Source.Port()), Dport: maps.PortOf(flow.Dest.Port()), Proto: flow.Proto,
	}
}

// changeFlow does to a row what the kernel, the collector or time does. It leaves a flow without a
// row alone.
func (r *run) changeFlow(c *flowChange) error {
	memory, m := r.node.Open, r.kernel.maps.Ct
	if memory[c.Flow] == nil {
		memory, m = r.node.Pending, r.kernel.maps.CtPending
	}
	row, key := memory[c.Flow], keyOf(c.Flow)
	if row == nil {
		return nil
	}
	if c.What == "evict" {
		delete(memory, c.Flow)
		return m.Delete(&key)
	}
	var entry maps.FlowRow
	if err := m.Lookup(&key, &entry); err != nil {
		return fmt.Errorf("%s of %v: %w", c.What, c.Flow, err)
	}
	switch {
	case c.What == "tear" && !row.Torn:
		row.Torn = true
		entry.Checksum++
	case c.What == "outlive" && row.Made != 0 && !row.Torn:
		row.Made -= young + 1
		entry.AddrDiff = row.Made
		entry.Checksum = maps.ChecksumOf(key, entry)
	case c.What == "age" && (row.Reply || row.Direct != DirectOff || c.Flow.Proto == protoUDP || row.State >= Open): // others record no time
		row.Seen = r.node.Now - 1
		entry.Seen = row.Seen
	}
	return m.Update(&key, &entry, ebpf.UpdateExist)
}

// changeVisit ages the record of a client, by more than the service's timeout or by less.
func (r *run) changeVisit(c *visitChange) error {
	known, service := r.node.visits[visitor{c.Client, c.Service}], r.node.Services[c.Service]
	if known == nil || service == nil || service.Affinity == 0 {
		return nil
	}
	key := bpf.MapsAffinityKey{Client: maps.AddrOf(c.Client), Service: uint32(c.Service)}
	var value bpf.MapsAffinity
	if err := r.kernel.maps.Affinity.Lookup(&key, &value); err != nil {
		return err
	}
	age := time.Duration(service.Affinity) * time.Second
	if known.lapsed = c.Lapse; c.Lapse {
		age += time.Minute
	} else {
		age -= time.Minute
	}
	value.Last = coarse() - uint64(age)
	return r.kernel.maps.Affinity.Update(&key, &value, ebpf.UpdateExist)
}

// coarse returns the time on the clock that the programs use.
func coarse() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		panic(err)
	}
	return uint64(now.Nano())
}

// forgetAsked empties the programs' memory of routes that they looked up. Which flows share a row
// of it, and on which CPU they run, is chance, so the model has no such memory; until the kernel's
// answer changes, the memory must be as good as looking up again.
func (w *kernelNode) forgetAsked() error {
	nothing := make([]bpf.MapsFibCacheRow, ebpf.MustPossibleCPU())
	for i := range w.maps.FibCache.MaxEntries() {
		if err := w.maps.FibCache.Put(i, nothing); err != nil {
			return fmt.Errorf("empty the memory of ways: %w", err)
		}
	}
	return nil
}
