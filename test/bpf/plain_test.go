package bpf

import (
	"fmt"
	stdmaps "maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// plainPackets are packets of one flow: those for which the programs have a short path, and those
// that differ from them in one thing each.
func plainPackets(from, to string, proto byte, v4 bool) map[string][]byte {
	base := packet{from: from, to: to, proto: proto, flags: ack}
	list := map[string][]byte{}
	add := func(name string, change func(*packet)) {
		p := base
		change(&p)
		list[name] = p.bytes()
	}
	add("plain", func(*packet) {})
	add("large", func(p *packet) { p.payload = 1400 })
	add("by a router", func(p *packet) { p.macs = "\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02" })
	add("to a group", func(p *packet) { p.macs = "\x03\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02" })
	add("tagged", func(p *packet) { p.tags = 1 })
	add("whole", func(p *packet) { p.whole = true })
	add("the first fragment", func(p *packet) { p.fragment = 0x2000 })
	for _, ttl := range []byte{1, 2, 255} {
		add(fmt.Sprintf("with %d hops left", ttl), func(p *packet) { p.ttl = ttl })
	}
	if v4 {
		add("with options", func(p *packet) { p.options = 2 })
	} else {
		add("with an extension", func(p *packet) { p.extension = make([]byte, 8) })
	}
	if proto == udp {
		add("without a sum", func(p *packet) { p.noSum = true })
		return list
	}
	for _, flags := range []byte{0, syn, fin | ack, rst, rst | ack, syn | ack} {
		add(fmt.Sprintf("with the flags %#x", flags), func(p *packet) { p.flags = flags })
	}
	return list
}

// isSummedUp reports whether such a packet is also run with a checksum over all of it
// (CHECKSUM_COMPLETE): not if it is answered, or has no checksum.
func isSummedUp(kind string) bool { return kind != "with 1 hops left" && kind != "without a sum" }

// plainRows are rows that such packets may find.
func plainRows(from, to string, now uint32) map[string]bpf.MapsCtEntry {
	list := map[string]bpf.MapsCtEntry{}
	add := func(name string, change func(*bpf.MapsCtEntry)) {
		row := rowOf(from, to, false)
		row.Ifindex, row.Dmac, row.Seen = 1, [6]uint8{2, 0, 0, 0, 0, 1}, now
		row.AddrDiff, row.PortDiff, row.State = 0x1234, 0x4321, uint8(bpf.MapsCtStateCT_OPEN)
		change(&row)
		list[name] = row
	}
	add("back where it came from", func(*bpf.MapsCtEntry) {})
	add("a reply", func(r *bpf.MapsCtEntry) { r.Kind = maps.FlowReply })
	add("into the stack", func(r *bpf.MapsCtEntry) { r.Ifindex, r.Kind = 0, uint8(maps.FlowLocal) })
	add("elsewhere", func(r *bpf.MapsCtEntry) { r.Ifindex = 99 })
	add("without a neighbor", func(r *bpf.MapsCtEntry) { r.Dmac = [6]uint8{} })
	add("with a neighbor of few bits", func(r *bpf.MapsCtEntry) { r.Dmac = [6]uint8{0, 0, 0, 0, 0, 1} })
	add("closing", func(r *bpf.MapsCtEntry) { r.State = uint8(bpf.MapsCtStateCT_CLOSING) })
	add("reset", func(r *bpf.MapsCtEntry) { r.State = uint8(bpf.MapsCtStateCT_RESET) })
	add("guarded", func(r *bpf.MapsCtEntry) { r.Kind = maps.FlowHasRanges })
	add("guarded, not used in this tick", func(r *bpf.MapsCtEntry) {
		r.Kind, r.Seen = maps.FlowHasRanges, now-1
	})
	add("a guarded reply, not used in this tick", func(r *bpf.MapsCtEntry) {
		r.Kind, r.Seen = maps.FlowHasRanges|maps.FlowReply, now-1
	})
	add("not used in this tick", func(r *bpf.MapsCtEntry) { r.Seen = now - 1 })
	add("not used since ways changed", func(r *bpf.MapsCtEntry) { r.Seen = now - 9 })
	return list
}

// loadLong loads the programs without the short path: those for a table that is being replaced by a
// larger one, while all flows are still in the old one.
func (w *bareNode) loadLong(t *testing.T) *bareNode {
	t.Helper()
	spec, err := w.hook.load()
	if err != nil {
		t.Fatal(err)
	}
	config := w.config
	config.Growing = 1
	if err := spec.Variables["cfg"].Set(config); err != nil {
		t.Fatal(err)
	}
	replacements := w.maps.Replacements(spec)
	replacements["ct_old"], spec.Maps["ct_old"].MaxEntries = w.maps.Ct, w.maps.Ct.MaxEntries()
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(loaded.Close)
	long := *w
	long.programs = loaded.Programs
	return &long
}

// plainOutcome is what happened to a packet and its row.
type plainOutcome struct {
	Verdict string
	Packet  string
	Row     bpf.MapsCtEntry
	Known   bool
}

func (w *bareNode) meet(t *testing.T, flow bpf.MapsFlow, row bpf.MapsCtEntry, frame []byte) (o plainOutcome) {
	t.Helper()
	w.empty(t)
	w.allow(t)
	row.Checksum = maps.ChecksumOf(flow, row)
	if err := w.maps.Ct.Put(&flow, &row); err != nil {
		t.Fatal(err)
	}
	verdict, out := w.run(t, w.in, frame)
	o.Verdict, o.Packet = verdict, fmt.Sprintf("%x", out)
	o.Known = w.maps.Ct.Lookup(&flow, &o.Row) == nil
	return o
}

// The short path treats every packet and row as the long one does.
func TestFastPath(t *testing.T) {
	config := standardConfig()
	config.TickShift = 31
	eachWith(t, config, func(t *testing.T, w *bareNode, f family) {
		long := w.loadLong(t)
		for _, proto := range []byte{tcp, udp} {
			w.compareWays(t, long, f, proto)
			w.compareGuarded(t, long, f, proto)
		}
	})
}

// compareGuarded runs both paths on rows of a load balancer's address, with ranges that contain the
// client and without.
func (w *bareNode) compareGuarded(t *testing.T, long *bareNode, f family, proto byte) {
	t.Helper()
	client, vip, pod := f.client+":4000", f.node+":30080", f.pod+":8080"
	now := w.tick(t, client, vip)
	w.service(t, vip, proto, maps.LoadBalancer, "", false)
	rows := plainRows(f.snat+":61000", pod, now)
	row, reply := rows["guarded, not used in this tick"], rows["a guarded reply, not used in this tick"]
	back := flowOf(vip, client, proto)
	reply.Saddr, reply.Sport, reply.Daddr, reply.Dport = back.Saddr, back.Sport, back.Daddr, back.Dport
	g := guardedIn(f)
	for _, tt := range []struct {
		ranges         []string
		changed, until uint32
		verdict        string
	}{
		{nil, now, now + 3, "answer"}, {[]string{g.around}, now, now + 3, "answer"}, {[]string{g.elsewhere}, now, now + 3, "drop"},
		{[]string{g.elsewhere}, now - 2, now + 3, "answer"}, {[]string{g.elsewhere}, now - 2, now - 1, "drop"},
	} {
		w.setRouteEpoch(t, now-5, tt.until)
		w.setRangeEpoch(t, tt.changed)
		w.guard(t, tt.ranges...)
		for _, end := range []struct {
			packet
			row bpf.MapsCtEntry
		}{{packet{from: client, to: vip, proto: proto, flags: ack}, row}, {packet{from: pod, to: f.snat + ":61000", proto: proto, flags: ack}, reply}} {
			flow, frame := flowOf(end.from, end.to, proto), end.bytes()
			have, want := w.meet(t, flow, end.row, frame), long.meet(t, flow, end.row, frame)
			if diff := cmp.Diff(want, have); diff != "" || have.Verdict != tt.verdict || have.Known == (tt.verdict == "drop") {
				t.Errorf("protocol %d, from %s, %+v: %s, the row is there: %v (-long +short):\n%s",
					proto, end.from, tt, have.Verdict, have.Known, diff)
			}
		}
	}
}

func (w *bareNode) compareWays(t *testing.T, long *bareNode, f family, proto byte) {
	t.Helper()
	from, to := f.client+":4000", f.node+":30080"
	now := w.tick(t, from, to)
	w.setRouteEpoch(t, now-5, now+3)
	packets := plainPackets(from, to, proto, f.snat == "10.1.0.1")
	flow, short := flowOf(from, to, proto), 0
	for name, row := range plainRows(f.snat+":61000", f.pod+":8080", now) {
		row.AddrDiff, row.PortDiff = differences(flow, row)
		for _, kind := range slices.Sorted(stdmaps.Keys(packets)) {
			frame := packets[kind]
			w.sumUp(t, isSummedUp(kind))
			long.sumUp(t, isSummedUp(kind))
			have, want := w.meet(t, flow, row, frame), long.meet(t, flow, row, frame)
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("protocol %d, %s, its row %s (-long +short):\n%s", proto, kind, name, diff)
			}
			if have.Verdict == "answer" {
				short++
			}
		}
	}
	w.sumUp(t, false)
	long.sumUp(t, false)
	if short == 0 {
		t.Errorf("protocol %d: nothing was sent back", proto)
	}
	// Truncated packets: the kernel runs no test on one that ends within the IP header.
	row := plainRows(f.snat+":61000", f.pod+":8080", now)["back where it came from"]
	for n := len(packets["plain"]) - 5 - map[byte]int{tcp: 20, udp: 8}[proto]; n < len(packets["plain"]); n++ {
		frame := packets["plain"][:n]
		if diff := cmp.Diff(long.meet(t, flow, row, frame), w.meet(t, flow, row, frame)); diff != "" {
			t.Errorf("protocol %d, %d bytes (-long +short):\n%s", proto, n, diff)
		}
	}
}

