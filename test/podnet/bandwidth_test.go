package podnet

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/test/rig"
)

const (
	datagram   = 1000
	datagrams  = 4      // in a merged packet, as fast senders send them
	headersUDP = 14 + 8 // of Ethernet and UDP; those of IP depend on the family

	// streams is how long connections are measured: their ends may be late by some milliseconds.
	streams = 2 * time.Second
	// pouring is how long what a pod sends takes at its rate: packets that would have to wait for two
	// seconds are dropped.
	pouring = time.Second
	// madeUp is for how much of the time in which it sent nothing a pod may make up.
	madeUp = 20 * time.Millisecond
	// showering is like pouring for what a pod gets, which may wait for less than half a second.
	showering = 400 * time.Millisecond
)

// newQueues returns the controller that keeps pods to their rates at eth0, if the kernel has fq, and at
// the pair.
func newQueues(pair int) (*queues.Controller, error) {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return nil, err
	}
	list := []devices.Device{{Name: "eth0", Index: link.Attrs().Index}}
	controller := queues.New(queues.Config{Log: slog.Default(), Pair: pair, Devices: func() []devices.Device { return list }})
	stats := controller.Status()
	if stats.Error != "" {
		return nil, fmt.Errorf("queues: %+v", stats)
	}
	return controller, nil
}

// pace returns the sum of what the pods with a rate have sent or, with gets, received.
func (n *node) pace(gets bool) (sum maps.Pace) {
	n.t.Helper()
	m, err := maps.Open(datapath.MapsDir(n.Forwarding.BPFFS), true)
	n.must(err)
	defer m.Close()
	list, err := maps.Paces(m.PodRates, m.PodPaces)
	n.must(err)
	pods := map[uint32]maps.Paced{} // by pod, because a pod may have several interfaces
	for _, both := range list {
		pods[both.Of] = both
	}
	if len(pods) != len(n.Rates) {
		n.t.Errorf("pods with a rate: %v, want those of %v", list, n.Rates)
	}
	for _, both := range pods {
		if one := map[bool]*maps.Pace{false: both.Out, true: both.In}[gets]; one != nil {
			sum.Passed, sum.Dropped, sum.Marked = sum.Passed+one.Passed, sum.Dropped+one.Dropped, sum.Marked+one.Marked
		}
	}
	return sum
}

// queued returns the fq queues of a device.
func (n *node) queued(device string) (queues []netlink.Qdisc) {
	n.t.Helper()
	n.must(n.ns.Do(func() error {
		link, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		all, err := netlink.QdiscList(link)
		for _, q := range all {
			if q.Type() == "fq" {
				queues = append(queues, q)
			}
		}
		return err
	}))
	return queues
}

// requireWaiting fails the test unless packets have waited for their time in a queue, and none was
// dropped because it would have had to wait too long. With heeds, the senders slow down when
// packets are lost, and up to one packet in ten may be dropped, because their first packets come
// all at once. The counts are compared with those from before.
func (n *node) requireWaiting(t *testing.T, heeds, gets bool, before maps.Pace) {
	t.Helper()
	n.requireQueues(t, "eth0", "flpace0")
	now := n.pace(gets)
	passed, dropped := now.Passed-before.Passed, now.Dropped-before.Dropped
	if passed == 0 || dropped > 0 && (!heeds || dropped*10 > passed/1500) {
		t.Errorf("%d bytes have passed, %d packets were dropped", passed, dropped)
	}
}

// requireQueues fails the test unless the devices have fq queues, and these had room for
// everything.
func (n *node) requireQueues(t *testing.T, devices ...string) {
	t.Helper()
	for _, device := range devices {
		queues := n.queued(device)
		if len(queues) == 0 {
			t.Errorf("%s has no fq", device)
		}
		for _, q := range queues {
			if q.Attrs().Statistics.Queue.Drops != 0 {
				t.Errorf("%s of %s has dropped %d packets", q.Type(), device, q.Attrs().Statistics.Queue.Drops)
			}
		}
	}
}

