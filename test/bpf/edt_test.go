package bpf

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

const (
	second  = uint64(1e9)
	burst   = second / 50 // of the time in which a pod sent nothing, it may make up for this much
	horizon = 2 * second  // no packet waits longer
	part    = uint64(16)  // time unit: fractions of a nanosecond
	waits   = 77          // the device where rate-limited packets that stay on the node wait
	// How far ahead most of these pods are, so that the time a test takes does not matter.
	ahead = second * 3 / 2
)

// skbtimed is the kernel's struct __sk_buff, reduced to the fields about departure times.
type skbtimed struct {
	_       [2]uint32
	Mark    uint32
	_       [5]uint32
	Prior   uint32
	Came    uint32 // ingress_ifindex
	Ifindex uint32
	_       [27]uint32
	Tstamp  uint64
	_       uint32
	Segs    uint32
	_       [2]uint32
	GsoSize uint32
	_       [3]uint32
}

// ratedPod is a rate-limited pod.
type ratedPod struct{ *bareNode }

func newPaced(t *testing.T, rate uint64) *ratedPod {
	t.Helper()
	return newPacedOf(t, rate, false)
}

// newPacedOf returns one whose packets to others on the node bypass the stack, or not.
func newPacedOf(t *testing.T, rate uint64, bypass bool) *ratedPod {
	t.Helper()
	config := standardConfig()
	config.Pacer = waits
	if bypass {
		config.Bypass = 1
	}
	p := &ratedPod{bareNode: newBareNodeTwoPods(t, config, false)}
	p.limit(t, rate)
	return p
}

// limit sets another rate for the pod.
func (p *ratedPod) limit(t *testing.T, rate uint64) {
	t.Helper()
	p.limitTo(t, maps.Rates{Out: rate})
}

func (p *ratedPod) limitTo(t *testing.T, rates maps.Rates) {
	t.Helper()
	pod := maps.Pod{
		Addrs: []netip.Addr{netip.MustParseAddr(pod4), netip.MustParseAddr(pod6)}, Index: 1,
		MAC: [6]byte([]byte(podMAC)), HostMAC: [6]byte([]byte(hostMAC)), Rates: rates,
	}
	if err := p.maps.AddPod(pod); err != nil {
		t.Fatal(err)
	}
}

// pace returns the pod's counters, and sets when it may send next unless that is zero.
func (p *ratedPod) pace(t *testing.T, next uint64) (row bpf.MapsPodPace) {
	t.Helper()
	return p.paceOf(t, bpf.MapsPaceKindPACE_OUT, next)
}

func (p *ratedPod) paceOf(t *testing.T, kind bpf.MapsPaceKind, next uint64) (row bpf.MapsPodPace) {
	t.Helper()
	index := bpf.MapsPaceKey{Ifindex: 1, Kind: uint32(kind)}
	if next > 0 {
		row.Next = next * part
		if err := p.maps.PodPaces.Put(&index, &row); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.maps.PodPaces.Lookup(&index, &row); err != nil {
		t.Fatal(err)
	}
	return row
}

// send has the pod send a frame, and returns the departure time it was given; 0 for none.
func (p *ratedPod) send(t *testing.T, frame []byte, gso uint32) (verdict string, at uint64) {
	t.Helper()
	verdict, out, _ := p.try(t, "tc_from_pod", skbtimed{GsoSize: gso}, frame)
	return verdict, out.Tstamp
}

// try runs a program on a frame, and returns the verdict, the context and the frame afterward.
func (p *ratedPod) try(t *testing.T, program string, in skbtimed, frame []byte) (verdict string, out skbtimed, after []byte) {
	t.Helper()
	run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: in, ContextOut: &out}
	var code uint32
	if err := p.do(func() (err error) { code, err = p.programs[program].Run(&run); return err }); err != nil {
		t.Fatal(err)
	}
	return map[uint32]string{p.pass: "pass", p.drop: "drop", 7: "redirect"}[code], out, run.DataOut
}

func podFrame(is4 bool, proto byte, payload int) []byte {
	from, to := pod4+":4000", outside4+":80"
	if !is4 {
		from, to = brackets(pod6)+":4000", brackets(outside6)+":80"
	}
	return sent{frame: packet{from: from, to: to, proto: proto, flags: ack, payload: payload}.bytes()}.bytes()
}

