package twin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// run is a node in the kernel and a model to which the same operations are applied.
type run struct {
	kernel  *kernelNode
	node    *Node
	counts  map[Reason]uint64
	paths   map[string]int
	packets int
	careful bool // compare everything after each packet, to find the first difference
}

// Pending returns the row that the programs wrote for a flow that is not established.
func (r *run) Pending(flow Flow) (Row, bool) {
	row, ok, err := r.row(r.kernel.maps.CtPending, flow)
	return row, ok && err == nil
}

// Affinity returns what the programs remember of a client.
func (r *run) Affinity(service int, client netip.Addr) (int, bool) {
	key := bpf.MapsAffinityKey{Client: maps.AddrOf(client), Service: uint32(service)}
	var value bpf.MapsAffinity
	err := r.kernel.maps.Affinity.Lookup(&key, &value)
	return int(value.Row), err == nil
}

// Counted reports whether a reason was counted since the last packet.
func (r *run) Counted(reason Reason) bool {
	n, err := r.kernel.counted(reason)
	return err == nil && n != r.counts[reason]
}

// Waits returns how many fragments the programs have kept.
func (r *run) Waits() uint64 {
	tally, err := r.kernel.tally()
	if err != nil {
		return 0
	}
	return tally.Kept
}

// row returns a row of the programs in the form of the model.
func (r *run) row(m *ebpf.Map, flow Flow) (Row, bool, error) {
	entry, ok, err := maps.LookupFlow(m, keyOf(flow))
	return r.rowOf(&entry), ok, err
}

func (r *run) rowOf(entry *maps.FlowRow) Row {
	row := Row{
		Source: netip.AddrPortFrom(maps.NetipOf(entry.Saddr), maps.PortOf(entry.Sport)),
		Dest:   netip.AddrPortFrom(maps.NetipOf(entry.Daddr), maps.PortOf(entry.Dport)),
		Way:    Way{int(entry.Ifindex), entry.Dmac, entry.Smac},
		Reply:  entry.Kind&maps.FlowReply != 0, Guarded: entry.Kind&maps.FlowHasRanges != 0,
		Seen: entry.Seen, State: State(entry.State),
		Reached: entry.SeqHi, Dialed: entry.SynHi,
	}
	switch kind := maps.FlowKindOf(entry.Kind); kind {
	case maps.FlowRemote:
	case maps.FlowLocal:
		row.Local = true
	case maps.FlowPod, maps.FlowPodSelf:
		row.Local, row.Inside, row.Own = true, true, kind == maps.FlowPodSelf
	default:
		row.Direct = Direct(kind - maps.FlowDSR)
	}
	if row.Direct == DirectIPIP || row.Direct == DirectGeneve {
		row.Made = entry.AddrDiff
	}
	for id, d := range r.kernel.devices {
		if d.index == int(entry.Ifindex) {
			row.Way.Device = id
		}
	}
	return row
}

// packet gives a packet to both sides, and returns how they differ.
func (r *run) packet(o operation) error {
	if err := r.kernel.setTokens(o.isSilent()); err != nil {
		return err
	}
	have, want, choice, err := r.happen(o)
	if err != nil {
		return fmt.Errorf("run: %w", err)
	}
	r.packets++
	r.paths[want.Path]++
	for _, what := range want.Judged {
		r.paths[what]++
	}
	if want.Position != "" {
		r.paths[want.Position]++
	}
	if want.Limited && o.isSilent() && have.verdict == Drop {
		r.paths["silent"]++
		want.Verdict = Drop
	} else if want.Limited && o.isSilent() && coarse() > r.kernel.silentAt {
		r.paths["not silent, time went on"]++
	} else if want.Limited && o.isSilent() {
		return errors.New("an error was sent although the limit was reached")
	}
	if r.kernel.hook == "xdp" && want.Past && want.Verdict == Stack && have.verdict == Drop && r.Counted(PodSource) {
		r.paths["translated by XDP, and dropped"]++
		want.Verdict, want.Counted = Drop, append(want.Counted, PodSource)
	}
	frame := o.frame()
	if want.Inner != nil {
		frame = want.Inner
	}
	if want.Detours || want.Replaced {
		if err := r.secondAtTC(want); err != nil {
			return err
		}
	}
	return errors.Join(choice, r.compare(frame, want, have), r.compareState(want))
}

// happen gives a packet to the programs, and then to the model, which may ask what they chose.
func (r *run) happen(o operation) (have result, want Outcome, choice, err error) {
	switch {
	case o.In != nil:
		if o.In.Device == tunnelDevice {
			if have, err = r.kernel.emerge(o.In.Frame, o.In.Sender); err == nil {
				want, choice = r.node.Emerge(o.In.Frame, o.In.Device, o.In.Sender, r)
			}
			break
		}
		if have, err = r.kernel.receive(o.In.Frame, o.In.Device); err == nil {
			want, choice = r.node.Receive(o.In.Frame, o.In.Device, r)
		}
	case o.Pod == nil:
		if have, err = r.kernel.leave(o.Leaving); err == nil {
			want, choice = r.node.Leave(o.Leaving)
		}
	default:
		if have, err = r.kernel.pass(o.Pod); err != nil {
			break
		}
		if o.Pod.To {
			want, choice = r.node.Deliver(o.Pod.Frame, o.Pod.Pod, o.Pod.By)
		} else {
			want, choice = r.node.Send(o.Pod.Frame, o.Pod.Pod, o.Pod.Past, r)
		}
	}
	return have, want, choice, err
}