// TestBandwidth checks that a node whose packets bypass its stack keeps pods to their rates, in
// what they send and in what they get. All parts share one node, because on a virtual machine it
// takes longer to make one than to measure. All but the first part change the rates of running
// pods.
func TestBandwidth(t *testing.T) {
	rig.Root(t)
	needFq(t)
	const rate = 10e6 / 8
	w := newOneNodeOf(t, true, func(s *agentConfig) { s.Rates = map[string]maps.Rates{"a": {Out: rate, In: rate}} })
	rig.Route(t, w.outside, "10.1.0.0/24", "198.51.100.1")
	both := func(a, b maps.Rates) map[string]maps.Rates { return map[string]maps.Rates{"a": a, "b": b} }
	w.part(t, "alone", nil, func(t *testing.T) { w.limitsRates(t, 50, 10, 2) })
	w.part(t, "BBR", map[string]maps.Rates{"a": {Out: rate}}, w.limitsBBR)
	w.part(t, "interfaces", map[string]maps.Rates{"a": {Out: rate}}, w.limitsAllInterfaces)
	w.part(t, "two", both(maps.Rates{Out: 6e6 / 8}, maps.Rates{Out: 3e6 / 8}), w.limitsTwoPods)
	w.part(t, "shared", nil, w.limitsShares)
	w.part(t, "preferred", nil, w.prefersClass)
	w.part(t, "bands", both(inClass(maps.Guaranteed), inClass(maps.BestEffort)), func(t *testing.T) { w.preferBands(t, outsiders[false]) })
	// At this rate, it waits for a tenth of a second.
	w.part(t, "paced", map[string]maps.Rates{"a": {Out: 1e6}}, w.leavesPaced)
	w.part(t, "ended", map[string]maps.Rates{"a": {In: 200e3}}, w.leavesEnds)
	w.part(t, "far", map[string]maps.Rates{"a": {In: rate}}, w.holdsFar)
	w.part(t, "policed", map[string]maps.Rates{"a": {In: rate}}, w.shapesNotPolices)
	// This is the last part, because no rates are left after it.
	w.part(t, "off", map[string]maps.Rates{"a": {Out: 2e6 / 8}}, w.letsGo)
}

// TestBandwidthByStack does the same for packets that go through the node's stack, as far as that
// makes a difference.
func TestBandwidthByStack(t *testing.T) {
	rig.Root(t)
	needFq(t)
	// Without a rate at first, so that the pods make packets of the usual size.
	w := newOneNodeOf(t, false, func(s *agentConfig) { s.Rates = map[string]maps.Rates{} })
	w.part(t, "alone", nil, func(t *testing.T) { w.limitsRates(t, 10, 2) })
	w.part(t, "bands", map[string]maps.Rates{"a": inClass(maps.Guaranteed), "b": inClass(maps.BestEffort)},
		func(t *testing.T) { w.preferBands(t, outsiders[true]) })
}

// part runs a part of a test with other rates; if they are nil, the part sets its own.
func (n *node) part(t *testing.T, name string, rates map[string]maps.Rates, is func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		whole := n.t
		n.t = t
		defer func() { n.t = whole }()
		if rates != nil {
			n.rerate(rates)
		}
		is(t)
	})
}

// limitsRates checks that a pod keeps to those of the rates, in Mbit/s, that this machine can judge, by
// IPv4 and IPv6 and with any number of flows, that nothing is lost, and that another pod is not
// slowed down. Rates below 10 Mbit/s are checked only if no higher one could be.
func (w *oneNode) limitsRates(t *testing.T, rates ...float64) {
	most := measured(t, w.pods[1].Netns, w.outside, outsiders[true], 1, 2000)
	t.Logf("without a rate: %.3f Mbit/s", most*8/1e6)
	checked := false
	for _, mbit := range rates {
		within := 0.02
		if mbit > 10 {
			within = 0.05
		}
		switch rate := mbit * 1e6 / 8; {
		case mbit < 10 && checked:
		case rate > most/4: // a processor that is nearly busy says nothing about the rate
			t.Logf("%.0f Mbit/s is too near to that, and is not checked", mbit)
		case !w.measureRate(t, rate, within):
			t.Logf("%.0f Mbit/s is more than this machine sends just now, and is not checked", mbit)
		default:
			checked = true
		}
	}
	if !checked {
		t.Error("no rate is checked")
	}
}

