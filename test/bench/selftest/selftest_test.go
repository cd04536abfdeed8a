// Package selftest checks the parts of the benchmarks against each other: it measures the
// yardsticks in every way there is to measure, and requires them to work correctly in each. With -v
// it prints the figures.
package selftest

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"fairlead.io/fairlead/test/bench/flow"
	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/bench/progrun"
	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, flow.Funcs())) }

const (
	frontPort = 80
	backPort  = 8080

	tcRedirect, xdpRedirect = 7, 4 // return values of the programs
)

func families() []topology.Family { return []topology.Family{topology.IPv4, topology.IPv6} }

// bench is a node with yardsticks between a client and a server.
type bench struct {
	*topology.Topology
	node, server *topology.Host
	programs     *minimal.NodePortPrograms
}

// frontend returns an address that no host has.
func frontend(family topology.Family) netip.AddrPort {
	if family == topology.IPv4 {
		return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.10"), frontPort)
	}
	return netip.AddrPortFrom(netip.MustParseAddr("2001:db8::10"), frontPort)
}

func (b *bench) backend(family topology.Family) netip.AddrPort {
	return netip.AddrPortFrom(b.server.Addr(family), backPort)
}

func newBench(t *testing.T, hook minimal.Hook, flows int) *bench {
	t.Helper()
	// XDP needs GRO, which also lets tc see merged packets.
	top := topology.New(t, topology.NewRouted, topology.Knobs{Offloads: &topology.Offloads{GRO: true}})
	b := &bench{Topology: top, node: top.Nodes[0], server: top.Servers[0]}
	nodePort := minimal.NodePort{Hook: hook, Flows: 4 * flows, Front: hop(b.node, top.Client), Back: hop(b.node, b.server)}
	for _, family := range families() {
		nodePort.Pairs = append(nodePort.Pairs, minimal.Pair{Frontend: frontend(family), Backend: b.backend(family)})
		nodePort.Clients = append(nodePort.Clients, top.Client.Addr(family))
		nodePort.Nodes = append(nodePort.Nodes, b.node.Port(b.server).Addr(family))
	}
	var err error
	if b.programs, err = nodePort.Load(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.programs.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := b.programs.Attach(b.node.Netns); err != nil {
		t.Fatal(err)
	}
	return b
}

func hop(from, to *topology.Host) minimal.Hop {
	port := from.Port(to)
	return minimal.Hop{Ifindex: port.Index, Local: port.MAC, Remote: port.Peer.MAC}
}

// shape returns the shape of packets from the client to the frontend.
func (b *bench) shape(family topology.Family, kind frames.Kind, flows int) frames.Shape {
	out := b.Client.Ports[0]
	return frames.Shape{
		Kind: kind, Source: out.Addr(family), To: frontend(family), Local: out.MAC, Remote: out.Peer.MAC, Flows: flows,
	}
}

// Every program, run by itself, turns every packet into a correct one, with few flows and with
// many.
func TestProgramsByThemselves(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, hook := range []minimal.Hook{minimal.TC, minimal.XDP} {
		for _, flows := range []int{0, 1, 10_000} {
			b := newBench(t, hook, flows)
			for _, family := range families() {
				for _, kind := range []frames.Kind{frames.UDP, frames.TCPAck} {
					result, err := progrun.Measure(progrun.Config{
						Program: b.programs.In, Packets: b.shape(family, kind, max(flows, 1)), Runs: max(5000, flows), Calls: 5,
						Check: func(verdict uint32, packet []byte) error {
							if verdict != map[minimal.Hook]uint32{minimal.TC: tcRedirect, minimal.XDP: xdpRedirect}[hook] {
								return fmt.Errorf("the verdict is %d", verdict)
							}
							return checkPacket(packet, b.backend(family))
						},
					})
					if err != nil {
						t.Errorf("%s, %d flows, %s, %s: %v", hook, flows, family, kind, err)
					}
					t.Logf("%s, %d flows, %s, %s: %.1f ns (median %.1f) over %.1f", hook, flows, family, kind,
						result.Net.Min, result.Net.Median, result.Empty.Min)
				}
			}
		}
	}
}

// checkPacket rejects a packet with another destination or a wrong checksum.
func checkPacket(packet []byte, to netip.AddrPort) error {
	addrs, l4, proto := packet[26:34], packet[34:], packet[23]
	if to.Addr().Is6() {
		addrs, l4, proto = packet[22:54], packet[54:], packet[20]
	} else if sum(packet[14:34]) != 0xffff {
		return fmt.Errorf("the checksum of the IP header is wrong: % x", packet)
	}
	dest, _ := netip.AddrFromSlice(addrs[len(addrs)/2:])
	if have := netip.AddrPortFrom(dest, binary.BigEndian.Uint16(l4[2:])); have != to {
		return fmt.Errorf("it goes to %s, not to %s", have, to)
	}
	length := binary.BigEndian.AppendUint16([]byte{0, proto}, uint16(len(l4)))
	if sum(addrs, length, l4) != 0xffff {
		return fmt.Errorf("the checksum is wrong: % x", packet)
	}
	return nil
}

func sum(parts ...[]byte) uint16 {
	total := uint32(0)
	for _, p := range parts {
		for ; len(p) > 1; p = p[2:] {
			total += uint32(binary.BigEndian.Uint16(p))
		}
	}
	for total > 0xffff {
		total = total&0xffff + total>>16
	}
	return uint16(total)
}

// All frames sent through a program arrive at the backend, including later ones that reuse the
// memory of frames which the program has changed.
func TestFramesThroughPrograms(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	const packets = 3000
	for _, hook := range []minimal.Hook{minimal.TC, minimal.XDP} {
		for _, flows := range []int{0, 50_000} {
			b := newBench(t, hook, flows)
			sink, err := frames.AttachSink(b.server.Netns, frames.XDP, b.server.Ports[0].Index, backPort)
			if err != nil {
				t.Fatal(err)
			}
			for _, family := range families() {
				source, err := frames.NewSource(b.Client.Netns, b.shape(family, frames.UDP, max(flows, 1)), b.Client.Ports[0].Index)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				burst, err := source.Deliver(ctx, sink, packets)
				if err != nil {
					t.Errorf("%s, %d flows, %s: %v", hook, flows, family, err)
				}
				cancel()
				t.Logf("%s, %d flows, %s: %.2f M packets/s, %.0f ns of CPU each", hook, flows, family,
					burst.PerSecond()/1e6, float64(burst.CPU)/packets)
				if err := source.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := sink.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Every kind of traffic passes every yardstick, and is counted at the far end.
func TestTrafficThroughYardsticks(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	t.Run("socket", func(t *testing.T) {
		b := &bench{Topology: topology.New(t, topology.NewDirect, topology.Knobs{})}
		b.server = b.Servers[0]
		var pairs []minimal.Pair
		for _, family := range families() {
			pairs = append(pairs, minimal.Pair{Frontend: frontend(family), Backend: b.backend(family)})
		}
		attached, err := minimal.AttachSocket(b.Cgroup, minimal.Socket{Pairs: pairs, PeerName: true, Datagrams: true})
		if err != nil {
			t.Fatal(err)
		}
		defer attached.Close()
		b.runAll(t, true)
	})
	for _, hook := range []minimal.Hook{minimal.TC, minimal.XDP} {
		t.Run(string(hook), func(t *testing.T) { newBench(t, hook, 1000).runAll(t, true) })
	}
	t.Run("none", func(t *testing.T) {
		b := &bench{Topology: topology.New(t, topology.NewRouted, topology.Knobs{})}
		b.server = b.Servers[0]
		b.runAll(t, false)
	})
}

// runAll sends every kind of traffic to the frontends, or directly to the server.
func (b *bench) runAll(t *testing.T, balanced bool) {
	t.Helper()
	for _, family := range families() {
		for _, job := range []flow.Job{
			{Kind: flow.RequestResponse, Operations: 2000, WarmUp: 200},
			{Kind: flow.Connect, Operations: 300, WarmUp: 20},
			{Kind: flow.Stream, Operations: 1000, Size: 65536, Parallel: 2},
			{Kind: flow.Datagram, Operations: 1000},
			{Kind: flow.Send, Operations: 5000, WarmUp: 64},
			{Kind: flow.Send, Operations: 5000, WarmUp: 64, Unconnected: true},
		} {
			job.Client = flow.Place{Cgroup: b.Cgroup, Netns: b.Client.Netns}
			job.Server = flow.Place{Netns: b.server.Netns}
			job.Listen = b.backend(family)
			if balanced {
				job.Dial = frontend(family)
			}
			result, err := flow.Run(t.Context(), job)
			if err != nil {
				t.Errorf("%s over %s: %v", job.Kind, family, err)
				continue
			}
			if result.Claimed != result.Arrived {
				t.Errorf("%s over %s: %d of %d arrived", job.Kind, family, result.Arrived, result.Claimed)
			}
			t.Logf("%s over %s: %.1f a ms, p50 %.0f ns, p99 %.0f, CPU %.0f + %.0f", job.Kind, family,
				float64(result.Claimed)/float64(result.Took.Milliseconds()+1), result.Times.P50, result.Times.P99,
				result.Client.PerOperation(), result.Server.PerOperation())
		}
	}
}