// secondAtTC takes over what tc does with a flow that XDP established with the same packet and left
// to tc: for tc it is the second packet in the tick, unless the row looks as old as the last change
// of ways.
func (r *run) secondAtTC(want Outcome) error {
	for _, flow := range want.Touched {
		row := r.node.Open[flow]
		if row == nil || row.Reply || row.Seen != r.node.Changed || row.Seen == r.node.Now {
			continue
		}
		have, ok, err := r.row(r.kernel.maps.Ct, flow)
		if err != nil {
			return err
		}
		if ok && have.Seen == r.node.Now {
			row.Seen, row.Way = r.node.Now, r.node.wayOf(row)
		}
	}
	return nil
}

// compare compares the two outcomes of a packet.
func (r *run) compare(frame []byte, want Outcome, have result) error {
	if want.Verdict != have.verdict {
		return fmt.Errorf("verdict %d, want %d (%s; %s)", have.verdict, want.Verdict, want.Path, strings.Join(want.Judged, "; "))
	}
	if want.Verdict == Drop {
		return nil
	}
	if r.kernel.hook == "xdp" && want.Verdict == Out && !want.OfPod && want.Bounces != have.byXDP && (have.byXDP || !want.Detours) {
		return fmt.Errorf("sent by XDP: %v, want %v (%s)", have.byXDP, want.Bounces, want.Path)
	}
	if at := 14 + want.Around - geneveSize; want.Spreads && len(have.data) == len(want.Data) && have.data[at]&^1 == 2 { // 512 to 1023
		copy(want.Data[at:at+2], have.data[at:])
	}
	if !bytes.Equal(want.Data, have.data) && !sameBut(frame, want.Data, have.data) {
		return fmt.Errorf("bytes differ (%s)\nhave %x\nwant %x", want.Path, have.data, want.Data)
	}
	if !want.Replaced && sound(frame) && !sound(bare(want, have.data)) {
		return fmt.Errorf("the checksums were right and are wrong now (%s)\nin   %x\nout  %x", want.Path, frame, have.data)
	}
	return nil
}

// bare returns what was sent without its encapsulation, and without an option in it that would put
// it beyond what the programs parse.
func bare(want Outcome, data []byte) []byte {
	data = slices.Delete(bytes.Clone(data), 14, 14+want.Around)
	if !want.Marked || data[12] == 8 {
		return data
	}
	data[14+6] = data[14+40]
	binary.BigEndian.PutUint16(data[14+4:], binary.BigEndian.Uint16(data[14+4:])-24)
	return slices.Delete(data, 14+40, 14+64)
}

// compareState compares what was counted and what is remembered.
func (r *run) compareState(want Outcome) error {
	for _, reason := range want.Counted {
		r.counts[reason]++
	}
	for _, reason := range want.Counted {
		if n, err := r.kernel.counted(reason); err != nil || n != r.counts[reason] {
			return fmt.Errorf("%s is counted %d times, want %d: %w", reason, n, r.counts[reason], orNil(err))
		}
	}
	if want.Limited {
		if err := r.kernel.tokensTaken(); err != nil {
			return err
		}
	}
	if r.careful {
		return r.compareAll()
	}
	if want.Path == "established" && want.Position == "in place, there" && r.packets%16 > 0 {
		return nil
	}
	if err := r.compareAsked(want.Asked); err != nil {
		return fmt.Errorf("%w (%s)", err, want.Path)
	}
	for _, flow := range want.Touched {
		if err := r.compareRow(flow); err != nil {
			return fmt.Errorf("%w (%s)", err, want.Path)
		}
	}
	return nil
}

// errUncounted is returned if only the counters differ.
var errUncounted = errors.New("the counters differ")

func orNil(err error) error {
	if err == nil {
		return errUncounted
	}
	return err
}

func (r *run) compareRow(flow Flow) error {
	for _, memory := range []struct {
		name string
		m    *ebpf.Map
		want *Row
	}{{"ct", r.kernel.maps.Ct, r.node.Open[flow]}, {"ct_pending", r.kernel.maps.CtPending, r.node.Pending[flow]}} {
		have, ok, err := r.row(memory.m, flow)
		if err != nil {
			return err
		}
		if err := differ(memory.name, flow, have, ok, memory.want); err != nil {
			return err
		}
	}
	return nil
}

// differ returns how a row differs from the model's.
func differ(name string, flow Flow, have Row, ok bool, want *Row) error {
	switch {
	case !ok && want == nil:
		return nil
	case !ok:
		return fmt.Errorf("%s has no row of %v, want %+v", name, flow, *want)
	case want == nil:
		return fmt.Errorf("%s has a row of %v that must not exist: %+v", name, flow, have)
	}
	have.Torn = want.Torn
	if have != *want {
		return fmt.Errorf("%s of %v\nhave %+v\nwant %+v", name, flow, have, *want)
	}
	return nil
}

