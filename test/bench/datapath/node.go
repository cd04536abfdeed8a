package main

import (
	"context"
	"errors"
	"fmt"
	stdnet "net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/rig"
)

// node is a node with one service and our programs. The route to the backend leaves by the device
// that packets come in on.
type node struct {
	packets
	tick    uint32 // as in the programs' configuration: a tick is 2^tick jiffies
	netns   *rig.Netns
	maps    *maps.Maps
	ct      *ebpf.Map
	program *ebpf.Program
	parts   []func() error
}

// flowsPerBackend is the number of flows to each backend, which is on another node; up to 64,000
// would be possible.
const flowsPerBackend = 16384

// service is the index of the only service.
const service = 1

// leastRows is the minimum size of a table of established flows.
const leastRows = 1 << 17

// The ticks of nodes. Once per tick a flow's row is refreshed, so in an endless tick a packet only
// costs what it always does.
const (
	aboutASecond = 8
	endless      = 31
)

// newNode makes a node with room for the given number of rows of flows.
func newNode(p packets, rows int, tick uint32) (*node, error) {
	n := &node{packets: p, tick: tick}
	if err := n.lay(rows); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Close removes the node.
func (n *node) Close() error {
	var errs []error
	for i := len(n.parts) - 1; i >= 0; i-- {
		errs = append(errs, n.parts[i]())
	}
	return errors.Join(errs...)
}

func (n *node) lay(rows int) (err error) {
	if n.netns, err = rig.CreateNetns("node"); err != nil {
		return err
	}
	n.parts = append(n.parts, n.netns.Close)
	if err := n.netns.Do(n.route); err != nil {
		return fmt.Errorf("lay the way to the backend: %w", err)
	}
	if n.maps, err = maps.Create(maps.Sizes{}); err != nil {
		return err
	}
	n.parts = append(n.parts, n.maps.Close)
	if err := errors.Join(follow(n.maps), n.serve()); err != nil {
		return err
	}
	return limited.Do(func() error { return n.load(rows) })
}

// route gives the backend and the clients neighbors behind loopback, the device that test runs
// use. A node without a route back to its clients would refuse to serve them.
func (n *node) route() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	backend, client, index := n.backend().Addr(), n.shape().Source, lo.Attrs().Index
	size := client.BitLen()
	clients := netip.PrefixFrom(client, size-16).Masked()
	errs := []error{netlink.LinkSetUp(lo), n.neighbor(index, backend)}
	for _, to := range []netip.Prefix{netip.PrefixFrom(backend, size), clients} {
		dst := stdnet.IPNet{IP: to.Addr().AsSlice(), Mask: stdnet.CIDRMask(to.Bits(), size)}
		errs = append(errs, netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: &dst}))
	}
	for flow := range n.flows {
		if from := n.shape().FlowSource(flow).Addr(); flow == 0 || from != client {
			errs = append(errs, n.neighbor(index, from))
			client = from
		}
	}
	for _, name := range []string{"net/ipv4/conf/lo/forwarding", "net/ipv6/conf/lo/forwarding"} {
		errs = append(errs, n.netns.SetSysctl(name, "1"))
	}
	return errors.Join(errs...)
}

func (n *node) neighbor(index int, ip netip.Addr) error {
	return netlink.NeighSet(&netlink.Neigh{
		LinkIndex: index, IP: ip.AsSlice(), State: netlink.NUD_PERMANENT, HardwareAddr: []byte{2, 0, 0, 0, 0, 3},
	})
}

