package frames

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, nil)) }

const port = 7777

func families() []topology.Family { return []topology.Family{topology.IPv4, topology.IPv6} }

// between returns the shape of packets from the client of a topology to its server.
func between(top *topology.Topology, family topology.Family, kind Kind) Shape {
	out := top.Client.Ports[0]
	return Shape{
		Kind: kind, Source: out.Addr(family), To: netip.AddrPortFrom(top.Servers[0].Addr(family), port),
		Local: out.MAC, Remote: out.Peer.MAC,
	}
}

func newSource(t *testing.T, top *topology.Topology, shape Shape) *Source {
	t.Helper()
	source, err := NewSource(top.Client.Netns, shape, top.Client.Ports[0].Index)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	})
	return source
}

// send sends packets and waits until all of them have reached the sink.
func send(t *testing.T, source *Source, sink *Sink, packets int) (Burst, Tally) {
	t.Helper()
	before, err := sink.Count()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	burst, err := source.Deliver(ctx, sink, packets)
	if err != nil {
		t.Fatal(err)
	}
	after, err := sink.Count()
	if err != nil {
		t.Fatal(err)
	}
	return burst, Tally{after.Packets - before.Packets, after.Bytes - before.Bytes}
}

// Everything sent arrives, at both hooks, in both families, in every kind and size.
func TestSendAndCount(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	const packets = 1500
	for _, hook := range []Hook{XDP, TC} {
		top := topology.New(t, topology.NewDirect, topology.Knobs{})
		sink, err := AttachSink(top.Servers[0].Netns, hook, top.Servers[0].Ports[0].Index, port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := sink.Close(); err != nil {
				t.Error(err)
			}
		})
		for _, family := range families() {
			for _, kind := range []Kind{UDP, TCPSyn, TCPAck} {
				shape := between(top, family, kind)
				shape.Flows = 1_000_000
				if kind != TCPSyn {
					shape.Size = 1000
				}
				burst, tally := send(t, newSource(t, top, shape), sink, packets)
				want := Tally{packets, packets * uint64(shape.layout().size)}
				if burst.Sent != packets || tally != want || burst.Took <= 0 || burst.CPU <= 0 {
					t.Errorf("%s at %s, %s: sent %+v, arrived %+v, want %+v", family, hook, kind, burst, tally, want)
				}
			}
		}
		other := between(top, topology.IPv4, UDP)
		other.To = netip.AddrPortFrom(other.To.Addr(), port+1)
		before, err := sink.Count()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newSource(t, top, other).Send(100); err != nil {
			t.Fatal(err)
		}
		if after, err := sink.Count(); err != nil || after != before {
			t.Errorf("packets for another port were counted: %+v, %+v, %v", before, after, err)
		}
	}
}

// A signal makes the kernel end a test run early, and the caller starts it again: no packet may be
// sent twice.
func TestSendUnderSignals(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	top := topology.New(t, topology.NewDirect, topology.Knobs{})
	source := newSource(t, top, between(top, topology.IPv4, UDP))
	source.As = func(send func() error) error {
		thread, sent := unix.Gettid(), make(chan error, 1)
		go func() {
			var err error
			for range 10 {
				time.Sleep(20 * time.Microsecond) // some arrive during the run
				err = errors.Join(err, unix.Tgkill(os.Getpid(), thread, unix.SIGURG))
			}
			sent <- err
		}()
		err := send()
		return errors.Join(err, <-sent)
	}
	for range 20 {
		if _, err := source.Make(5000); err != nil {
			t.Fatal(err)
		}
	}
}

// The kernel accepts the packets, and receives equally many of each flow.
func TestKernelAcceptsPackets(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	const flows, times = window / 3, 3
	for _, family := range families() {
		for _, size := range []int{0, 501} {
			top := topology.New(t, topology.NewDirect, topology.Knobs{Offloads: &topology.Offloads{GRO: true}})
			shape := between(top, family, UDP)
			shape.Flows, shape.Size = flows, size
			fd := bindUDP(t, top.Servers[0], shape.To)
			if _, err := newSource(t, top, shape).Send(flows * times); err != nil {
				t.Fatal(err)
			}
			have, buffer := map[netip.AddrPort]int{}, make([]byte, 2000)
			for range flows * times {
				n, from, err := unix.Recvfrom(fd, buffer, 0)
				if err != nil {
					t.Fatalf("%s: after %d flows: %v", family, len(have), err)
				}
				if want := shape.layout().size - shape.layout().headers; n != want {
					t.Fatalf("a datagram has %d bytes, want %d", n, want)
				}
				have[addrPortOf(from)]++
			}
			for flow := range flows {
				if source := shape.FlowSource(flow); have[source] != times {
					t.Errorf("%d packets of flow %d, from %s; want %d", have[source], flow, source, times)
				}
			}
		}
	}
}