// directRows are rows of a flow whose backend answers directly, which packets may find.
func directRows(mode uint8, from, to string, now uint32) map[string]bpf.MapsCtEntry {
	list := map[string]bpf.MapsCtEntry{}
	for name, row := range plainRows(from, to, now) {
		if row.Kind != 0 {
			continue
		}
		row.Kind |= uint8(maps.FlowDSR) + mode
		list[name] = row
	}
	row := list["back where it came from"]
	row.State = uint8(bpf.MapsCtStateCT_NEW)
	list["begun"] = row
	row.State = uint8(bpf.MapsCtStateCT_ANSWERED)
	list["left to tc"] = row
	row.State, row.Kind = uint8(bpf.MapsCtStateCT_OPEN), 0
	list["not answered by its backend"] = row
	return list
}

// The short path also does what the long one does for flows whose backends answer directly.
func TestFastPathDirect(t *testing.T) {
	config := standardConfig()
	config.TickShift = 31
	eachWith(t, config, func(t *testing.T, w *bareNode, f family) {
		long := w.loadLong(t)
		for _, m := range wrappings() {
			for _, proto := range []byte{tcp, udp} {
				w.compareDirect(t, long, f, m, proto)
			}
		}
	})
}

func (w *bareNode) compareDirect(t *testing.T, long *bareNode, f family, m wrapping, proto byte) {
	t.Helper()
	from, to, source := f.client+":4000", f.node+":30080", f.snat+":4000"
	if m.name == "opt" {
		source = from
	}
	now := w.tick(t, from, to)
	w.setRouteEpoch(t, now-5, now+3)
	w.setRangeEpoch(t, now-5)
	packets := plainPackets(from, to, proto, f.snat == "10.1.0.1")
	for _, size := range []int{491, 492, 493, 600} { // around the largest sizes that fit
		p := packet{from: from, to: to, proto: proto, flags: ack, payload: size}
		packets[fmt.Sprintf("of %d bytes", size)] = p.bytes()
	}
	flow := flowOf(from, to, proto)
	for name, row := range directRows(m.mode, source, f.pod+":8080", now) {
		if m.name == "opt" || maps.FlowKindOf(row.Kind) != maps.FlowDSR+maps.FlowKind(m.mode) {
			row.AddrDiff, row.PortDiff = differences(flow, row)
		}
		for _, kind := range slices.Sorted(stdmaps.Keys(packets)) {
			frame := packets[kind]
			w.sumUp(t, isSummedUp(kind))
			long.sumUp(t, isSummedUp(kind))
			have, want := w.meetPending(t, flow, row, frame), long.meetPending(t, flow, row, frame)
			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("protocol %d, %s, %s, its row %s (-long +short):\n%s", proto, m.name, kind, name, diff)
			}
			if name == "back where it came from" && kind == "plain" && (have.Verdict != "answer" || len(have.Packet) != 2*(len(frame)+m.around(f))) {
				t.Errorf("protocol %d, %s: %s, %s", proto, m.name, have.Verdict, have.Packet)
			}
		}
	}
}

