package minimal

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/rig"
)

// Hook is where packets are met.
type Hook string

// The hooks of packets.
const (
	TC  Hook = "tc"
	XDP Hook = "xdp"
)

// NodePort sends what comes in at one device of a node for a frontend out at another to the backend, and the answers
// back. The device that the client is at is the front.
type NodePort struct {
	Hook  Hook
	Pairs []Pair // at most one of each family
	// Flows is how many rows the table of flows has. With a table a packet costs one lookup, the first of a flow an
	// insert, and the client keeps its address. The kernel throws rows out before all are used, so take twice as many as
	// there will be flows of both directions. Without, all that is rewritten is constant, and so is the client.
	Flows int
	// BothRows makes the first packet of a flow insert a second row, as a program does that knows the way back. Such
	// programs are for measuring what comes in: their second row misleads the answers.
	BothRows bool
	// Conntrack makes the table of flows one as that of a connection tracking: nothing is thrown out of it, keys are as
	// long as those of IPv6 for either family, every flow has both its rows there, that of the answers made first, and
	// rows take memory when they are made, not before.
	Conntrack bool
	// Looks makes the first packet of a flow, which inserts both rows, or one if it wraps, look for what it has to know: in a
	// table of flows that are established, which a flood of first packets must not push out and which therefore is another
	// one with as many rows as this says, whether it is there, before, and whether the answers' flow is; and in a table of
	// frontends, whether the packet is for one. Keys are as long as those of IPv6.
	Looks int
	// Wraps makes the programs put a header of IP from the node to the backend around what comes in, which has one piece, and
	// leave the rest as it is, for backends that answer their clients themselves. The other direction is not for use.
	Wraps bool
	// Clients and Nodes are the addresses by family of the one client, and of the node towards the backend. A NodePort
	// with Flows does not need them.
	Clients, Nodes []netip.Addr
	Front, Back    Hop
}

// NodePortPrograms are programs of a NodePort that are loaded.
type NodePortPrograms struct {
	Attached
	In, Out *ebpf.Program // of the front and of the back

	nodePort NodePort
	ports    *ebpf.Map // of XDP: where frames go
}

// Load loads the programs.
func (n NodePort) Load() (*NodePortPrograms, error) {
	load, family := loadTc, "tc_"
	if n.Hook == XDP {
		load, family = loadXdp, "xdp_"
	}
	spec, err := load()
	if err != nil {
		return nil, fmt.Errorf("read %s programs: %w", n.Hook, err)
	}
	in, out, err := n.sides()
	if err != nil {
		return nil, fmt.Errorf("plan node port: %w", err)
	}
	if err := errors.Join(spec.Variables["forward"].Set(in), spec.Variables["reply"].Set(out)); err != nil {
		return nil, fmt.Errorf("set node port: %w", err)
	}
	err = errors.Join(spec.Variables["both_rows"].Set(n.BothRows || n.Conntrack || n.Looks > 0 && !n.Wraps),
		spec.Variables["wraps"].Set(n.Wraps), spec.Variables["wide_keys"].Set(n.Conntrack || n.Looks > 0), spec.Variables["looks"].Set(n.Looks > 0))
	if err != nil {
		return nil, fmt.Errorf("set rows: %w", err)
	}
	way := "constant_"
	if n.Flows > 0 {
		way = "flow_"
		spec.Maps["flows4"].MaxEntries, spec.Maps["flows6"].MaxEntries = uint32(n.Flows), uint32(n.Flows)
		if n.Looks > 0 {
			spec.Maps["flows4"].MaxEntries, spec.Maps["established"].MaxEntries = 1, uint32(n.Looks)
		}
		if n.Conntrack {
			spec.Maps["flows4"].MaxEntries = 1
			spec.Maps["flows6"].Type, spec.Maps["flows6"].Flags = ebpf.Hash, unix.BPF_F_NO_PREALLOC
		}
	}
	p := &NodePortPrograms{nodePort: n}
	if err := limited.Do(func() error { return p.load(spec, family+way) }); err != nil {
		_ = p.Close() // the first error is the one that matters
		return nil, err
	}
	return p, nil
}

func (p *NodePortPrograms) load(spec *ebpf.CollectionSpec, prefix string) error {
	for name := range spec.Programs {
		if name != prefix+"in" && name != prefix+"out" {
			delete(spec.Programs, name)
		}
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		return fmt.Errorf("load %s programs: %w", p.nodePort.Hook, err)
	}
	p.keep(closer(collection.Close))
	if p.nodePort.Looks > 0 {
		if err := p.serve(collection.Maps["frontends"]); err != nil {
			return err
		}
	}
	p.In, p.Out, p.ports = collection.Programs[prefix+"in"], collection.Programs[prefix+"out"], collection.Maps["ports"]
	return nil
}

