package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	stdnet "net"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/bench/progrun"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

// goalJudged is the cost allowed for a packet between two pods with policies, whose flow is known, relative to
// the least that others need who ask policies about every packet.
const goalJudged = 1.5

// What is compared: our program at a pod's device, which sends a packet on to another pod of the node, and
// minimal programs that do nothing else but enforce policies as others do.
const (
	open         = "no policies"
	judged       = "policies about both pods"
	firstOnly    = "conntrack at both ends"
	eachPacket   = "conntrack and policies at both ends"
	judgedFlows  = 4000
	pendingFlows = 1024 // rows, in a node that is to know no flow when its turn comes again
)

// betweenPods is two pods of a node, the first of which sends to the second.
type betweenPods struct {
	packets
	program  *ebpf.Program
	netns    *rig.Netns
	receiver uint32 // index of the second pod's device
	parts    parts
}

func (o options) policies(ctx context.Context, report *result.Report, family topology.Family) (err error) {
	for _, known := range []bool{true, false} {
		row := fmt.Sprintf("policy, new flow, %s", family)
		if known {
			row = fmt.Sprintf("policy, %d flows, %s", judgedFlows, family)
		}
		if err := o.judge(ctx, report, packets{hook: minimal.TC, family: family, flows: judgedFlows, effort: o.effort}, row, known); err != nil {
			return fmt.Errorf("%s: %w", row, err)
		}
	}
	return nil
}

func (o options) judge(ctx context.Context, report *result.Report, p packets, row string, known bool) (err error) {
	var all parts
	defer func() { err = errors.Join(err, all.Close()) }()
	variants := []round.Variant{}
	for _, name := range []string{open, judged} {
		b, err := newBetweenPods(p, name == judged, known)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all.add(b.parts.Close)
		variants = append(variants, round.Variant{Name: name, Run: b.measure()})
	}
	rows := pendingFlows
	if known {
		rows = leastRows
	}
	for _, name := range []string{firstOnly, eachPacket} {
		b := &betweenPods{packets: p}
		if err := b.lay(); err != nil {
			return err
		}
		all.add(b.parts.Close)
		least, err := minimal.Judge{
			From: b.addrs()[0], To: b.addrs()[1], Port: b.to().Port(), Ifindex: int(b.receiver), Flows: rows, EveryPacket: name == eachPacket,
		}.Load()
		if err != nil {
			return err
		}
		all.add(least.Close)
		b.program = least.Program
		variants = append(variants, round.Variant{Name: name, Run: b.measure()})
	}
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: o.rounds, WarmUp: 1, Out: report.Out()})
	if err != nil {
		return err
	}
	goal := 0.0
	if known {
		goal = goalJudged
	}
	return series.Report(report,
		round.Question{Row: row, Case: "beside " + open, Metric: net, Variant: judged, Yardstick: open},
		round.Question{Row: row, Case: "beside " + firstOnly, Metric: net, Variant: judged, Yardstick: firstOnly},
		round.Question{Row: row, Case: "beside " + eachPacket, Metric: net, Variant: judged, Yardstick: eachPacket, Goal: goal})
}

// sender is the index of the first pod's device: that on which test runs come in.
const sender = 1

func (b *betweenPods) addrs() [2]netip.Addr {
	if b.family == topology.IPv6 {
		return [2]netip.Addr{netip.MustParseAddr("fd00::5"), netip.MustParseAddr("fd00::6")}
	}
	return [2]netip.Addr{netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")}
}

func (b *betweenPods) to() netip.AddrPort { return netip.AddrPortFrom(b.addrs()[1], 80) }

// newBetweenPods returns pods with or without policies, and all flows known or none.
func newBetweenPods(p packets, isolated, known bool) (_ *betweenPods, err error) {
	b := &betweenPods{packets: p}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.parts.Close())
		}
	}()
	if err := b.lay(); err != nil {
		return nil, err
	}
	m, err := maps.Create(maps.Sizes{})
	if err != nil {
		return nil, err
	}
	b.parts.add(m.Close)
	if err := errors.Join(follow(m), b.isolate(m, isolated)); err != nil {
		return nil, err
	}
	if err := limited.Do(func() error { return b.load(m, known) }); err != nil || !known {
		return b, err
	}
	return b, b.establish()
}

// isolate writes the pods, and policies by which the second may only be asked at one port by the first, which
// may do anything.
func (b *betweenPods) isolate(m *maps.Maps, isolated bool) error {
	list := []maps.Pod{}
	for i, addr := range b.addrs() {
		list = append(list, maps.Pod{Addrs: []netip.Addr{addr}, Index: []uint32{sender, b.receiver}[i], MAC: [6]byte{2, 0, 0, 0, 0, 1 + byte(i)}, Policy: isolated})
	}
	if _, err := m.SetPods(list); err != nil || !isolated {
		return err
	}
	const accepts = 1 << 31
	port := uint32(bpf.MapsPolicyProtocolPOLICY_UDP)<<bpf.MapsPolicyProtocolPOLICY_PROTOCOL_SHIFT | uint32(b.to().Port())
	runs := []bpf.MapsPolicyRun{{}, {From: port, Verdict: accepts}, {From: port + 1}, {Verdict: accepts}}
	errs := []error{m.PolicyState.Put(uint32(0), bpf.MapsPolicyState{Pods: 2})}
	for i, run := range runs {
		errs = append(errs, m.PolicyRuns.Put(uint32(i), run))
	}
	for i, addr := range b.addrs() {
		number := uint32(i + 1)
		class := bpf.MapsPolicyClass{Class: [2]uint32{number, number}}
		s := bpf.MapsPolicySubject{Subject: number, Scope: 1, Generation: number}
		ports := bpf.MapsPolicyPorts{First: 3, Count: 1}
		if i == 1 {
			ports = bpf.MapsPolicyPorts{Count: 3}
		}
		at := bpf.MapsPolicyDecisionKey{Subject: number, Class: uint32(2 - i), Direction: uint32(1 - i)} // of the other pod
		errs = append(errs,
			m.PolicyPods.Put(list[i].Index, bpf.MapsPolicyPod{Subject: [2]bpf.MapsPolicySubject{s, s}}),
			m.PolicyPeers.Put(maps.AddrOf(addr), class), m.PolicyViews.Put(bpf.MapsPolicyView{Scope: 1, Class: number}, class),
			m.PolicyDecisions.Put(at, bpf.MapsPolicyDecision{Ports: [2]bpf.MapsPolicyPorts{ports, ports}}))
	}
	return errors.Join(errs...)
}

