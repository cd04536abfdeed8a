package frames

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"fairlead.io/fairlead/test/rig"
)

// Hook is where a sink receives packets.
type Hook string

// The hooks of a sink.
const (
	XDP Hook = "xdp" // before the kernel builds a packet from the frame
	TC  Hook = "tc"  // after it has built one
)

// Tally counts what arrived.
type Tally struct{ Packets, Bytes uint64 }

// Sink counts the packets for a port that arrive at a device, and drops them. Others pass.
type Sink struct {
	arrived *ebpf.Map
	parts   []io.Closer
}

// AttachSink attaches a sink to a device of a namespace, which takes frames from then on.
func AttachSink(ns *rig.Netns, hook Hook, ifindex int, port uint16) (*Sink, error) {
	spec, err := loadFrames()
	if err != nil {
		return nil, fmt.Errorf("read frame programs: %w", err)
	}
	wanted := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
	if err := spec.Variables["sink_port"].Set(wanted); err != nil {
		return nil, fmt.Errorf("set port: %w", err)
	}
	var objects framesObjects
	if err := spec.LoadAndAssign(&objects, nil); err != nil {
		return nil, fmt.Errorf("load frame programs: %w", err)
	}
	s := &Sink{arrived: objects.Arrived, parts: []io.Closer{&objects}}
	if err := ns.Do(func() error { return s.attach(hook, ifindex, objects.framesPrograms) }); err != nil {
		return nil, errors.Join(fmt.Errorf("attach sink to device %d: %w", ifindex, err), s.Close())
	}
	return s, nil
}

func (s *Sink) attach(hook Hook, ifindex int, programs framesPrograms) error {
	early := programs.XdpSink
	switch hook {
	case XDP:
	case TC:
		early = programs.XdpPass
		l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: programs.TcSink, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		s.parts = append(s.parts, l)
	default:
		return fmt.Errorf("no hook %q", hook)
	}
	l, err := link.AttachXDP(link.XDPOptions{Interface: ifindex, Program: early, Flags: link.XDPDriverMode})
	if err != nil {
		return err
	}
	s.parts = append(s.parts, l)
	return nil
}

// Close detaches the sink.
func (s *Sink) Close() error {
	var errs []error
	for i := len(s.parts) - 1; i >= 0; i-- {
		errs = append(errs, s.parts[i].Close())
	}
	s.parts = nil
	return errors.Join(errs...)
}

// Count returns what has arrived since the sink was attached.
func (s *Sink) Count() (Tally, error) {
	var perCPU []framesTally
	var total Tally
	if err := s.arrived.Lookup(uint32(0), &perCPU); err != nil {
		return total, fmt.Errorf("read sink: %w", err)
	}
	for _, t := range perCPU {
		total.Packets += t.Packets
		total.Bytes += t.Bytes
	}
	return total, nil
}

// Wait waits until at least the given number of packets have arrived since the sink was attached.
// If the context ends first, it returns what arrived until then, and an error.
func (s *Sink) Wait(ctx context.Context, packets uint64) (total Tally, err error) {
	err = wait(ctx, func() (bool, error) {
		total, err = s.Count()
		return total.Packets >= packets, err
	})
	if err != nil {
		return total, fmt.Errorf("wait for packets, of which %d of %d arrived: %w", total.Packets, packets, err)
	}
	return total, nil
}
