// Package frames makes packets as fast as the kernel can take them: a program fills frames of
// BPF_PROG_TEST_RUN and redirects them into a veth, as the driver of a fast network card would. At
// the other end, a program counts what arrives. No driver and no other machine is needed.
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

// ErrNoLiveFrames reports that the kernel can run programs on packets in test runs, but cannot send
// these packets.
var ErrNoLiveFrames = errors.New("the kernel cannot send from a test run (needs Linux 5.18)")

// batchSize is the number of frames in flight before the far end runs. It is the kernel's default,
// but set explicitly: a kernel without live frames rejects it, whereas it would silently ignore the
// request otherwise.
const batchSize = 64

// Source sends packets out of a device.
type Source struct {
	// As is called on the sending thread with the function that sends, and must call it; nil = call
	// it directly.
	As func(send func() error) error

	ns      *rig.Netns
	packet  []byte
	objects framesObjects
}

// Burst describes one call of Send.
type Burst struct {
	Sent uint64
	Took time.Duration // wall time
	// CPU is the time of the thread that sent. It includes the work of the far end as far as the
	// kernel did it at once, and did not defer it to another thread.
	CPU time.Duration
}

// NewSource returns a source of packets at a device of a namespace. The other end of the wire must
// take frames: a sink does, and so does a veth with GRO on. It returns ErrNoLiveFrames if the
// kernel cannot send frames.
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

// Close closes the programs.
func (s *Source) Close() error { return s.objects.Close() }

// Send sends packets as fast as their path allows.
func (s *Source) Send(packets int) (Burst, error) { return s.run(s.objects.Source, packets) }

// window is the number of packets in flight if none may be lost: a veth queues up to 256 of them
// for its far end.
const window = 192

// Deliver sends packets, a window at a time, and waits until all have reached the sink. Send loses
// packets when it gets ahead of the far end, if that runs on another CPU. The kernel decides that,
// and one unrelated packet at the wrong time can cause it.
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

// Make makes packets without sending them, to measure the source's own part of the cost of sending.
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

// explain interprets the rejection of a test run. To kernels without live frames, the batch size is
// an unknown field after the end of the structure that they know.
func explain(err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.EINVAL) || errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("%w: %w", ErrNoLiveFrames, err)
	}
	return err
}

// reading is the state of a source's counters at one time.
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

// PerSecond returns the number of packets sent per second.
func (b Burst) PerSecond() float64 { return float64(b.Sent) / b.Took.Seconds() }

// poll is how long Wait sleeps between two looks at a counter.
const poll = time.Millisecond

// wait polls until done returns true. The counter is in a map, and it is impossible to block on a
// map.
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
