// Package frames makes packets at the rate at which the kernel can take them: a program fills frames of
// BPF_PROG_TEST_RUN's own and redirects them into a veth, as the driver of a fast network card would. At the other end a
// program counts what arrived. It takes no driver and no other machine.
package frames

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// ErrNoLiveFrames says that the kernel runs programs on packets in test runs, but leaves the packets there.
var ErrNoLiveFrames = errors.New("the kernel cannot send from a test run (it takes Linux 5.18)")

// batchSize is how many frames are on the way before the far end is run. It is what the kernel takes by default, and
// said nevertheless: a kernel that knows no frames refuses it, and would else ignore what it is asked for.
const batchSize = 64

// Source sends packets out of a device.
type Source struct {
	// As is given what a thread does to send, on that thread, and does it; nil = it is done as it is.
	As func(send func() error) error

	ns      *rig.Netns
	packet  []byte
	objects framesObjects
}

// Burst is what was sent at a time.
type Burst struct {
	Sent uint64
	Took time.Duration // by the clock
	// CPU is the time of the thread that sent. The work of the far end is in it as far as the kernel did it at once, and
	// did not leave it to others.
	CPU time.Duration
}

// NewSource returns a source of packets at a device of a namespace. The other end of its wire has to take frames: a sink
// does, and a veth with GRO on. It returns ErrNoLiveFrames if the kernel cannot.
func NewSource(ns *rig.Netns, shape Shape, ifindex int) (*Source, error) {
	constant, packet, err := shape.Constant()
	if err != nil {
		return nil, err
	}
	spec, err := loadFrames()
	if err != nil {
		return nil, fmt.Errorf("read frame programs: %w", err)
	}
	if err := spec.Variables["shape"].Set(constant); err != nil {
		return nil, fmt.Errorf("set shape: %w", err)
	}
	s := &Source{ns: ns, packet: packet}
	if err := spec.LoadAndAssign(&s.objects, nil); err != nil {
		return nil, fmt.Errorf("load frame programs: %w", err)
	}
	err = ns.Do(func() error { return s.objects.SourcePort.Put(uint32(0), uint32(ifindex)) })
	if err == nil {
		_, err = s.Make(1)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare source at device %d: %w", ifindex, err), s.Close())
	}
	return s, nil
}

// Close lets go of the programs.
func (s *Source) Close() error { return s.objects.Close() }

// Send sends packets, as fast as the way that they take is.
func (s *Source) Send(packets int) (Burst, error) { return s.run(s.objects.Source, packets) }

// window is how many packets are on the way at a time if none may be lost: a veth keeps up to 256 of them for its far end.
const window = 192

// Deliver sends packets and waits at the sink until all are there, a window of them at a time. Send loses those that it is
// ahead of the far end, wherever that is run by another CPU: it is the kernel's choice, and one packet of somebody else's at
// the wrong time makes it.
func (s *Source) Deliver(ctx context.Context, sink *Sink, packets int) (total Burst, err error) {
	arrived, err := sink.Count()
	if err != nil {
		return total, err
	}
	for total.Sent < uint64(packets) {
		burst, err := s.Send(min(window, packets-int(total.Sent)))
		if err != nil {
			return total, err
		}
		total.Sent, total.Took, total.CPU = total.Sent+burst.Sent, total.Took+burst.Took, total.CPU+burst.CPU
		if _, err := sink.Wait(ctx, arrived.Packets+total.Sent); err != nil {
			return total, err
		}
	}
	return total, nil
}

// Make makes packets and sends none, to know what of the cost of sending is the source's own.
func (s *Source) Make(packets int) (Burst, error) { return s.run(s.objects.SourceOnly, packets) }

func (s *Source) run(program *ebpf.Program, packets int) (b Burst, err error) {
	if packets < 1 {
		return b, fmt.Errorf("send %d packets: send one or more", packets)
	}
	send := func() error {
		return rig.WithoutSignals(func() error { return s.runHere(program, packets, &b) })
	}
	if s.As != nil {
		plain := send
		send = func() error { return s.As(plain) }
	}
	err = s.ns.Do(send)
	if err != nil {
		return b, fmt.Errorf("send %d packets: %w", packets, err)
	}
	if b.Sent != uint64(packets) {
		return b, fmt.Errorf("send %d packets: the program made %d", packets, b.Sent)
	}
	return b, nil
}

func (s *Source) runHere(program *ebpf.Program, packets int, b *Burst) error {
	before, err := s.read()
	if err != nil {
		return err
	}
	start := time.Now()
	_, err = program.Run(&ebpf.RunOptions{
		Data: s.packet, Repeat: uint32(packets), Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, BatchSize: batchSize,
	})
	b.Took = time.Since(start)
	runtime.KeepAlive(s)
	if err != nil {
		return explain(err)
	}
	after, err := s.read()
	b.Sent, b.CPU = after.sent-before.sent, after.cpu-before.cpu
	return err
}

// explain says what it means that a test run is refused. Kernels without live frames take the batch size for what it is to
// them: something behind the end of all that they know.
func explain(err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("%w: %w", ErrNoLiveFrames, err)
	}
	return err
}

// reading is what a source counts, at a time.
type reading struct {
	sent uint64
	cpu  time.Duration
}

func (s *Source) read() (r reading, err error) {
	if err := s.objects.Sent.Get(&r.sent); err != nil {
		return r, fmt.Errorf("read count: %w", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return r, fmt.Errorf("read CPU time: %w", err)
	}
	r.cpu = time.Duration(now.Nano())
	return r, nil
}

// PerSecond returns how many packets a second were sent.
func (b Burst) PerSecond() float64 { return float64(b.Sent) / b.Took.Seconds() }

// poll is how long Wait sleeps between two looks at a counter.
const poll = time.Millisecond

// wait looks until done says so. What it waits for is in a map, which cannot be slept on.
func wait(ctx context.Context, done func() (bool, error)) error {
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(poll):
		}
	}
}