// Packets of a pod leave spaced by its rate, whatever they are.
func TestDepartures(t *testing.T) {
	for _, rate := range []uint64{1e6, 1e7, 1e8, 1e9, 1e10} { // bits per second
		for _, is4 := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d bit/s, IPv4 %t", rate, is4), func(t *testing.T) {
				p := newPaced(t, rate/8)
				start := now(t) + ahead
				p.pace(t, start)
				bytes := uint64(0)
				for i := range 30 {
					frame := podFrame(is4, []byte{tcp, udp}[i%2], 50+i*40)
					verdict, at := p.send(t, frame, 0)
					want := start + bytes*8*second/rate
					if verdict != "pass" || at > want || want-at > 30 { // each may lose a fraction of a nanosecond
						t.Fatalf("packet %d: %s, leaves at %d, want %d", i, verdict, at, want)
					}
					bytes += uint64(len(frame))
				}
				if row := p.pace(t, 0); row.Sent != bytes || row.Dropped != 0 {
					t.Errorf("counted %+v, but sent %d bytes", row, bytes)
				}
			})
		}
	}
}

// A merged packet takes the time of all its segments.
func TestDeparturesOfMerged(t *testing.T) {
	const rate, size = 1e6, 500
	for _, is4 := range []bool{true, false} {
		for _, c := range []struct {
			proto   byte
			headers int // without IP headers
		}{{tcp, 14 + 20}, {udp, 14 + 8}} {
			for _, payload := range []int{1, size, size + 1, 3 * size} {
				t.Run(fmt.Sprintf("IPv4 %t, protocol %d, %d bytes", is4, c.proto, payload), func(t *testing.T) {
					headers := c.headers + map[bool]int{true: 20, false: 40}[is4]
					p := newPaced(t, rate)
					start := now(t) + ahead
					p.pace(t, start)
					frame := podFrame(is4, c.proto, payload)
					if len(frame) != headers+payload {
						t.Fatalf("a frame of %d bytes", len(frame))
					}
					if verdict, at := p.send(t, frame, size); verdict != "pass" || at != start {
						t.Fatalf("%s, leaves at %d, want %d", verdict, at, start)
					}
					segments := (payload + size - 1) / size
					bytes := uint64(payload + segments*headers)
					want := start*part + bytes*second*part/rate
					if row := p.pace(t, 0); row.Next != want || row.Sent != bytes {
						t.Errorf("the next leaves %d ns later than it should, and %d bytes of %d are counted",
							(int64(row.Next)-int64(want))/int64(part), row.Sent, bytes)
					}
				})
			}
		}
	}
}

// SCTP does not cut what it merges into pieces of a size: it says of how many the merged packet is, and each has its header.
func TestDeparturesOfChunks(t *testing.T) {
	const rate, byPieces = 1e6, 0xffff
	for _, is4 := range []bool{true, false} {
		for _, pieces := range []uint32{1, 3} {
			p := newPaced(t, rate)
			start := now(t) + ahead
			p.pace(t, start)
			frame := podFrame(is4, sctp, 1200)
			verdict, out, _ := p.try(t, "tc_from_pod", skbtimed{GsoSize: byPieces, Segs: pieces}, frame)
			if verdict != "pass" || out.Tstamp != start {
				t.Fatalf("IPv4 %t: %s, leaves at %d, want %d", is4, verdict, out.Tstamp, start)
			}
			headers := uint64(14 + 12 + map[bool]int{true: 20, false: 40}[is4])
			if row, want := p.pace(t, 0), uint64(len(frame))+uint64(pieces-1)*headers; row.Sent != want {
				t.Errorf("IPv4 %t, %d pieces: %d bytes are counted, want %d", is4, pieces, row.Sent, want)
			}
		}
	}
}

// A pod that has sent nothing for long may make up for a little of that time, and no more.
func TestDeparturesAfterSilence(t *testing.T) {
	const rate = 1e6
	p := newPaced(t, rate)
	frame := podFrame(true, udp, 958) // 1,000 bytes: a millisecond
	before := now(t)
	atOnce := 0
	for range 100 {
		verdict, at := p.send(t, frame, 0)
		if verdict != "pass" {
			t.Fatal(verdict)
		}
		if at != 0 {
			break
		}
		atOnce++
	}
	took := (now(t) - before) / (second / 1000)
	if least := int(burst * 1000 / second); atOnce < least || atOnce > least+int(took)+2 {
		t.Errorf("%d packets left at once in %d ms, want %d", atOnce, took, least)
	}
}

// A packet that would have to wait for more than two seconds is dropped, and takes no time of
// others.
func TestDeparturesHorizon(t *testing.T) {
	p := newPaced(t, 1e6)
	frame := podFrame(true, tcp, 300)
	far := now(t) + horizon + second
	p.pace(t, far)
	if verdict, _ := p.send(t, frame, 0); verdict != "drop" {
		t.Errorf("too far ahead: %s", verdict)
	}
	if row := p.pace(t, 0); row.Next != far*part || row.Dropped != 1 || row.Sent != 0 {
		t.Errorf("counted %+v", row)
	}
	if got := p.counted(t, "horizon"); got != 1 {
		t.Errorf("the reason is counted %d times", got)
	}
	near := now(t) + horizon - second/100
	p.pace(t, near)
	if verdict, at := p.send(t, frame, 0); verdict != "pass" || at != near {
		t.Errorf("not too far ahead: %s, leaves at %d, want %d", verdict, at, near)
	}
}

