package trial

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// trialRuns is how often the port that the programs choose may belong to another flow: the programs
// try 32 ports.
const trialRuns = 40

// Return codes of the programs.
const (
	tcDrop   = 2
	tcAnswer = 7
	xdpDrop  = 1
	xdpPass  = 2
	xdpTX    = 3
)

// flow returns the packet's key.
func (t *Trial) flow() maps.Flow {
	from, to := t.packet.Source, t.packet.Destination
	return maps.Flow{
		Saddr: maps.AddrOf(from.Addr()), Daddr: maps.AddrOf(to.Addr()),
		Sport: maps.PortOf(from.Port()), Dport: maps.PortOf(to.Port()), Proto: t.packet.Protocol,
	}
}

// remember copies the live rows of the packet's flow and its client, and the turns of services.
func (t *Trial) remember() error {
	if !t.has("services", "ct", "ct_pending", "affinity") { // the program knows no services
		return nil
	}
	if err := t.copyServices(); err != nil {
		return err
	}
	for name, live := range map[string]*ebpf.Map{"ct": t.live.Ct, "ct_pending": t.live.CtPending} {
		row, there, err := maps.LookupFlow(live, t.flow())
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		t.known = &row
		back := maps.BackOf(t.flow(), &row)
		reply, both, err := maps.LookupFlow(live, back)
		if err == nil {
			err = t.own[name].Put(t.flow(), &row)
		}
		if err == nil && both {
			err = t.own[name].Put(back, &reply)
		}
		if err != nil {
			return fmt.Errorf("try a packet: copy its flow: %w", err)
		}
	}
	return t.copyAffinity()
}

func (t *Trial) copyServices() error {
	from, err := maps.MapArray[maps.Service](t.live.Services, false)
	if err != nil {
		return err
	}
	to, err := maps.MapArray[maps.Service](t.own["services"], true)
	if err != nil {
		return errors.Join(err, from.Close())
	}
	copy(to.Rows(), from.Rows())
	return errors.Join(to.Close(), from.Close())
}

// copyAffinity copies the row that binds the client to a backend of the packet's service.
func (t *Trial) copyAffinity() error {
	key := maps.SvcKey{Addr: t.flow().Daddr, Port: t.flow().Dport, Proto: t.packet.Protocol}
	var svc maps.Svc
	err := t.live.Svcs.Lookup(&key, &svc)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		key.Addr = maps.UnspecifiedOf(key.Addr)
		err = t.live.Svcs.Lookup(&key, &svc)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	known := bpf.MapsAffinityKey{Client: t.flow().Saddr, Service: svc.Service}
	var entry bpf.MapsAffinity
	if err == nil {
		err = t.live.Affinity.Lookup(&known, &entry)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err == nil {
		err = t.own["affinity"].Put(&known, &entry)
	}
	if err != nil {
		return fmt.Errorf("try a packet: copy the client's affinity: %w", err)
	}
	return nil
}

// run passes the packet to the programs. If they choose a port that another flow has in the live
// maps, it adds that flow to the trial's maps and runs them again.
func (t *Trial) runPrograms() (result Result, err error) {
	for range trialRuns {
		if result, err = t.once(); err != nil || result.Row == nil {
			return result, err
		}
		taken, err := t.isTaken(result.Row)
		if err != nil || !taken {
			return result, err
		}
	}
	return result, nil
}

// isTaken reports whether another flow has the key of the replies. If so, it adds that flow to the
// trial's maps.
func (t *Trial) isTaken(row *maps.FlowRow) (bool, error) {
	back := maps.BackOf(t.flow(), row)
	for _, live := range []*ebpf.Map{t.live.Ct, t.live.CtPending} {
		other, there, err := maps.LookupFlow(live, back)
		if err != nil {
			return false, err
		}
		if !there || maps.BackOf(back, &other) == t.flow() {
			continue
		}
		for _, key := range []maps.Flow{back, t.flow()} {
			if err := t.own["ct_pending"].Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return false, fmt.Errorf("try a packet again: %w", err)
			}
		}
		if err := t.own["ct"].Put(back, &other); err != nil {
			return false, fmt.Errorf("try a packet again: %w", err)
		}
		return true, nil
	}
	return false, nil
}

// once passes the packet to one program after the other until one has decided.
func (t *Trial) once() (Result, error) {
	result := Result{Device: t.device.Name}
	frame := t.packet.frame(t.dmac, t.smac)
	for i, program := range t.programs {
		result.Hook = t.hooks[i]
		context := t.skb()
		if result.Hook == bpf.MapsHookHOOK_XDP {
			context = t.xdpMD(len(frame))
		}
		options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: context}
		code, err := program.Run(&options)
		if err != nil {
			return result, fmt.Errorf("try a packet: %w", err)
		}
		switch {
		case result.Hook == bpf.MapsHookHOOK_XDP && code == xdpPass && bytes.Equal(options.DataOut, frame):
			continue // XDP leaves it to tc
		case result.Hook == bpf.MapsHookHOOK_XDP:
			result.Dropped, result.Answer = code == xdpDrop, code == xdpTX
		default:
			result.Dropped, result.Answer = code == tcDrop, code == tcAnswer
		}
		break
	}
	return result, t.readResult(&result)
}

