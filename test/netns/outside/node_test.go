package outside

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/ticks"
)

// nodeOrder is an order to the agent of a node.
type nodeOrder struct {
	Service     *service
	Ready       []service // prepare these frontends at once, like everything that a new agent finds
	Established int       // wait for at least this many rows of established flows
	Left        int       // wait until at most this many of them are left
	State       bool      // reply with what is attached
	Ways        string    // what to do about changes of routes and neighbors: see agent.follow
	// Replace the IPv4 address of eth0 with this one, and wait until the datapath knows it.
	Move   string
	Join   string         // serve the cluster's services as the node of this name: see agent.join
	Ranges []netip.Prefix // let in these clients, see agent.guard
}

// service is a frontend with one backend, or none, for every protocol.
type service struct {
	At      netip.AddrPort
	Kind    uint32
	Backend netip.AddrPort
	Local   bool
	Direct  lb.Direct // how packets reach a backend that answers its clients directly
}

// nodeState is what a node has attached and counted.
type nodeState struct {
	Devices []deviceState
	Drops   map[string]uint64 // by hook and reason
}

type deviceState struct{ Name, TC, XDP, XDPWhy, Err string }

// agent is a datapath with rows that a test writes.
type agent struct {
	*datapath.Datapath
	services uint32
	scanned  chan struct{}
	ways     *ticks.RouteEpoch
	guarded  *guarded // nil unless there are source ranges
	stop     func() error
}

// newNodeMain runs a node's datapath in the network namespace of the process. Its arguments are the
// BPF file system, the cgroup, the XDP mode and the devices.
func newNodeMain(args []string) (func(nodeOrder) (nodeState, error), error) {
	filter, err := devices.ParseFilter(args[3])
	reach, reachErr := datapath.ParseNodePortAddrs("primary")
	if err := errors.Join(err, reachErr); err != nil {
		return nil, err
	}
	d, err := datapath.Open(datapath.Config{
		BPFFS: args[0], CgroupRoot: args[1], Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Packets: &datapath.Packets{
			Devices: filter, XDP: devices.Mode(args[2]), NodePorts: reach, SnatPorts: model.PortRange{First: 1024, Last: 29999}, AcceptDirect: true,
		},
	})
	if err != nil {
		return nil, err
	}
	if !d.Adopted() {
		if err := d.Create(maps.Sizes{}); err != nil {
			return nil, err
		}
	}
	cluster := maps.Cluster{Known: true, Nodes: map[netip.Addr]maps.ClusterNode{}}
	for i, node := range []family{nodeA, nodeB, nodeC} {
		for _, addr := range node {
			cluster.Nodes[addr] = maps.ClusterNode{Name: uint64(i + 1), Number: uint32(i + 1)}
		}
	}
	if _, err := d.Maps().SetCluster(cluster); err != nil {
		return nil, err
	}
	if err := d.Attach(); err != nil {
		return nil, err
	}
	looked := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- d.Watch(context.Background(), nil, func(*datapath.Local) {
			select {
			case looked <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-looked:
	case err := <-ended:
		return nil, fmt.Errorf("watch: %w", err)
	}
	ways, err := d.RouteEpoch()
	return (&agent{Datapath: d, scanned: looked, ways: ways}).do, err
}

func (a *agent) do(o nodeOrder) (nodeState, error) {
	if o.Service != nil {
		return nodeState{}, a.add(*o.Service)
	}
	if o.Ready != nil {
		return nodeState{}, a.ready(o.Ready)
	}
	if o.Established > 0 {
		return nodeState{}, a.await(func(rows int) bool { return rows >= o.Established })
	}
	if o.Left > 0 {
		return nodeState{}, a.await(func(rows int) bool { return rows <= o.Left })
	}
	if o.Ways != "" {
		return nodeState{}, a.follow(o.Ways)
	}
	if o.Move != "" {
		return nodeState{}, a.move(netip.MustParsePrefix(o.Move))
	}
	if o.Ranges != nil {
		return nodeState{}, a.guard(o.Ranges)
	}
	if o.Join != "" {
		return nodeState{}, a.join(o.Join)
	}
	return a.state()
}

// move replaces the address of eth0, and the routes that belong to it.
func (a *agent) move(to netip.Prefix) error {
	device, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	old, err := netlink.AddrList(device, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, addr := range old {
		if err := netlink.AddrDel(device, &addr); err != nil {
			return err
		}
	}
	network := &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)}
	if err := netlink.AddrAdd(device, &netlink.Addr{IPNet: network}); err != nil {
		return err
	}
	pods := &net.IPNet{IP: net.IPv4(10, 244, 2, 0), Mask: net.CIDRMask(24, 32)}
	if err := errors.Join(
		netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(192, 0, 2, 254)}),
		netlink.RouteAdd(&netlink.Route{Dst: pods, Gw: net.IPv4(192, 0, 2, 2)}),
	); err != nil {
		return err
	}
	late := time.After(patience)
	for {
		status, err := a.Status()
		if err != nil || status.Outside.Addr4 == to.Addr() {
			return err
		}
		select {
		case <-a.scanned:
		case <-late:
			return fmt.Errorf("%s is not known", to)
		}
	}
}

