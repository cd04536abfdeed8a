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

// Hook is where programs process packets.
type Hook string

// The hooks.
const (
	TC  Hook = "tc"
	XDP Hook = "xdp"
)

// NodePort forwards packets for a frontend that arrive at one device of a node to the backend
// through another device, and the answers back. The client is at the front device.
type NodePort struct {
	Hook  Hook
	Pairs []Pair // at most one of each family
	// Flows is the number of rows in the table of flows. With a table, a packet costs one lookup,
	// the first of a flow also an insert, and the client keeps its address. The kernel evicts rows
	// before all are in use, so set twice the number of flows in both directions. Without a table,
	// the whole rewrite is constant, including the client.
	Flows int
	// BothRows makes the first packet of a flow insert a second row, as a program does that handles
	// answers. Only use it to measure incoming packets: the second row misdirects answers.
	BothRows bool
	// Conntrack makes the table of flows resemble that of connection tracking: nothing is evicted,
	// keys of both families are as long as those of IPv6, every flow has both rows in the table,
	// that of the answers made first, and rows are allocated when they are made.
	Conntrack bool
	// Looks makes the first packet of a flow look up what it needs to know before it inserts both
	// rows, or one if it wraps: whether its flow and that of the answers are in a table of
	// established flows, and whether the packet is for a frontend in a table of these. The
	// established flows are in a table of their own, with Looks rows, since a flood of first
	// packets must not evict them. Keys are as long as those of IPv6.
	Lookups int
	// Wraps makes the programs put an IP header from the node to the backend around incoming
	// packets, which must be unfragmented, and leave the rest unchanged, for backends that answer
	// their clients themselves. The other direction is not usable.
	Wraps bool
	// Clients and Nodes are the addresses, by family, of the only client, and of the node toward
	// the backend. A NodePort with Flows does not need them.
	Clients, Nodes []netip.Addr
	Front, Back    Hop
}

// NodePortPrograms are the loaded programs of a NodePort.
type NodePortPrograms struct {
	Attached
	In, Out *ebpf.Program // for the front and the back device

	nodePort NodePort
	ports    *ebpf.Map // XDP only: where frames go
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
	err = errors.Join(spec.Variables["both_rows"].Set(n.BothRows || n.Conntrack || n.Lookups > 0 && !n.Wraps),
		spec.Variables["wraps"].Set(n.Wraps), spec.Variables["wide_keys"].Set(n.Conntrack || n.Lookups > 0), spec.Variables["looks"].Set(n.Lookups > 0))
	if err != nil {
		return nil, fmt.Errorf("set rows: %w", err)
	}
	way := "constant_"
	if n.Flows > 0 {
		way = "flow_"
		spec.Maps["flows4"].MaxEntries, spec.Maps["flows6"].MaxEntries = uint32(n.Flows), uint32(n.Flows)
		if n.Lookups > 0 {
			spec.Maps["flows4"].MaxEntries, spec.Maps["established"].MaxEntries = 1, uint32(n.Lookups)
		}
		if n.Conntrack {
			spec.Maps["flows4"].MaxEntries = 1
			spec.Maps["flows6"].Type, spec.Maps["flows6"].Flags = ebpf.Hash, unix.BPF_F_NO_PREALLOC
		}
	}
	p := &NodePortPrograms{nodePort: n}
	if err := limited.Do(func() error { return p.load(spec, family+way) }); err != nil {
		_ = p.Close() // the first error matters
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
	p.own(closer(collection.Close))
	if p.nodePort.Lookups > 0 {
		if err := p.serve(collection.Maps["frontends"]); err != nil {
			return err
		}
	}
	p.In, p.Out, p.ports = collection.Programs[prefix+"in"], collection.Programs[prefix+"out"], collection.Maps["ports"]
	return nil
}

// serve writes the frontends for all protocols that packets may have.
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

// closer is a close function that cannot fail.
type closer func()

// Close closes.
func (c closer) Close() error { c(); return nil }

// Attach attaches the programs in the namespace of the node. For XDP, the peers of its devices must
// take frames, which a veth does with GRO on, and must not leave checksums to a device.
func (p *NodePortPrograms) Attach(node *rig.Netns) error { return within(node, p.attachBoth) }

func (p *NodePortPrograms) attachBoth() error {
	n := p.nodePort
	if p.ports != nil {
		for i, hop := range []Hop{n.Back, n.Front} { // in the order of the C code
			if err := p.ports.Put(uint32(i), uint32(hop.Ifindex)); err != nil {
				return fmt.Errorf("set port %d: %w", i, err)
			}
		}
	}
	return errors.Join(p.attach(p.In, n.Front.Ifindex), p.attach(p.Out, n.Back.Ifindex))
}

// sides computes everything that the programs need to know, in their order of families.
func (n NodePort) sides() (in, out [2]tcSide, err error) {
	if n.Hook != TC && n.Hook != XDP {
		return in, out, fmt.Errorf("no hook %q", n.Hook)
	}
	for _, pair := range n.Pairs {
		if err := pair.check(); err != nil {
			return in, out, err
		}
		family := 0
		if pair.Frontend.Addr().Is6() {
			family = 1
		}
		sender := addrs{pair.Frontend.Addr(), pair.Frontend.Addr()} // of the right family; unchanged with flows
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

// addrs is an address before and after a rewrite.
type addrs struct{ before, after netip.Addr }

// request returns the rewrite of packets to the frontend.
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

// answer returns the rewrite of packets from the backend.
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

// rewrite returns the start of a rewrite: the next hop, and the change of the checksum.
func (h Hop) rewrite(addr, port difference) tcRewrite {
	row := tcRewrite{AddrDiff: uint32(addr), PortDiff: uint32(port), Ifindex: uint32(h.Ifindex)}
	copy(row.Dmac[:], h.Remote)
	copy(row.Smac[:], h.Local)
	return row
}