// A pod without a rate gets no departure times.
func TestDeparturesOfOthers(t *testing.T) {
	p := newPaced(t, 1e6)
	p.pace(t, now(t)+ahead)
	p.limit(t, 0)
	if verdict, at := p.send(t, podFrame(true, tcp, 100), 0); verdict != "pass" || at != 0 {
		t.Errorf("without a rate: %s, leaves at %d", verdict, at)
	}
}

// A new rate applies from the next packet on, which does not overtake those that wait, and keeps
// the counters. At a low rate the next packet would have to wait for longer than any does: then it
// leaves at once.
func TestDeparturesAtAnotherRate(t *testing.T) {
	p := newPaced(t, 1e6)
	frame := podFrame(true, udp, 958)
	p.pace(t, now(t)+ahead)
	p.send(t, frame, 0)
	turn := p.pace(t, 0).Next / part
	p.limit(t, 2e6)
	if verdict, at := p.send(t, frame, 0); verdict != "pass" || at != turn {
		t.Errorf("%s, leaves at %d, want %d", verdict, at, turn)
	}
	p.pace(t, turn+100*second)
	p.limit(t, 1e6)
	if verdict, at := p.send(t, frame, 0); verdict != "pass" || at != 0 {
		t.Errorf("after a low rate: %s, leaves at %d", verdict, at)
	}
	p.limit(t, 2e6)
	p.pace(t, now(t)+ahead)
	next := p.pace(t, 0).Next
	p.limit(t, 2e6) // the rate it has already
	p.send(t, frame, 0)
	if row, want := p.pace(t, 0), next+second/2000*part; row.Next != want {
		t.Errorf("the next leaves at %d, want %d; %+v", row.Next/part, want/part, row)
	}
}