// meetPending is meet for a row of ct_pending.
func (w *bareNode) meetPending(t *testing.T, flow bpf.MapsFlow, row bpf.MapsCtEntry, frame []byte) (o plainOutcome) {
	t.Helper()
	w.empty(t)
	w.allow(t)
	w.plant(t, w.maps.CtPending, flow, row)
	verdict, out := w.run(t, w.in, frame)
	o.Verdict, o.Packet = verdict, fmt.Sprintf("%x", out)
	o.Known = w.maps.CtPending.Lookup(&flow, &o.Row) == nil
	return o
}

// differences returns what a rewrite by a row adds to checksums, as flow_finish computes it.
func differences(flow bpf.MapsFlow, row bpf.MapsCtEntry) (addrs, ports uint16) {
	fold := func(sum uint64) uint16 {
		for sum = sum&0xffffffff + sum>>32; sum > 0xffff; sum = sum&0xffff + sum>>16 {
		}
		return uint16(sum)
	}
	sum := uint64(0)
	for i := range 4 {
		sum += uint64(^flow.Saddr.Word[i]) + uint64(row.Saddr.Word[i]) + uint64(^flow.Daddr.Word[i]) + uint64(row.Daddr.Word[i])
	}
	return fold(sum), fold(uint64(^flow.Sport) + uint64(row.Sport) + uint64(^flow.Dport) + uint64(row.Dport))
}
