package napi

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

// wire returns the threads of both ends of a wire, with a source of packets at one end and a sink
// at the other.
func wire(t *testing.T) (threads []*Thread, sink *frames.Sink, source *frames.Source) {
	t.Helper()
	top := topology.New(t, topology.NewDirect, topology.Knobs{Offloads: &topology.Offloads{GRO: true}})
	server, out := top.Servers[0], top.Client.Ports[0]
	for _, port := range []*topology.Port{out, out.Peer} {
		thread, err := Start(port.Host.Netns, port.Name)
		if err != nil {
			t.Fatal(err)
		}
		threads = append(threads, thread)
	}
	sink, err := frames.AttachSink(server.Netns, frames.XDP, out.Peer.Index, 9)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sink.Close() })
	source, err = frames.NewSource(top.Client.Netns, frames.Shape{
		Kind: frames.UDP, Source: out.Addr(topology.IPv4), To: netip.AddrPortFrom(server.Addr(topology.IPv4), 9), Local: out.MAC, Remote: out.Peer.MAC,
	}, out.Index)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { source.Close() })
	return threads, sink, source
}

// A device's thread is charged for what the device receives, and for nothing else.
func TestSpent(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	const packets = 20_000
	threads, sink, source := wire(t)
	for _, thread := range threads {
		if err := thread.Put(Place{CPU: 0, Priority: 2}); err != nil {
			t.Fatal(err)
		}
	}
	source.As = Place{CPU: 0, Priority: 1}.Do
	before := spent(t, threads)
	if _, err := source.Send(packets); err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Wait(t.Context(), packets); err != nil {
		t.Fatal(err)
	}
	after := spent(t, threads)
	if took := after[1] - before[1]; took < packets*10*time.Nanosecond {
		t.Errorf("the receiver took %v for %d packets", took, packets)
	}
	if took := after[0] - before[0]; took > (after[1]-before[1])/4 {
		t.Errorf("the sender, which received nothing, took %v, the receiver %v", took, after[1]-before[1])
	}
}

// With Deliver all packets arrive, however late the far end runs. With Send alone most would be
// lost then.
func TestDeliverLate(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	const packets = 2000
	threads, sink, source := wire(t)
	if err := threads[1].Put(Place{CPU: 0, Priority: 1}); err != nil {
		t.Fatal(err)
	}
	source.As = Place{CPU: 0, Priority: 2}.Do
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	burst, err := source.Deliver(ctx, sink, packets)
	if err != nil || burst.Sent != packets {
		t.Errorf("sent %+v: %v", burst, err)
	}
}

func spent(t *testing.T, threads []*Thread) (times []time.Duration) {
	t.Helper()
	for _, thread := range threads {
		took, err := thread.Spent()
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, took)
	}
	return times
}

// After Do, a thread is as it was before.
func TestDo(t *testing.T) {
	rig.Root(t)
	var before, inside, after unix.CPUSet
	err := Place{CPU: 0, Priority: 3}.Do(func() error {
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			return err
		}
		if attr.Policy != unix.SCHED_FIFO || attr.Priority != 3 {
			t.Errorf("inside Do, policy %d and priority %d", attr.Policy, attr.Priority)
		}
		return unix.SchedGetaffinity(0, &inside)
	})
	if err != nil {
		t.Fatal(err)
	}
	if inside.Count() != 1 || !inside.IsSet(0) {
		t.Errorf("inside Do, %d CPUs", inside.Count())
	}
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SchedGetaffinity(os.Getpid(), &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.SchedGetaffinity(0, &after); err != nil {
		t.Fatal(err)
	}
	if attr.Policy != unix.SCHED_NORMAL || after != before {
		t.Errorf("after Do, policy %d and %d CPUs of %d", attr.Policy, after.Count(), before.Count())
	}
}

func TestMistakes(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	plain := topology.New(t, topology.NewDirect, topology.Knobs{})
	if _, err := Start(plain.Client.Netns, plain.Client.Ports[0].Name); err == nil || !strings.Contains(err.Error(), "set its switch") {
		t.Errorf("a device without NAPI: %v", err)
	}
	if _, err := Start(plain.Client.Netns, "eth9"); err == nil || !strings.Contains(err.Error(), "eth9") {
		t.Errorf("a device that does not exist: %v", err)
	}
	if _, err := (&Thread{pid: 1 << 22}).Spent(); err == nil {
		t.Error("a thread that does not exist has a CPU time")
	}
	if err := (Place{CPU: 900, Priority: 1}).Do(func() error { return nil }); err == nil {
		t.Error("Do succeeds on a CPU that does not exist")
	}
}