// CPUs that send for a pod at the same time take its time one after the other: none is lost.
func TestDeparturesAtOnce(t *testing.T) {
	const rate, rounds, senders = 1e9, 20_000, 4
	p := newPaced(t, rate)
	start := now(t) + ahead
	p.pace(t, start)
	frame := podFrame(true, udp, 958)
	var all sync.WaitGroup
	for range senders {
		all.Go(func() {
			run := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Repeat: rounds, Context: skbtimed{Came: 1}}
			if _, err := p.programs["tc_from_pod"].Run(&run); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	row := p.pace(t, 0)
	if want := (start + senders*rounds*uint64(len(frame))) * part; row.Next != want || row.Sent != senders*rounds*uint64(len(frame)) {
		t.Errorf("the next leaves %d ns late; %+v", int64(row.Next-want)/int64(part), row)
	}
}

// A merged packet too large for an IPv6 length field has a jumbo option, which is not on the wire.
func TestDeparturesOfJumbo(t *testing.T) {
	const rate, size = 1e6, 500
	p := newPaced(t, rate)
	start := now(t) + ahead
	p.pace(t, start)
	plain := podFrame(false, tcp, 2*size)
	frame := append(append([]byte{}, plain[:54]...), append([]byte{tcp, 0, 0xc2, 4, 0, 0, 0, 0}, plain[54:]...)...)
	frame[20] = 0 // hop-by-hop options
	binary.BigEndian.PutUint16(frame[18:], uint16(len(frame)-54))
	if verdict, at := p.send(t, frame, size); verdict != "pass" || at != start {
		t.Fatalf("%s, leaves at %d, want %d", verdict, at, start)
	}
	want := start*part + uint64(2*(size+14+40+20))*second*part/rate
	if row := p.pace(t, 0); row.Next != want {
		t.Errorf("the next leaves %d ns later than it should", (int64(row.Next)-int64(want))/int64(part))
	}
}

// A pod with several devices has one rate: what it sends and gets through one device takes the time
// of the others.
func TestDeparturesByTwoDevices(t *testing.T) {
	const rate = 1e6
	for _, bypass := range []bool{true, false} {
		p := newPacedOf(t, rate, bypass)
		second := maps.Pod{
			Addrs: []netip.Addr{netip.MustParseAddr(other4), netip.MustParseAddr(other6)}, Index: 2,
			MAC: [6]byte([]byte(otherMAC)), HostMAC: [6]byte([]byte(hostMAC)), Rates: maps.Rates{Out: rate, In: rate},
		}
		first := maps.Pod{
			Addrs: []netip.Addr{netip.MustParseAddr(pod4), netip.MustParseAddr(pod6)}, Index: 1, Pace: 2,
			MAC: [6]byte([]byte(podMAC)), HostMAC: [6]byte([]byte(hostMAC)), Rates: second.Rates,
		}
		for _, pod := range []maps.Pod{second, first} {
			if err := p.maps.AddPod(pod); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.maps.PodPaces.Delete(&bpf.MapsPaceKey{Ifindex: 1}); err == nil {
			t.Error("the first device has its own row")
		}
		start := now(t) + patience/2
		for _, kind := range []bpf.MapsPaceKind{bpf.MapsPaceKindPACE_OUT, bpf.MapsPaceKindPACE_IN} {
			if err := p.maps.PodPaces.Put(&bpf.MapsPaceKey{Ifindex: 2, Kind: uint32(kind)}, &bpf.MapsPodPace{Next: start * part}); err != nil {
				t.Fatal(err)
			}
		}
		frame := podFrame(true, udp, 958)
		if verdict, at := p.send(t, frame, 0); verdict != "pass" || at != start {
			t.Errorf("past the stack %t: what is sent: %s, leaves at %d, want %d", bypass, verdict, at, start)
		}
		in := udpFrom(outside4, "80", pod4, "4000")
		if verdict, out, _ := p.try(t, "tc_to_pod", skbtimed{}, in); verdict != "redirect" || out.Tstamp != start || out.Mark != toPod|1 {
			t.Errorf("past the stack %t: what comes: %s with mark %#x at %d, want %d", bypass, verdict, out.Mark, out.Tstamp, start)
		}
		for kind, frame := range map[bpf.MapsPaceKind][]byte{bpf.MapsPaceKindPACE_OUT: frame, bpf.MapsPaceKindPACE_IN: in} {
			var row bpf.MapsPodPace
			if err := p.maps.PodPaces.Lookup(&bpf.MapsPaceKey{Ifindex: 2, Kind: uint32(kind)}, &row); err != nil || row.Sent != uint64(len(frame)) {
				t.Errorf("past the stack %t: %d bytes are counted, want %d; %v", bypass, row.Sent, len(frame), err)
			}
		}
	}
}

// Neighbor discovery has no rate limit, or it would wait behind everything that a pod sends.
// Packets that only look like it, and go beyond the link, have one.
func TestDeparturesOfNeighbors(t *testing.T) {
	for _, c := range []struct {
		what  string
		frame []byte
		rated bool
	}{
		{"who has the gateway, IPv4", arpFrom(1, podMAC, pod4, "169.254.1.1"), false},
		{"who has the gateway", icmpFrom(pod6, gateway6, 135, about(gateway6)), false},
		{"who has it, to the group", icmpFrom(link6, "ff02::1:ff00:1", 135, about(gateway6)), false},
		{"who has it, beyond", icmpFrom(pod6, outside6, 135, about(gateway6)), true},
		{"I listen, beyond", icmpFrom(pod6, outside6, 143, make([]byte, 20)), true},
		{"who gives me an address", udpFrom("0.0.0.0", "68", "255.255.255.255", "67"), true},
	} {
		p := newPaced(t, 1e6)
		start := now(t) + ahead
		p.pace(t, start)
		frame := sent{frame: c.frame}.bytes()
		want, at := "pass", uint64(0)
		if c.rated {
			want, at = "redirect", start
		}
		verdict, out, _ := p.try(t, "tc_from_pod", skbtimed{}, frame)
		if verdict != want || out.Tstamp != at {
			t.Errorf("%s: %s, leaves at %d, want %s at %d", c.what, verdict, out.Tstamp, want, at)
		}
	}
}

// IPv6 options of a merged packet are on the wire with each segment, however long they are.
func TestDeparturesOfOptions(t *testing.T) {
	const rate, size = 1e6, 500
	for _, length := range []int{8, 16, 64} {
		p := newPaced(t, rate)
		start := now(t) + ahead
		p.pace(t, start)
		plain := podFrame(false, tcp, 2*size)
		options := append([]byte{tcp, byte(length/8 - 1), 1, byte(length - 4)}, make([]byte, length-4)...) // padding
		frame := append(append(append([]byte{}, plain[:54]...), options...), plain[54:]...)
		frame[20] = 0 // hop-by-hop options
		binary.BigEndian.PutUint16(frame[18:], uint16(len(frame)-54))
		if verdict, at := p.send(t, frame, size); verdict != "pass" || at != start {
			t.Fatalf("%d bytes: %s, leaves at %d, want %d", length, verdict, at, start)
		}
		want := start*part + uint64(2*(size+14+40+length+20))*second*part/rate
		if row := p.pace(t, 0); row.Next != want {
			t.Errorf("%d bytes: the next leaves %d ns later than it should", length, (int64(row.Next)-int64(want))/int64(part))
		}
	}
}

// now returns the time on the clock of departures.
func now(t *testing.T) uint64 {
	t.Helper()
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		t.Fatal(err)
	}
	return uint64(at.Nano())
}
