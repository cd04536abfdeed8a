package bpf

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// Where a packet goes on after waiting, in its mark.
const (
	toPod    = 1 << 28
	byDevice = 2 << 28
	toNode   = 3 << 28
	toProxy  = 5 << 28
	onward   = 6 << 28
	again    = 15<<28 | 5 // a secret of the node
)

const (
	patience = second / 2  // limit for packets to a pod
	jam      = second / 40 // from here on senders are told
)

// near lists the destinations that a pod reaches without leaving the node, and where its packets to
// them go, past the stack and through it.
func near() []struct {
	to       string
	past, by uint32
} {
	type one = struct {
		to       string
		past, by uint32
	}
	return []one{
		{other4, toPod | 2, toNode | 1}, {other6, toPod | 2, toNode | 1},
		{config4().String(), toNode | 1, toNode | 1}, {config6().String(), toNode | 1, toNode | 1},
	}
}

func nearFrame(to string) []byte {
	from := pod4
	if netip.MustParseAddr(to).Is6() {
		from = pod6
	}
	return sent{frame: udpFrom(from, "4000", to, "80")}.bytes()
}

// What stays on the node waits where there is a queue for it, and then goes where it would have
// gone.
func TestWaiting(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		p := newPacedOf(t, 1e6, bypass)
		for _, c := range near() {
			for _, netkit := range []bool{false, true} {
				t.Run(fmt.Sprintf("past the stack %t, to %s, netkit %t", bypass, c.to, netkit), func(t *testing.T) {
					start := now(t) + ahead
					p.pace(t, start)
					came, want := uint32(1), map[bool]uint32{true: c.past, false: c.by}[bypass]
					if netkit {
						came = 0
					}
					frame := nearFrame(c.to)
					verdict, out, after := p.try(t, "tc_from_pod", skbtimed{Came: came}, frame)
					if verdict != "redirect" || out.Mark != want || out.Tstamp != start {
						t.Errorf("%s with mark %#x at %d, want %#x at %d", verdict, out.Mark, out.Tstamp, want, start)
					}
					if hopped := !bytes.Equal(frame, after); hopped != (want>>28 == toPod>>28) {
						t.Errorf("it took a hop: %t", hopped)
					}
				})
			}
		}
	}
}

// A packet to the link that goes to the node waits like other packets to the node; packets about
// the link itself never wait.
func TestWaitingOnTheLink(t *testing.T) {
	for _, bypass := range []bool{true, false} {
		for _, c := range []struct {
			what  string
			frame []byte
			waits bool
		}{
			{"by addresses of the link, TCP", tcpFrom(link6, gateway6), true},
			{"by addresses of the link, UDP", udpFrom(link6, "4000", gateway6, "80"), true},
			{"an echo by addresses of the link", icmpFrom(link6, gateway6, 128, nil), true},
			{"a later fragment", datagram{from: link6, to: gateway6, proto: udp, fragment: 100, payload: make([]byte, 64)}.bytes(), true},
			{"to a group of the link", udpFrom(link6, "4000", everyone, "80"), true},
			{"by its own address", udpFrom(pod6, "4000", gateway6, "80"), true},
			{"who asks for a neighbor", icmpFrom(link6, gateway6, 135, about(gateway6)), false},
			{"who listens to a group", listening(link6), false},
		} {
			for _, netkit := range []bool{false, true} {
				t.Run(fmt.Sprintf("past the stack %t, %s, netkit %t", bypass, c.what, netkit), func(t *testing.T) {
					p := newPacedOf(t, 1e6, bypass)
					start := now(t) + ahead
					p.pace(t, start)
					frame := sent{frame: c.frame}.bytes()
					verdict, out, after := p.try(t, "tc_from_pod", skbtimed{Came: map[bool]uint32{true: 0, false: 1}[netkit]}, frame)
					want := map[bool]string{true: "redirect", false: "pass"}[c.waits]
					mark, at, takes := map[bool]uint32{true: again}[netkit], uint64(0), uint64(0) // what a netkit passes comes in once more
					if c.waits {
						mark, at, takes = toNode|1, start, uint64(len(frame))
					}
					if verdict != want || out.Mark != mark || out.Tstamp != at || !bytes.Equal(frame, after) {
						t.Errorf("%s with mark %#x at %d, want %s with mark %#x at %d", verdict, out.Mark, out.Tstamp, want, mark, at)
					}
					if row := p.pace(t, 0); row.Sent != takes {
						t.Errorf("%d bytes were given a time, want %d", row.Sent, takes)
					}
					if !c.waits {
						return
					}
					p.pace(t, now(t)+horizon+second)
					if verdict, _, _ := p.try(t, "tc_from_pod", skbtimed{Came: 1}, frame); verdict != "drop" || p.counted(t, "horizon") != 1 {
						t.Errorf("too late: %s, counted %d times", verdict, p.counted(t, "horizon"))
					}
				})
			}
		}
	}
}