// readResult completes a result from what the programs wrote to the maps.
func (t *Trial) readResult(result *Result) error {
	reason, err := t.reason(result.Hook)
	if err == nil {
		result.Denials, err = t.denials()
	}
	if err != nil {
		return err
	}
	if result.Reason = reason; reason != bpf.MapsReasonREASON_NONE && reason != bpf.MapsReasonREASON_FLOWS_FULL {
		result.Dropped = true                      // even if it was answered, where the code says to send it on
		if reason != bpf.MapsReasonREASON_POLICY { // policies are asked once there is a backend
			return nil
		}
	}
	result.Answer = false
	for _, name := range []string{"ct", "ct_pending"} {
		if t.own[name] == nil {
			continue
		}
		row, there, err := maps.LookupFlow(t.own[name], t.flow())
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		result.Row = &row
		result.Known = t.known != nil && t.known.Daddr == row.Daddr && t.known.Dport == row.Dport && t.known.Sport == row.Sport
		if row.Ifindex == 0 {
			return nil
		}
		if way, err := net.InterfaceByIndex(int(row.Ifindex)); err == nil {
			result.Way = way.Name
		}
		return nil
	}
	return nil
}

// reason returns the reason under which the packet was counted, and resets that counter.
func (t *Trial) reason(hook bpf.MapsHook) (found bpf.MapsReason, err error) {
	for reason := range bpf.MapsReasonREASONS {
		if reason == bpf.MapsReasonREASON_POLICY_AUDIT {
			continue // the packet goes on
		}
		index := uint32(hook)*uint32(bpf.MapsCounterRoomCOUNTER_REASONS) + uint32(reason)
		var cpus []maps.Counter
		if err := t.own["counters"].Lookup(index, &cpus); err != nil {
			return 0, fmt.Errorf("try a packet: read its counter: %w", err)
		}
		for i := range cpus {
			if cpus[i].Packets > 0 {
				found = reason
			}
		}
		if found == reason && reason != 0 {
			clear(cpus)
			if err := t.own["counters"].Put(index, cpus); err != nil {
				return 0, fmt.Errorf("try a packet: clear its counter: %w", err)
			}
		}
	}
	return found, nil
}

// skb returns the context of a packet at tc: a struct __sk_buff up to and including ifindex.
func (t *Trial) skb() []byte {
	const ingress, ifindex = 36, 40
	context := make([]byte, ifindex+4)
	binary.NativeEndian.PutUint32(context[ingress:], uint32(t.from))
	binary.NativeEndian.PutUint32(context[ifindex:], uint32(t.device.Index))
	return context
}

// xdpMD returns the context of a frame at XDP: data, data_end, data_meta, ingress_ifindex,
// rx_queue_index, egress_ifindex.
func (t *Trial) xdpMD(length int) []byte {
	context := make([]byte, 24)
	binary.NativeEndian.PutUint32(context[4:], uint32(length))
	binary.NativeEndian.PutUint32(context[12:], uint32(t.device.Index))
	return context
}

// frame returns the packet as the device receives it: a SYN, an INIT, or an empty UDP packet. Its
// checksums are never read.
func (p *Packet) frame(to, from net.HardwareAddr) []byte {
	l4 := binary.BigEndian.AppendUint16(nil, p.Source.Port())
	l4 = binary.BigEndian.AppendUint16(l4, p.Destination.Port())
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		const syn, words, window = 0x02, 5, 0xffff
		l4 = append(l4, make([]byte, 8)...)
		l4 = append(l4, words<<4, syn, window>>8, window&0xff, 0, 0, 0, 0)
	case unix.IPPROTO_SCTP:
		const init, length = 1, 20
		l4 = append(l4, make([]byte, 8)...)
		l4 = append(append(l4, init, 0, 0, length), make([]byte, length-4)...)
	default:
		l4 = append(l4, 0, 8, 0, 0)
	}
	frame := make([]byte, 12)
	copy(frame, to)
	copy(frame[6:], from)
	src, dst := p.Source.Addr(), p.Destination.Addr()
	const hops = 64
	if src.Is4() {
		header := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, hops, p.Protocol, 0, 0}
		binary.BigEndian.PutUint16(header[2:], uint16(20+len(l4)))
		frame = append(append(frame, 8, 0), header...)
	} else {
		header := []byte{0x60, 0, 0, 0, 0, byte(len(l4)), p.Protocol, hops}
		frame = append(append(frame, 0x86, 0xdd), header...)
	}
	frame = append(append(frame, src.AsSlice()...), dst.AsSlice()...)
	return append(frame, l4...)
}