// measureRate has a pod send and get at a rate by UDP and TCP, out of the node and within it, and another
// pod send as fast as it can. It returns false if the machine is too busy for that.
func (w *oneNode) measureRate(t *testing.T, rate, within float64) bool {
	t.Helper()
	w.rerate(map[string]maps.Rates{"a": {Out: uint64(rate), In: uint64(rate)}})
	a, b := w.pods[0], w.pods[1]
	if !w.sendsAtRate(t, a.Netns, w.outside, outsiders[true], rate, 16, within) ||
		!w.sendsAtRate(t, a.Netns, w.outside, outsiders[false], rate, 1, within) ||
		!w.sendsAtRate(t, a.Netns, b.Netns, b.addr[true], rate, 1, within) ||
		!w.sendsAtRate(t, a.Netns, w.ns, nodeAddrs[false], rate, 16, within) ||
		!w.getsAt(t, w.ns, a.Netns, a.addr[true], rate, 1, within) ||
		!w.getsAt(t, b.Netns, a.Netns, a.addr[false], rate, 16, within) {
		return false
	}
	w.requireFree(t, b, rate)
	w.streamsAt(t, outsiders[true], rate, 1, within)
	w.streamsBetween(t, a.Netns, b.Netns, b.addr[false], rate, 1, within)
	if rate >= 10e6/8 { // or each of 16 connections would have less than one packet in flight
		w.streamsAt(t, outsiders[false], rate, 16, within)
		w.streamsBetween(t, a.Netns, b.Netns, b.addr[true], rate, 16, within)
	}
	return true
}

// requireFree fails the test unless a pod without a rate sends faster than one with a rate. On a
// busy machine this may take several attempts.
func (w *oneNode) requireFree(t *testing.T, p *pod, rate float64) {
	t.Helper()
	var got float64
	for n := 0; n < 5 && got < 1.5*rate; n++ {
		got = measured(t, p.Netns, w.outside, outsiders[true], 1, 2000)
	}
	if got < 1.5*rate {
		t.Errorf("beside %.0f Mbit/s the other pod sends %.3f", rate*8/1e6, got*8/1e6)
	}
}

// sendsAtRate checks that a pod sends at its rate. It returns false if the machine was too busy for it
// to send that fast.
func (n *node) sendsAtRate(t *testing.T, from, at *rig.Netns, to netip.Addr, rate float64, flows int, within float64) bool {
	t.Helper()
	want, all := leaves(rate, to.Is4())
	before := n.pace(false)
	got, ok := measuredAt(t, from, at, to, flows, all, want)
	if ok {
		requireRate(t, fmt.Sprintf("%.0f Mbit/s, %s to %s, %d flows", rate*8/1e6, from, to, flows), got, want, within)
		n.requireWaiting(t, false, false, before)
	}
	return ok
}

// getsAt is sendsAtRate for what a pod gets. What it is sent at once must have to wait for less than
// half a second.
func (n *node) getsAt(t *testing.T, from, at *rig.Netns, to netip.Addr, rate float64, flows int, within float64) bool {
	t.Helper()
	want, all := leaves(rate*showering.Seconds()/pouring.Seconds(), to.Is4())
	want *= pouring.Seconds() / showering.Seconds()
	before := n.pace(true)
	got, ok := measuredAt(t, from, at, to, flows, all, want)
	if ok {
		requireRate(t, fmt.Sprintf("%.0f Mbit/s, %s to %s, which gets so much, %d flows", rate*8/1e6, from, to, flows), got, want, within)
		n.requireWaiting(t, false, true, before)
	}
	return ok
}

// leaves returns how much of a rate is left for the data of datagrams, and how many datagrams to
// send.
func leaves(rate float64, is4 bool) (want float64, all int) {
	frame := float64(datagram + headersUDP + map[bool]int{true: 20, false: 40}[is4])
	return rate * datagram / frame, int(rate*pouring.Seconds()/frame) / datagrams * datagrams
}

func requireRate(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	say := t.Logf
	if got < want*(1-within) || got > want*(1+within) {
		say = t.Errorf
	}
	say("%s: %.3f of %.3f Mbit/s, %+.2f %%", what, got*8/1e6, want*8/1e6, (got/want-1)*100)
}

// streamsAt is sendsAtRate for TCP, to the host outside.
func (w *oneNode) streamsAt(t *testing.T, to netip.Addr, rate float64, flows int, within float64) {
	t.Helper()
	w.streamsBy(t, streamed, w.pods[0].Netns, w.outside, to, rate, flows, within)
}

// streamsBetween is sendsAtRate for TCP, between any two namespaces.
func (n *node) streamsBetween(t *testing.T, from, at *rig.Netns, to netip.Addr, rate float64, flows int, within float64) {
	t.Helper()
	n.streamsBy(t, streamedByOne, from, at, to, rate, flows, within)
}