// A packet of a pod that has nothing waiting is not held up.
func TestWaitingForNobody(t *testing.T) {
	p := newPacedOf(t, 1e6, true)
	for _, c := range near() {
		p.pace(t, now(t)-second)
		verdict, out, _ := p.try(t, "tc_from_pod", skbtimed{Came: 1}, nearFrame(c.to))
		want := map[bool]string{true: "redirect", false: "pass"}[c.past>>28 == toPod>>28]
		if verdict != want || out.Mark != 0 || out.Tstamp != 0 {
			t.Errorf("to %s: %s with mark %#x at %d", c.to, verdict, out.Mark, out.Tstamp)
		}
	}
}

// What stays on the node is also dropped if it would wait for too long.
func TestWaitingTooLong(t *testing.T) {
	p := newPacedOf(t, 1e6, true)
	p.pace(t, now(t)+horizon+second)
	for i, c := range near() {
		if verdict, _, _ := p.try(t, "tc_from_pod", skbtimed{Came: 1}, nearFrame(c.to)); verdict != "drop" {
			t.Errorf("to %s: %s", c.to, verdict)
		}
		if got := p.counted(t, "horizon"); got != uint64(i+1) {
			t.Errorf("the reason is counted %d times", got)
		}
	}
}

// What has waited goes on unchanged. Packets whose mark did not come from waiting go nowhere.
func TestWaited(t *testing.T) {
	p := newPacedOf(t, 1e6, true)
	frame := nearFrame(other4)
	for _, c := range []struct {
		mark uint32
		want string
		then uint32
	}{
		{toPod | 2, "redirect", 0}, {byDevice | 2, "redirect", 0}, {toNode | 1, "redirect", again}, {4<<28 | 1, "drop", 0},
		{onward | 2, "redirect", again}, {toProxy | 9, "drop", 0}, {0, "drop", 0}, {7<<28 | 1, "drop", 0}, {again, "drop", 0},
	} {
		verdict, out, after := p.try(t, "tc_from_pacer", skbtimed{Mark: c.mark, Tstamp: 5}, frame)
		if verdict != c.want || out.Mark != c.then || out.Tstamp != 0 || !bytes.Equal(frame, after) {
			t.Errorf("%#x: %s with mark %#x at %d", c.mark, verdict, out.Mark, out.Tstamp)
		}
	}
}

// What comes from a pod's device a second time has already been checked.
func TestWaitedAtItsDevice(t *testing.T) {
	p := newPacedOf(t, 1e6, true)
	start := now(t) + ahead
	p.pace(t, start)
	frame := sent{frame: udpFrom(other4, "4000", other4, "80")}.bytes() // the pod may not send it
	if verdict, out, _ := p.try(t, "tc_from_pod", skbtimed{Came: 1, Mark: again}, frame); verdict != "pass" || out.Mark != 0 {
		t.Errorf("%s with mark %#x", verdict, out.Mark)
	}
	if row := p.pace(t, 0); row.Next != start*part {
		t.Errorf("it took %d ns", row.Next/part-start)
	}
	if verdict, _, _ := p.try(t, "tc_from_pod", skbtimed{Came: 1, Mark: again + 1}, frame); verdict != "drop" {
		t.Errorf("with another mark: %s", verdict)
	}
}

// Packets to a pod arrive spaced by its rate, wherever they are from.
func TestArrivals(t *testing.T) {
	const rate = 1e6
	for _, from := range []string{outside4, outside6} {
		t.Run(from, func(t *testing.T) {
			p := newPaced(t, 1)
			p.limitTo(t, maps.Rates{In: rate})
			start := now(t) + patience/2
			p.paceOf(t, bpf.MapsPaceKindPACE_IN, start)
			frame := udpFrom(from, "80", map[bool]string{true: pod4, false: pod6}[from == outside4], "4000")
			for i := range 10 {
				verdict, out, _ := p.try(t, "tc_to_pod", skbtimed{}, frame)
				want := start + uint64(i*len(frame))*second/rate
				if verdict != "redirect" || out.Mark != toPod|1 || out.Tstamp != want {
					t.Fatalf("%s with mark %#x at %d, want %d", verdict, out.Mark, out.Tstamp, want)
				}
			}
			if row := p.paceOf(t, bpf.MapsPaceKindPACE_IN, 0); row.Sent != uint64(10*len(frame)) || row.Dropped != 0 || row.Marked != 0 {
				t.Errorf("counted %+v", row)
			}
			p.limitTo(t, maps.Rates{Out: rate})
			if verdict, out, _ := p.try(t, "tc_to_pod", skbtimed{}, frame); verdict != "pass" || out.Tstamp != 0 {
				t.Errorf("without a rate: %s at %d", verdict, out.Tstamp)
			}
		})
	}
}