// serve writes the frontends of the protocols that there may be packets of.
func (p *NodePortPrograms) serve(frontends *ebpf.Map) error {
	type key struct {
		Addr  [16]byte
		Port  [2]byte
		Proto uint16
	}
	for _, pair := range p.nodePort.Pairs {
		port := pair.Frontend.Port()
		for _, proto := range []uint16{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			at := key{Addr: pair.Frontend.Addr().As16(), Port: [2]byte{byte(port >> 8), byte(port)}, Proto: proto}
			if err := frontends.Put(at, uint64(1)); err != nil {
				return fmt.Errorf("write frontend %s: %w", pair.Frontend, err)
			}
		}
	}
	return nil
}

// closer is a close that cannot fail.
type closer func()

// Close closes.
func (c closer) Close() error { c(); return nil }

// Attach attaches the programs in the namespace of the node. For XDP its devices' peers have to take frames, which a
// veth does with GRO on, and must not leave checksums to a device.
func (p *NodePortPrograms) Attach(node *rig.Netns) error { return within(node, p.attachBoth) }

func (p *NodePortPrograms) attachBoth() error {
	n := p.nodePort
	if p.ports != nil {
		for i, hop := range []Hop{n.Back, n.Front} { // the order of the C side
			if err := p.ports.Put(uint32(i), uint32(hop.Ifindex)); err != nil {
				return fmt.Errorf("set port %d: %w", i, err)
			}
		}
	}
	return errors.Join(p.attach(p.In, n.Front.Ifindex), p.attach(p.Out, n.Back.Ifindex))
}

// sides works out all that the programs need to know, in the order of families that they have.
func (n NodePort) sides() (in, out [2]tcSide, err error) {
	if n.Hook != TC && n.Hook != XDP {
		return in, out, fmt.Errorf("there is no hook %q", n.Hook)
	}
	for _, pair := range n.Pairs {
		if err := pair.check(); err != nil {
			return in, out, err
		}
		family := 0
		if pair.Frontend.Addr().Is6() {
			family = 1
		}
		sender := addrs{pair.Frontend.Addr(), pair.Frontend.Addr()} // of the right family; with flows it stays
		if n.Flows == 0 || n.Wraps {
			if len(n.Clients) <= family || len(n.Nodes) <= family {
				return in, out, fmt.Errorf("%s needs the addresses of the client and of the node", pair.Frontend)
			}
			sender = addrs{n.Clients[family], n.Nodes[family]}
		}
		in[family], out[family] = n.request(pair, sender), n.answer(pair, sender)
	}
	return in, out, nil
}

// addrs is what an address is before and after a rewrite.
type addrs struct{ before, after netip.Addr }

// request returns what happens to packets to the frontend.
func (n NodePort) request(pair Pair, sender addrs) tcSide {
	var addr, port difference
	addr.addAddr(pair.Frontend.Addr(), pair.Backend.Addr())
	addr.addAddr(sender.before, sender.after)
	port.addPort(pair.Frontend.Port(), pair.Backend.Port())
	row := n.Back.rewrite(addr, port)
	row.Saddr = words(sender.after)
	row.Daddr, row.Dport = words(pair.Backend.Addr()), order16(pair.Backend.Port())
	return tcSide{Addr: words(pair.Frontend.Addr()), Port: order16(pair.Frontend.Port()), To: row}
}

// answer returns what happens to packets from the backend.
func (n NodePort) answer(pair Pair, sender addrs) tcSide {
	var addr, port difference
	addr.addAddr(pair.Backend.Addr(), pair.Frontend.Addr())
	addr.addAddr(sender.after, sender.before)
	port.addPort(pair.Backend.Port(), pair.Frontend.Port())
	row := n.Front.rewrite(addr, port)
	row.Saddr, row.Sport = words(pair.Frontend.Addr()), order16(pair.Frontend.Port())
	row.Daddr = words(sender.before)
	return tcSide{Addr: words(pair.Backend.Addr()), Port: order16(pair.Backend.Port()), Reply: 1, To: row}
}

// rewrite returns the start of a rewrite: where the packet goes, and how its checksum changes.
func (h Hop) rewrite(addr, port difference) tcRewrite {
	row := tcRewrite{AddrDiff: uint32(addr), PortDiff: uint32(port), Ifindex: uint32(h.Ifindex)}
	copy(row.Dmac[:], h.Remote)
	copy(row.Smac[:], h.Local)
	return row
}