func (b *betweenPods) load(m *maps.Maps, known bool) error {
	spec, err := bpf.LoadPod()
	if err != nil {
		return fmt.Errorf("read programs: %w", err)
	}
	if err := spec.Variables["cfg"].Set(bpf.MapsPacketConfig{SnatFirst: 1024, SnatLast: 29999, TickShift: aboutASecond, Bypass: 1, Policies: 1}); err != nil {
		return fmt.Errorf("configure programs: %w", err)
	}
	replacements := m.Replacements(spec)
	if !known {
		few := spec.Maps["policy_pending"].Copy()
		few.MaxEntries = pendingFlows
		pending, err := ebpf.NewMap(few)
		if err != nil {
			return err
		}
		b.parts.add(pending.Close)
		replacements["policy_pending"], spec.Maps["policy_pending"].MaxEntries = pending, pendingFlows
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replacements})
	if err != nil {
		return fmt.Errorf("load programs: %w", err)
	}
	b.parts.add(func() error { loaded.Close(); return nil })
	b.program = loaded.Programs["tc_from_pod"]
	return nil
}

// lay makes a namespace with a device for the second pod.
func (b *betweenPods) lay() (err error) {
	if b.netns, err = rig.CreateNetns("pods"); err != nil {
		return err
	}
	b.parts.add(b.netns.Close)
	return b.netns.Do(func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "receiver"}, PeerName: "its-end"}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		b.receiver = uint32(pair.Index)
		return nil
	})
}

func (b *betweenPods) shape() frames.Shape {
	return frames.Shape{
		Kind: frames.UDP, Flows: b.flows, Source: b.addrs()[0], To: b.to(),
		Local: stdnet.HardwareAddr{2, 0, 0, 0, 0, 1}, Remote: make(stdnet.HardwareAddr, 6),
	}
}

// establish makes every flow known: a request, and an answer.
func (b *betweenPods) establish() error {
	first, err := b.shape().Packet()
	if err != nil {
		return err
	}
	return b.netns.Do(func() error {
		for flow := range b.flows {
			request := b.number(first, flow)
			if verdict, err := b.runAt(sender, request); err != nil || verdict != tcRedirect {
				return fmt.Errorf("flow %d: a request got the verdict %d: %w", flow, int32(verdict), err)
			}
			if verdict, err := b.runAt(b.receiver, b.answer(request)); err != nil || verdict != tcRedirect {
				return fmt.Errorf("flow %d: an answer got the verdict %d: %w", flow, int32(verdict), err)
			}
		}
		return nil
	})
}

// runAt runs the program on a packet that a pod sends through a device.
func (b *betweenPods) runAt(device uint32, packet []byte) (uint32, error) {
	const ifindex = 10 // its place in the context, in words
	return b.program.Run(&ebpf.RunOptions{Data: packet, DataOut: make([]byte, len(packet)+256), Context: []uint32{ifindex: device}})
}

// answer returns the second pod's answer to a packet.
func (b *betweenPods) answer(packet []byte) []byte {
	source, size, ports := b.offsets()
	back := append([]byte(nil), packet...)
	copy(back[6:], []byte{2, 0, 0, 0, 0, 2})
	copy(back[source:], packet[source+size:source+2*size])
	copy(back[source+size:], packet[source:source+size])
	copy(back[ports:], packet[ports+2:ports+4])
	copy(back[ports+2:], packet[ports:ports+2])
	return back
}

// number turns a packet into one of another flow.
func (b *betweenPods) number(packet []byte, flow int) []byte {
	_, _, ports := b.offsets()
	packet = append([]byte(nil), packet...)
	binary.BigEndian.PutUint16(packet[ports:], b.shape().FlowSource(flow).Port())
	return packet
}

// measure returns the function for one run of a round. Every packet must be on its way to the second pod.
func (b *betweenPods) measure() func(context.Context) (round.Sample, error) {
	return func(context.Context) (sample round.Sample, err error) {
		err = b.netns.Do(func() error {
			found, err := progrun.Measure(progrun.Config{
				Program: b.program, Packets: b.shape(), Runs: b.runs(), Calls: calls,
				Check: func(verdict uint32, _ []byte) error {
					if verdict != tcRedirect {
						return fmt.Errorf("a packet between pods got the verdict %d", int32(verdict))
					}
					return nil
				},
			})
			sample = round.Sample{Claimed: found.Runs, Arrived: found.Runs, Values: map[string]float64{net: max(found.Net.Min, 0)}}
			return err
		})
		return sample, err
	}
}