// Packets past the stack wait too, until the later of their sender's and their receiver's time.
func TestArrivalsPastTheStack(t *testing.T) {
	p := newPacedOf(t, 1e6, true)
	second := maps.Pod{
		Addrs: []netip.Addr{netip.MustParseAddr(other4), netip.MustParseAddr(other6)}, Index: 2,
		MAC: [6]byte([]byte(otherMAC)), HostMAC: [6]byte([]byte(hostMAC)), Rates: maps.Rates{In: 1e6},
	}
	if err := p.maps.AddPod(second); err != nil {
		t.Fatal(err)
	}
	key := bpf.MapsPaceKey{Ifindex: 2, Kind: uint32(bpf.MapsPaceKindPACE_IN)}
	base := now(t)
	for _, c := range []struct{ out, in, want uint64 }{
		{base + patience/4, base + patience/2, base + patience/2}, {base + patience/2, base + patience/4, base + patience/2},
	} {
		p.pace(t, c.out)
		if err := p.maps.PodPaces.Put(&key, &bpf.MapsPodPace{Next: c.in * part}); err != nil {
			t.Fatal(err)
		}
		verdict, out, _ := p.try(t, "tc_from_pod", skbtimed{Came: 1}, nearFrame(other4))
		if verdict != "redirect" || out.Mark != toPod|2 || out.Tstamp != c.want {
			t.Errorf("%s with mark %#x at %d, want %d", verdict, out.Mark, out.Tstamp, c.want)
		}
	}
	if err := p.maps.PodPaces.Put(&key, &bpf.MapsPodPace{Next: (base + 4*patience) * part}); err != nil {
		t.Fatal(err)
	}
	if verdict, _, _ := p.try(t, "tc_from_pod", skbtimed{Came: 1}, nearFrame(other4)); verdict != "drop" || p.counted(t, "jam") != 1 {
		t.Errorf("too late: %s, counted %d times", verdict, p.counted(t, "jam"))
	}
}

// Senders that support ECN are told of a jam; packets that would have to wait for too long are
// dropped.
func TestJam(t *testing.T) {
	const classes = 3
	for _, from := range []string{outside4, outside6} {
		for before := range byte(4) {
			t.Run(fmt.Sprintf("%s, class %d", from, before), func(t *testing.T) {
				p := newPaced(t, 1)
				p.limitTo(t, maps.Rates{In: 1e6})
				frame := udpFrom(from, "80", map[bool]string{true: pod4, false: pod6}[from == outside4], "4000")
				class := func(frame []byte) byte {
					if from == outside4 {
						return frame[15] & classes
					}
					return frame[15] >> 4 & classes
				}
				if from == outside4 {
					frame[15] |= before
				} else {
					frame[15] |= before << 4
				}
				marked := uint64(0)
				for _, c := range []struct {
					wait uint64
					jam  bool
				}{{jam / 2, false}, {patience * 3 / 4, true}} {
					p.paceOf(t, bpf.MapsPaceKindPACE_IN, now(t)+c.wait)
					verdict, _, after := p.try(t, "tc_to_pod", skbtimed{}, frame)
					want := before
					if c.jam && before > 0 {
						want, marked = 3, 1
					}
					row := p.paceOf(t, bpf.MapsPaceKindPACE_IN, 0)
					if verdict == "drop" || c.jam && verdict != "redirect" || class(after) != want || row.Marked != marked {
						t.Errorf("after %d us: %s, class %d, want %d, %d marked", c.wait/1000, verdict, class(after), want, row.Marked)
					}
				}
				p.paceOf(t, bpf.MapsPaceKindPACE_IN, now(t)+patience+second)
				verdict, _, _ := p.try(t, "tc_to_pod", skbtimed{}, frame)
				if row := p.paceOf(t, bpf.MapsPaceKindPACE_IN, 0); verdict != "drop" || p.counted(t, "jam") != 1 || row.Dropped != 1 {
					t.Errorf("too late: %s, counted %d times, %+v", verdict, p.counted(t, "jam"), row)
				}
			})
		}
	}
}