func (a *agent) state() (nodeState, error) {
	status, err := a.Status()
	if err != nil {
		return nodeState{}, err
	}
	state := nodeState{Drops: map[string]uint64{}}
	for _, d := range status.Outside.Devices {
		state.Devices = append(state.Devices, deviceState{Name: d.Name, TC: d.TC, XDP: d.XDP, XDPWhy: d.XDPWhy, Err: d.Error})
	}
	for hook := range bpf.MapsHookHOOKS {
		for reason := range bpf.MapsReasonREASONS {
			var cpus []maps.Counter
			if err := a.Maps().Counters.Lookup(uint32(hook)*64+uint32(reason), &cpus); err != nil {
				return state, err
			}
			for _, c := range cpus {
				if c.Packets > 0 {
					state.Drops[fmt.Sprintf("%v/%v", hook, reason)] += c.Packets
				}
			}
		}
	}
	return state, nil
}

// ready does what a reconciler does before it writes frontends.
func (a *agent) ready(services []service) error {
	var keys []maps.SvcKey
	var rows []maps.Svc
	for _, s := range services {
		for _, proto := range []model.Protocol{model.TCP, model.UDP} {
			keys = append(keys, maps.KeyOf(s.At.Addr(), s.At.Port(), proto))
			rows = append(rows, maps.Svc{Kind: s.Kind})
		}
	}
	return a.Prepare(keys, rows)
}

// await waits until the number of rows of established flows is enough.
func (a *agent) await(enough func(rows int) bool) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	late := time.After(2 * patience)
	for {
		n := 0
		err := maps.EachFlow(a.Maps().Ct, &maps.FlowBuffer{}, func(keys []maps.Flow, _ []maps.FlowRow) error {
			n += len(keys)
			return nil
		})
		if err != nil || enough(n) {
			return err
		}
		select {
		case <-look.C:
		case <-late:
			return fmt.Errorf("there are %d rows of established flows", n)
		}
	}
}

// add writes the rows of a service; an existing service gets the backend.
func (a *agent) add(s service) error {
	for _, proto := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		tables := a.Tables()
		key := maps.KeyOf(s.At.Addr(), s.At.Port(), proto)
		a.services++
		index := a.services
		if s.Backend.IsValid() {
			row := maps.BackendOf(s.Backend.Addr(), s.Backend.Port(), proto)
			if s.Local {
				row.Flags = uint8(bpf.MapsBackendFlagBACKEND_LOCAL)
			}
			row.Owner = maps.MakeOwner(index, 1)
			tables.Backends[index] = row
			tables.Slots[index] = maps.MakeSlot(index, index, 3)
			tables.Services[index] = maps.Service{Words: [2]uint64{uint64(maps.MakeWord(index, 1, 3))}, Flags: maps.DirectFlags(uint8(s.Direct))}
		}
		if err := a.host(s, index); err != nil {
			return err
		}
		if err := tables.Svcs.Update(key, maps.Svc{Service: index, Kind: s.Kind}); err != nil {
			return err
		}
	}
	return nil
}