// serve writes the rows of the service.
func (n *node) serve() error {
	tables, err := n.maps.Tables()
	if err != nil {
		return err
	}
	n.parts = append(n.parts, tables.Close)
	count := uint16(n.flows/flowsPerBackend + 1)
	for i := range count {
		at, row := service+uint32(i), maps.BackendOf(n.backend().Addr(), n.backend().Port()+i, model.UDP)
		row.Owner = maps.MakeOwner(service, 1)
		tables.Backends[at], tables.Slots[at] = row, maps.MakeSlot(at, service, 1)
	}
	tables.Services[service] = maps.Service{Words: [2]uint64{uint64(maps.MakeWord(service, int(count), 1))}}
	key := maps.KeyOf(n.frontend().Addr(), n.frontend().Port(), model.UDP)
	own := n.frontend().Addr() // any address that the packets do not use otherwise
	_, err = n.maps.SetNodeAddrs(map[netip.Addr]maps.NodeAddr{own: {Ifindex: 1}})
	return errors.Join(err, n.maps.SetSnatAddr(own), n.maps.SetDeviceMacs(map[uint32][6]byte{1: {}}), // loopback's address
		tables.Svcs.Update(key, maps.Svc{Service: service, Kind: uint32(bpf.MapsSvcKindSVC_LOAD_BALANCER)}))
}

func (n *node) load(rows int) error {
	load, name := bpf.LoadTc, "tc_from_netdev"
	if n.hook == minimal.XDP {
		load, name = bpf.LoadXdp, "xdp_from_netdev"
	}
	spec, err := load()
	if err != nil {
		return fmt.Errorf("read programs: %w", err)
	}
	if err := spec.Variables["cfg"].Set(bpf.MapsPacketConfig{SnatFirst: 1024, SnatLast: 65535, TickShift: uint16(n.tick)}); err != nil {
		return fmt.Errorf("configure programs: %w", err)
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{name: spec.Programs[name]}
	// A program without fragment support may not tail-call one with it.
	spec.Programs[name].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
	if n.ct, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "ct", Type: ebpf.Hash, Flags: spec.Maps["ct"].Flags, KeySize: spec.Maps["ct"].KeySize,
		ValueSize: spec.Maps["ct"].ValueSize, MaxEntries: uint32(max(rows, leastRows)),
	}); err != nil {
		return fmt.Errorf("create table of flows: %w", err)
	}
	n.parts = append(n.parts, n.ct.Close)
	replacements := n.maps.Replacements(spec)
	replacements["ct"], spec.Maps["ct"].MaxEntries = n.ct, n.ct.MaxEntries()
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	n.parts = append(n.parts, func() error { loaded.Close(); return nil })
	n.program = loaded.Programs[name]
	return nil
}

// measure returns the function for one run of a round, in the node's namespace.
func (n *node) measure() func(context.Context) (round.Sample, error) {
	run := n.packets.measure(n.program)
	return func(ctx context.Context) (sample round.Sample, err error) {
		err = n.netns.Do(func() error { sample, err = run(ctx); return err })
		return sample, err
	}
}

// establish makes every flow known: a request, an answer, and another request.
func (n *node) establish() error {
	return n.netns.Do(func() error {
		err := n.each(func(request []byte) error {
			for range 2 {
				there, err := runOnce(n.program, request)
				if err != nil {
					return err
				}
				if _, err := runOnce(n.program, n.answer(there)); err != nil {
					return err
				}
			}
			return nil
		})
		return errors.Join(err, n.countRows())
	})
}

// answer returns the backend's answer to a packet.
func (n *node) answer(packet []byte) []byte {
	source, size, ports := n.offsets()
	back := append(make([]byte, 6), packet[6:]...) // addressed to the node again
	copy(back[source:], packet[source+size:source+2*size])
	copy(back[source+size:], packet[source:source+size])
	copy(back[ports:], packet[ports+2:ports+4])
	copy(back[ports+2:], packet[ports:ports+2])
	return back
}

// countRows fails unless every flow has both its rows.
func (n *node) countRows() error {
	const chunk = 1 << 14
	var cursor ebpf.MapBatchCursor
	keys, rows := make([]bpf.MapsFlow, chunk), make([]bpf.MapsCtEntry, chunk)
	for count := 0; ; {
		found, err := n.ct.BatchLookup(&cursor, keys, rows, nil)
		count += found
		switch {
		case err == nil:
		case !errors.Is(err, ebpf.ErrKeyNotExist):
			return fmt.Errorf("read rows: %w", err)
		case count != 2*n.flows:
			return fmt.Errorf("%d rows for %d flows, want two per flow", count, n.flows)
		default:
			return nil
		}
	}
}