// Packets from outside to a pod wait too, where they go past the stack, and take a hop.
func TestArrivalsFromOutside(t *testing.T) {
	for _, from := range []string{outside4, outside6} {
		t.Run(from, func(t *testing.T) {
			config := standardConfig()
			config.Pacer, config.Bypass = waits, 1
			p := &ratedPod{newBareNodeOf(t, hooks()[0], config)}
			p.limitTo(t, maps.Rates{In: 1e6})
			to, back := pod4+":80", from+":4000"
			if from == outside6 {
				to, back = brackets(pod6)+":80", brackets(from)+":4000"
			}
			frame := packet{from: back, to: to, proto: udp, payload: 100}.bytes()
			start := now(t) + patience*3/4
			p.paceOf(t, bpf.MapsPaceKindPACE_IN, start)
			verdict, out, after := p.try(t, "tc_from_netdev", skbtimed{Came: 1}, frame)
			if verdict != "redirect" || out.Mark != toPod|1 || out.Tstamp != start || bytes.Equal(frame, after) {
				t.Errorf("%s with mark %#x at %d, want %d", verdict, out.Mark, out.Tstamp, start)
			}
			p.paceOf(t, bpf.MapsPaceKindPACE_IN, now(t)+patience+second)
			if verdict, _, _ := p.try(t, "tc_from_netdev", skbtimed{Came: 1}, frame); verdict != "drop" || p.counted(t, "jam") != 1 {
				t.Errorf("too late: %s, counted %d times", verdict, p.counted(t, "jam"))
			}
		})
	}
}

// At the device of another plugin's pod, packets wait as they would at ours, whoever sends and gets
// them, and only once.
func TestWaitingAfterAnother(t *testing.T) {
	const rate = 1e6
	for _, c := range []struct {
		program string
		kind    bpf.MapsPaceKind
		rates   maps.Rates
		mark    uint32
		most    uint64
		prior   uint32 // for its way out of the node
	}{
		{"tc_from_chained", bpf.MapsPaceKindPACE_OUT, maps.Rates{Out: rate}, toNode | 1, ahead, 6},
		{"tc_to_chained", bpf.MapsPaceKindPACE_IN, maps.Rates{In: rate}, onward | 1, patience / 2, 0},
	} {
		t.Run(c.program, func(t *testing.T) {
			p := newPaced(t, 1)
			c.rates.Class = maps.Guaranteed
			p.limitTo(t, c.rates)
			start := now(t) + c.most
			p.paceOf(t, c.kind, start)
			at := start
			for _, frame := range [][]byte{podFrame(true, tcp, 900), podFrame(false, udp, 10), nearFrame(other4)} {
				verdict, out, after := p.try(t, c.program, skbtimed{Came: 1}, frame)
				if verdict != "redirect" || out.Mark != c.mark || out.Tstamp != at || !bytes.Equal(frame, after) {
					t.Fatalf("%s with mark %#x at %d, want %d", verdict, out.Mark, out.Tstamp, at)
				}
				at += uint64(len(frame)) * second / rate
			}
			if verdict, out, _ := p.try(t, c.program, skbtimed{Came: 1, Mark: again}, nearFrame(other4)); verdict != "pass" || out.Mark != 0 || out.Tstamp != 0 || out.Prior != c.prior {
				t.Errorf("once it has waited: %s with mark %#x and priority %d at %d", verdict, out.Mark, out.Prior, out.Tstamp)
			}
			p.paceOf(t, c.kind, now(t)+3*second)
			if verdict, _, _ := p.try(t, c.program, skbtimed{Came: 1}, nearFrame(other4)); verdict != "drop" {
				t.Errorf("three seconds ahead: %s", verdict)
			}
			p.limitTo(t, maps.Rates{})
			if verdict, out, _ := p.try(t, c.program, skbtimed{Came: 1}, nearFrame(other4)); verdict != "pass" || out.Tstamp != 0 {
				t.Errorf("without a rate: %s at %d", verdict, out.Tstamp)
			}
		})
	}
}