// streamsBy is sendsAtRate for TCP, with a function that measures. A connection that always has more to
// send grows until a packet is lost. Bytes count when they are read, so a busy machine affects the
// result, and a result that is too low is measured again.
func (n *node) streamsBy(t *testing.T, streams func(*testing.T, *rig.Netns, *rig.Netns, netip.Addr, int, int) float64, from, at *rig.Netns, to netip.Addr,
	rate float64, flows int, within float64,
) {
	t.Helper()
	want, all := leavesStreams(t, from, rate, to.Is4())
	before := n.pace(false)
	var got float64
	for i := 0; i < 5 && got < want*(1-within); i++ {
		got = streams(t, from, at, to, flows, all)
	}
	requireRate(t, fmt.Sprintf("%.0f Mbit/s, to %s, %d connections", rate*8/1e6, to, flows), got, want, within)
	n.requireWaiting(t, true, false, before)
}

// leavesStreams returns how much of a rate is left for the data of TCP, whose packets are full and
// carry timestamps, and how many bytes to measure. Packets of 64 KiB are few, so a pod that makes
// them is measured for longer.
func leavesStreams(t *testing.T, from *rig.Netns, rate float64, is4 bool) (want float64, all int) {
	t.Helper()
	looked := streams
	headers := float64(20 + 12 + map[bool]int{true: 20, false: 40}[is4])
	err := from.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mtu := float64(link.Attrs().MTU)
			want = rate * (mtu - headers) / (mtu + 14)
			if float64(link.Attrs().GSOMaxSize) > rate*streams.Seconds()/100 {
				looked *= 2
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return want, int(want * looked.Seconds())
}

// TestBandwidthTunnel checks that a pod keeps to its rate through a tunnel too; the rate counts its
// frames as it sends them.
func TestBandwidthTunnel(t *testing.T) {
	rig.Root(t)
	needFq(t)
	k := newServingNodesOnLAN(t, lanForm{
		mode: fabric.VXLAN, addr4: true, addr6: true, pods4: true, pods6: true, byPrograms: true, size: 2,
		rates: map[string]maps.Rates{"p1": {Out: 10e6 / 8}},
	})
	k.announceNodes(k.objects)
	first, from, at := k.nodes[0], k.pods[0], k.pods[1]
	rate := judgeable(t, "by UDP", measured(t, at.Netns, from.Netns, from.addr[true], 1, 2000))
	first.rerate(map[string]maps.Rates{"p1": {Out: uint64(rate)}})
	for _, to := range at.addr {
		if !first.sendsAtRate(t, from.Netns, at.Netns, to, rate, 16, 0.02) {
			t.Fatal("the machine is too busy to judge the rate")
		}
	}
	rate = judgeable(t, "by TCP", streamed(t, at.Netns, from.Netns, from.addr[true], 1, 4e6))
	first.rerate(map[string]maps.Rates{"p1": {Out: uint64(rate)}})
	first.streamsBetween(t, from.Netns, at.Netns, at.addr[true], rate, 1, 0.02)
	if rate >= 10e6/8 { // as in judge
		first.streamsBetween(t, from.Netns, at.Netns, at.addr[false], rate, 16, 0.02)
	}
}

// judgeable returns a rate of at most a quarter of what the machine sends without one, which it can
// therefore judge.
func judgeable(t *testing.T, by string, most float64) float64 {
	t.Helper()
	t.Logf("without a rate %s: %.3f Mbit/s", by, most*8/1e6)
	for _, rate := range []float64{10e6 / 8, 2e6 / 8} {
		if rate <= most/4 {
			return rate
		}
		t.Logf("%.0f Mbit/s is too near to that, and is not checked", rate*8/1e6)
	}
	t.Fatal("no rate is checked")
	return 0
}

// needFq ends the test on a kernel without fq, where packets cannot wait for their time.
func needFq(t *testing.T) {
	t.Helper()
	if err := lackingFq(t); err != nil {
		rig.Lacking(t, "fq", fmt.Sprintf("this kernel has no fq: %v", err))
	}
}

func lackingFq(t *testing.T) error {
	t.Helper()
	return rig.NewNetns(t, "trial").Do(func() error {
		link, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.QdiscReplace(netlink.NewFq(netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT}))
	})
}