// compareAll compares everything that is remembered.
func (r *run) compareAll() error {
	for _, memory := range []struct {
		name string
		m    *ebpf.Map
		want map[Flow]*Row
	}{{"ct", r.kernel.maps.Ct, r.node.Open}, {"ct_pending", r.kernel.maps.CtPending, r.node.Pending}} {
		if err := r.compareMap(memory.name, memory.m, memory.want); err != nil {
			return err
		}
	}
	for _, reason := range r.kernel.reasons() {
		if n, err := r.kernel.counted(reason); err != nil || n != r.counts[reason] {
			return fmt.Errorf("%s is counted %d times, want %d: %w", reason, n, r.counts[reason], orNil(err))
		}
	}
	for index, service := range r.node.Services {
		if have := r.kernel.tables.Services[index].Turn; have != service.turn {
			return fmt.Errorf("service %d is at turn %d, want %d", index, have, service.turn)
		}
	}
	for who, visit := range r.node.visits {
		if kept, ok := r.Affinity(who.service, who.client); !ok || kept != visit.backend {
			return fmt.Errorf("client %s of service %d has backend %d (%v), want %d", who.client, who.service, kept, ok, visit.backend)
		}
	}
	return errors.Join(r.compareDatagrams(), r.compareAllAsked())
}

func (r *run) compareMap(name string, m *ebpf.Map, want map[Flow]*Row) error {
	seen := 0
	err := maps.EachFlow(m, &r.kernel.buffer, func(keys []maps.Flow, rows []maps.FlowRow) error {
		for i, key := range keys {
			flow := Flow{maps.FlowSource(key), maps.FlowDestination(key), key.Proto}
			if err := differ(name, flow, r.rowOf(&rows[i]), true, want[flow]); err != nil {
				return err
			}
			seen++
		}
		return nil
	})
	if err == nil && seen != len(want) {
		err = fmt.Errorf("%s has %d rows, want %d", name, seen, len(want))
	}
	return err
}

func (r *run) compareDatagrams() error {
	var key bpf.MapsDatagram
	var value bpf.MapsDatagramFlow
	seen := 0
	for rows := r.kernel.maps.Frags.Iterate(); rows.Next(&key, &value); seen++ {
		d := datagram{maps.NetipOf(key.Saddr), maps.NetipOf(key.Daddr), idOf(key), key.Proto}
		if !d.source.Is4() {
			d.proto = 0
		}
		flow, ok := r.node.datagrams[d]
		if !ok || flow.Source.Port() != maps.PortOf(value.Sport) || flow.Dest.Port() != maps.PortOf(value.Dport) ||
			uint32(flow.Proto) != value.Proto {
			return fmt.Errorf("frags has %+v of %+v, want %v (%v)", value, key, flow, ok)
		}
	}
	if seen != len(r.node.datagrams) {
		return fmt.Errorf("frags has %d rows, want %d", seen, len(r.node.datagrams))
	}
	return nil
}

// idOf returns the identification of a datagram in the form of the model.
func idOf(key bpf.MapsDatagram) uint32 {
	if maps.NetipOf(key.Saddr).Is4() {
		return uint32(maps.PortOf(uint16(key.Id)))
	}
	return key.Id
}

// sameBut reports whether two frames differ only in how they write a zero checksum that was already
// wrong in the input.
func sameBut(in, a, b []byte) bool {
	if len(a) != len(b) || sound(in) {
		return false
	}
	zeros := [][]byte{{0, 0}, {0xff, 0xff}}
	is := func(pair []byte) bool { return bytes.Equal(pair, zeros[0]) || bytes.Equal(pair, zeros[1]) }
	for i := 0; i < len(a); {
		switch {
		case a[i] == b[i]:
			i++
		case i+2 <= len(a) && is(a[i:i+2]) && is(b[i:i+2]):
			i += 2
		default:
			return false
		}
	}
	return true
}

// sound reports whether every checksum in a frame is right, as far as it can be checked.
func sound(frame []byte) bool {
	p := read(frame)
	if p.content != ported && p.content != message || p.first {
		return false
	}
	end := (&step{packet: p, frame: frame}).end()
	if end > len(frame) || end < p.l4+8 {
		return false
	}
	ends := endsOf(frame[p.l3:])
	if p.v4 && sum16(frame[p.l3:p.l3+int(frame[p.l3]&15)*4]) != 0xffff {
		return false
	}
	l4 := frame[p.l4:end]
	switch {
	case p.content == message && p.v4:
		return sum16(l4) == 0xffff
	case p.flow.Proto == protoUDP && binary.BigEndian.Uint16(l4[6:]) == 0:
		return true
	case p.flow.Proto == protoSCTP:
		return soundSCTP(l4)
	}
	half := len(ends) / 2
	return sum16(pseudo(ends[:half], ends[half:], len(l4), p.flow.Proto), l4) == 0xffff
}