// Neighbor discovery does not wait there behind everything else, and is not dropped with it. No
// host beyond the link sends it, or gets it.
func TestNeighborsAfterAnother(t *testing.T) {
	routed := func(frame []byte) []byte { frame[21]--; return frame }
	for _, program := range []string{"tc_from_chained", "tc_to_chained"} {
		p := newPaced(t, 1)
		p.limitTo(t, maps.Rates{Out: 1e6, In: 1e6})
		for _, kind := range []bpf.MapsPaceKind{bpf.MapsPaceKindPACE_OUT, bpf.MapsPaceKindPACE_IN} {
			p.paceOf(t, kind, now(t)+3*second)
		}
		sends := program == "tc_from_chained"
		for _, c := range []struct {
			what  string
			frame []byte
			free  bool
		}{
			{"who has this", icmpFrom(link6, "ff02::1:ff00:1", 135, about(gateway6)), true},
			{"I have this", icmpFrom(pod6, gateway6, 136, about(pod6)), true},
			{"who is the router", icmpFrom(link6, routers, 133, nil), true},
			{"is the node there", icmpFrom(pod6, config6().String(), 135, about(config6().String())), true},
			{"it says so, and is for beyond", icmpFrom(pod6, outside6, 135, about(outside6)), !sends},
			{"it says so, and is from beyond", routed(icmpFrom(outside6, link6, 135, about(link6))), false},
			{"an echo", icmpFrom(link6, gateway6, 128, nil), false},
			{"something else in who has this", icmpFrom(link6, "ff02::1:ff00:1", 135, append(about(gateway6), make([]byte, 500)...)), false},
			{"who has this, of IPv4", arpFrom(1, podMAC, pod4, "169.254.1.1"), true},
		} {
			want := map[bool]string{true: "pass", false: "drop"}[c.free]
			if verdict, _, _ := p.try(t, program, skbtimed{Came: 1}, c.frame); verdict != want {
				t.Errorf("%s, %s: %s, want %s", program, c.what, verdict, want)
			}
		}
	}
}

// What is none of IP does not wait, but takes its pod's time as well, and is dropped where others would be: or a pod that makes its own frames would have a
// way round its rate. Of ARP only what is no longer than that ever is does not.
func TestOthersAfterAnother(t *testing.T) {
	const rate = 1e6
	of := func(kind uint16, length int) []byte {
		frame := append([]byte(hostMAC+podMAC), byte(kind>>8), byte(kind))
		return append(frame, make([]byte, length-len(frame))...)
	}
	for _, program := range []string{"tc_from_chained", "tc_to_chained"} {
		p := newPaced(t, 1)
		p.limitTo(t, maps.Rates{Out: rate, In: rate})
		kind, most := bpf.MapsPaceKindPACE_OUT, ahead
		if program == "tc_to_chained" {
			kind, most = bpf.MapsPaceKindPACE_IN, patience/2
		}
		for _, c := range []struct {
			what  string
			frame []byte
			gso   uint32
			takes int // bytes of the pod's time
		}{
			{"a kind for experiments", of(0x88b5, 1000), 0, 1000},
			{"of IPv4, with a tag", packet{from: pod4 + ":4000", to: outside4 + ":80", proto: udp, tags: 1, payload: 500}.bytes(), 0, 18 + 28 + 500},
			{"of IPv4, with two tags", packet{from: pod4 + ":4000", to: outside4 + ":80", proto: udp, tags: 2, payload: 500}.bytes(), 0, 22 + 28 + 500},
			{"of IPv6, with two tags", packet{from: brackets(pod6) + ":4000", to: brackets(outside6) + ":80", proto: udp, tags: 2, payload: 500}.bytes(), 0, 22 + 48 + 500},
			{"merged, with two tags", packet{from: pod4 + ":4000", to: outside4 + ":80", proto: tcp, tags: 2, payload: 1000}.bytes(), 500, 22 + 40 + 1000 + 2*142},
			{"ARP", arpFrom(1, podMAC, pod4, "169.254.1.1"), 0, 0},
			{"ARP, padded", of(0x806, 60), 0, 0},
			{"what calls itself ARP", of(0x806, 1000), 0, 1000},
		} {
			start := now(t) + most
			p.paceOf(t, kind, start)
			verdict, out, after := p.try(t, program, skbtimed{Came: 1, GsoSize: c.gso}, c.frame)
			if verdict != "pass" || out.Mark != 0 || out.Tstamp != 0 || !bytes.Equal(c.frame, after) {
				t.Errorf("%s, %s: %s with mark %#x at %d", program, c.what, verdict, out.Mark, out.Tstamp)
			}
			if took := p.paceOf(t, kind, 0).Next/part - start; took != uint64(c.takes)*second/rate {
				t.Errorf("%s, %s: it takes %d ns, want those of %d bytes", program, c.what, took, c.takes)
			}
			p.paceOf(t, kind, now(t)+3*second)
			want := map[bool]string{true: "drop", false: "pass"}[c.takes > 0]
			if verdict, _, _ := p.try(t, program, skbtimed{Came: 1, GsoSize: c.gso}, c.frame); verdict != want {
				t.Errorf("%s, %s, three seconds ahead: %s, want %s", program, c.what, verdict, want)
			}
		}
	}
}
