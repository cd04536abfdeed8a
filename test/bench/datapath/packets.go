package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	stdnet "net"
	"net/netip"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/bench/progrun"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/bench/topology"
)

// net is the metric: the time of the program, without that of creating its packets.
const net = "ns, program"

// What the programs return for a packet that they forward: the kernel's numbers for "leave by
// another device", "leave by the device it came in on" and "continue".
const (
	tcRedirect  = 7
	xdpTx       = 3
	xdpRedirect = 4
)

const (
	// pendingRows is the number of flows, not yet established, that a table has room for.
	pendingRows = 16384
	// freshFlows is large enough that no flow is still in the table when its turn comes again.
	// Twice the table's rows would do.
	freshFlows = 100_000
)

// packets describes the packets that programs are measured on.
type packets struct {
	hook   minimal.Hook
	family topology.Family
	flows  int
	effort float64

	isWrapped bool // the backend gets them with an added header
}

// goal returns the cost allowed for a packet of an established flow, relative to the bare minimum.
func (p packets) goal() float64 {
	if p.hook == minimal.TC {
		return goalTC
	}
	return goalXDP
}

// goalConntrack returns the cost allowed relative to one lookup in a connection table; zero = no
// goal.
func (p packets) goalConntrack() float64 {
	if p.hook == minimal.TC {
		return 0
	}
	return goalCt
}

// calls is the number of calls of a program in a round, after one call to warm up.
const calls = 3

const (
	// fewestRuns is the minimum number of packets in one call: enough for some milliseconds.
	fewestRuns = 40_000
	// roundFlows limits the flows that take turns in a round: more than any cache can hold.
	roundFlows = 400_000
)

// runs returns the number of packets in one call. Every flow of a round has its turn: each call
// continues where the previous one ended.
func (p packets) runs() int {
	return max(int(p.effort*fewestRuns), (min(p.flows, roundFlows)+calls)/(calls+1), 64)
}

func (p packets) frontend() netip.AddrPort {
	if p.family == topology.IPv6 {
		return netip.MustParseAddrPort("[2001:db8::1]:80")
	}
	return netip.MustParseAddrPort("192.0.2.1:80")
}

func (p packets) backend() netip.AddrPort {
	if p.family == topology.IPv6 {
		return netip.MustParseAddrPort("[fd00:1::2]:8080")
	}
	return netip.MustParseAddrPort("10.1.0.2:8080")
}

func (p packets) shape() frames.Shape {
	source := netip.MustParseAddr("10.0.0.1")
	if p.family == topology.IPv6 {
		source = netip.MustParseAddr("fd00::1")
	}
	return frames.Shape{
		Kind: frames.UDP, Flows: p.flows, Source: source, To: p.frontend(),
		// Test runs come in on loopback, whose own address is all zeroes.
		Local: stdnet.HardwareAddr{2, 0, 0, 0, 0, 1}, Remote: make(stdnet.HardwareAddr, 6),
	}
}

// minimum loads the minimal programs for these packets.
func (p packets) minimum(n minimal.NodePort) (*minimal.NodePortPrograms, error) {
	n.Hook, n.Pairs = p.hook, []minimal.Pair{{Frontend: p.frontend(), Backend: p.backend()}}
	n.Clients = []netip.Addr{p.shape().Source, p.shape().Source}
	n.Nodes = n.Clients
	mac := stdnet.HardwareAddr{2, 0, 0, 0, 0, 3}
	n.Front = minimal.Hop{Ifindex: 1, Local: mac, Remote: mac}
	n.Back = n.Front
	return n.Load()
}

// fill passes the first packet of every flow to a program. If a table were filled in the order in
// which packets come later, its rows would be in that order in memory too, and caches could predict
// the next one, which never happens with real clients. So all tables are filled in the order of the
// flows' numbers.
func (p packets) fill(program *ebpf.Program) error {
	return p.each(func(packet []byte) error {
		_, err := runOnce(program, packet)
		return err
	})
}

// each calls fn with the first packet of every flow.
func (p packets) each(fn func(packet []byte) error) error {
	first, err := p.shape().Packet()
	if err != nil {
		return err
	}
	for i := range p.flows {
		if err := fn(p.number(first, i)); err != nil {
			return fmt.Errorf("flow %d: %w", i, err)
		}
	}
	return nil
}

// runOnce runs a program on a packet and returns the resulting packet.
func runOnce(program *ebpf.Program, packet []byte) ([]byte, error) {
	options := ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256)}
	_, err := program.Run(&options)
	return options.DataOut, err
}

// offsets returns the offset of the source address, the length of addresses, and the offset of the
// ports.
func (p packets) offsets() (source, size, ports int) {
	if p.family == topology.IPv6 {
		return 14 + 8, 16, 14 + 40
	}
	return 14 + 12, 4, 14 + 20
}

// number turns a packet into one of another flow. It does not update the checksum, which nothing
// checks.
func (p packets) number(packet []byte, flow int) []byte {
	source, size, ports := p.offsets()
	from := p.shape().FlowSource(flow)
	packet = append([]byte(nil), packet...)
	copy(packet[source:source+size], from.Addr().AsSlice())
	binary.BigEndian.PutUint16(packet[ports:], from.Port())
	return packet
}

// measure returns the function for one run of a round.
func (p packets) measure(program *ebpf.Program) func(context.Context) (round.Sample, error) {
	return func(context.Context) (round.Sample, error) {
		plain, err := p.shape().Packet()
		if err != nil {
			return round.Sample{}, err
		}
		found, err := progrun.Measure(progrun.Config{
			Program: program, Packets: p.shape(), Runs: p.runs(), Calls: calls,
			Check: func(verdict uint32, packet []byte) error {
				return errors.Join(p.check(verdict, packet), p.checkLength(len(plain), len(packet)))
			},
		})
		return round.Sample{
			Claimed: found.Runs, Arrived: found.Runs, Values: map[string]float64{net: max(found.Net.Min, 0)},
		}, err
	}
}

// checkLength fails unless a packet to be wrapped became longer, and any other kept its length.
func (p packets) checkLength(before, after int) error {
	if p.isWrapped != (after > before) {
		return fmt.Errorf("a packet of %d bytes now has %d", before, after)
	}
	return nil
}

// check fails unless a packet is on its way to the backend.
func (p packets) check(verdict uint32, packet []byte) error {
	sent := verdict == tcRedirect
	at, size := 14+16, 4
	if p.hook == minimal.XDP {
		// Without devices, the minimal program's redirect has no target, and the kernel reports it
		// as aborted.
		sent = verdict == xdpTx || verdict == xdpRedirect || verdict == 0
	}
	if p.family == topology.IPv6 {
		at, size = 14+24, 16
	}
	if len(packet) < at+size {
		return errors.New("the packet is too short")
	}
	to, _ := netip.AddrFromSlice(packet[at : at+size])
	if !sent || to != p.backend().Addr() {
		return fmt.Errorf("a packet to %s got the verdict %d", to, int32(verdict))
	}
	return nil
}