func bindUDP(t *testing.T, host *topology.Host, to netip.AddrPort) int {
	t.Helper()
	fd := -1
	err := host.Do(func() (err error) {
		var addr unix.Sockaddr = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
		family := unix.AF_INET6
		if to.Addr().Is4() {
			family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
		}
		if fd, err = unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, addr)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	limit := unix.NsecToTimeval(int64(5 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		t.Fatal(err)
	}
	// Each packet counts as the page that it is in.
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
		t.Fatal(err)
	}
	return fd
}

func addrPortOf(from unix.Sockaddr) netip.AddrPort {
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	default:
		return netip.AddrPort{}
	}
}

// TCP counts segments with a wrong checksum.
func TestKernelAcceptsSegments(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, family := range families() {
		for _, kind := range []Kind{TCPSyn, TCPAck} {
			top := topology.New(t, topology.NewDirect, topology.Knobs{Offloads: &topology.Offloads{GRO: true}})
			shape := between(top, family, kind)
			shape.Flows = 1000
			if _, err := newSource(t, top, shape).Send(window); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			var got, wrong int
			err := wait(ctx, func() (bool, error) {
				var err error
				got, wrong, err = segments(top.Servers[0])
				return got >= window, err
			})
			if err != nil || wrong != 0 {
				t.Errorf("%s, %s: TCP got %d segments, %d with wrong checksums: %v", family, kind, got, wrong, err)
			}
		}
	}
}

// segments returns the number of segments that TCP received, and the number with a wrong checksum.
func segments(host *topology.Host) (got, wrong int, err error) {
	err = host.Do(func() error {
		content, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		var names []string
		for line := range strings.Lines(string(content)) {
			fields := strings.Fields(line)
			if fields[0] != "Tcp:" {
				continue
			}
			if names == nil {
				names = fields
				continue
			}
			for i, name := range names {
				switch name {
				case "InSegs":
					_, err = fmt.Sscan(fields[i], &got)
				case "InCsumErrors":
					_, err = fmt.Sscan(fields[i], &wrong)
				}
			}
		}
		return err
	})
	return got, wrong, err
}

func TestExplain(t *testing.T) {
	for err, want := range map[error]bool{
		unix.E2BIG: true, unix.EINVAL: true, ebpf.ErrNotSupported: true, unix.EPERM: false, unix.EINTR: false,
	} {
		explained := explain(fmt.Errorf("run program: %w", err))
		if have := errors.Is(explained, ErrNoLiveFrames); have != want || !errors.Is(explained, err) {
			t.Errorf("%v became %v", err, explained)
		}
	}
}

func TestMake(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	top := topology.New(t, topology.NewDirect, topology.Knobs{})
	source := newSource(t, top, between(top, topology.IPv4, UDP))
	burst, err := source.Make(10_000)
	if err != nil || burst.Sent != 10_000 {
		t.Errorf("%+v, %v", burst, err)
	}
	if _, err := source.Send(0); err == nil {
		t.Error("Send(0) succeeds")
	}
}

// If nothing arrives, the sink says so: here the far end does not take frames.
func TestNothingArrives(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	top := topology.New(t, topology.NewRouted, topology.Knobs{})
	sink, err := AttachSink(top.Servers[0].Netns, XDP, top.Servers[0].Ports[0].Index, port)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	if _, err := newSource(t, top, between(top, topology.IPv4, UDP)).Send(100); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := sink.Wait(ctx, 100); err == nil || !strings.Contains(err.Error(), "0 of 100 arrived") {
		t.Errorf("have error %v", err)
	}
	if _, err := AttachSink(top.Servers[0].Netns, "nic", 1, port); err == nil || !strings.Contains(err.Error(), `no hook "nic"`) {
		t.Errorf("have error %v", err)
	}
}
