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
	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/bench/progrun"
	"fairlead.io/fairlead/test/bench/round"
)

// net is the metric: the time of the program, without that of creating its packets.
const net = "ns, program"

// xdpDrop is what a program returns if it has found the flow.
const xdpDrop = 1

const protoTCP = 6

// table is one kind of table with a number of flows in it.
type table struct {
	kind  ebpf.MapType
	flows int
}

func (t table) String() string { return fmt.Sprintf("%s with %d flows", t.kind, t.flows) }

func (t table) shape() frames.Shape {
	return frames.Shape{
		Kind: frames.TCPAck, Flows: t.flows,
		Source: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddrPort("192.0.2.1:80"),
		Local: stdnet.HardwareAddr{2, 0, 0, 0, 0, 1}, Remote: stdnet.HardwareAddr{2, 0, 0, 0, 0, 2},
	}
}

// load loads one program with its table, and fills the table.
func load(t table, program, flows string, key func(from, to netip.AddrPort) []byte) (*ebpf.Collection, error) {
	spec, err := loadKeys()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{program: spec.Programs[program]}
	spec.Maps[flows].Type, spec.Maps[flows].MaxEntries = t.kind, room
	for name := range spec.Maps {
		if name != flows && (name == "narrow_flows" || name == "wide_flows") {
			delete(spec.Maps, name)
		}
	}
	var coll *ebpf.Collection
	if err := limited.Do(func() error { coll, err = ebpf.NewCollection(spec); return err }); err != nil {
		return nil, fmt.Errorf("load %s: %w", program, err)
	}
	shape := t.shape()
	for i := range t.flows {
		row := make([]byte, 64)
		binary.NativeEndian.PutUint64(row, uint64(i))
		if err := coll.Maps[flows].Put(key(shape.FlowSource(i), shape.To), row); err != nil {
			coll.Close()
			return nil, fmt.Errorf("fill %s: %w", flows, err)
		}
	}
	return coll, nil
}

func narrowKey(from, to netip.AddrPort) []byte {
	return endOfKey(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), from, to)
}

func wideKey(from, to netip.AddrPort) []byte {
	source, dest := from.Addr().As16(), to.Addr().As16()
	return endOfKey(append(source[:], dest[:]...), from, to)
}

func endOfKey(key []byte, from, to netip.AddrPort) []byte {
	key = binary.BigEndian.AppendUint16(key, from.Port())
	key = binary.BigEndian.AppendUint16(key, to.Port())
	return binary.NativeEndian.AppendUint32(key, protoTCP)
}

// measure returns the function for one run of a round.
func (t table) measure(program *ebpf.Program) func(context.Context) (round.Sample, error) {
	return func(context.Context) (round.Sample, error) {
		found, err := progrun.Measure(progrun.Config{
			Program: program, Packets: t.shape(), Runs: max(400_000, t.flows), Calls: 3,
			Check: func(verdict uint32, _ []byte) error {
				if verdict != xdpDrop {
					return errors.New("a flow was not found")
				}
				return nil
			},
		})
		return round.Sample{
			Claimed: found.Runs, Arrived: found.Runs, Values: map[string]float64{net: max(found.Net.Min, 0)},
		}, err
	}
}
