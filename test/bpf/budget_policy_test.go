package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// spendPolicies takes the paths between two pods that policies are about, on a node where packets bypass the
// stack: everything is accepted.
func spendPolicies(t *testing.T, version string, f family) (list []budget) {
	t.Helper()
	config := standardConfig()
	config.TickShift, config.Bypass, config.Policies = 31, 1, 1
	w := newBareNodeTwoPods(t, config, false)
	w.isolateAll(t)
	m := w.meter(t)
	from, to := pod4, other4
	if f.any == "[::]" {
		from, to = "["+pod6+"]", "["+other6+"]"
	}
	dial := packet{from: from + ":4000", to: to + ":80", proto: tcp, flags: syn}
	for _, r := range []struct {
		name, program string
		flags         byte
	}{
		{"first", "tc_from_pod", syn}, {"pending", "tc_from_pod", ack},
		{"open, first of a tick", "tc_from_pod", ack}, {"open", "tc_from_pod", ack}, {"open, by the stack", "tc_to_pod", ack},
	} {
		dial.flags = r.flags
		p := dial
		if r.program == "tc_to_pod" {
			p.from, p.to = dial.to, dial.from
		}
		if r.name == "open, first of a tick" {
			w.openJudged(t)
		}
		m.reset(t)
		b := budget{path: fmt.Sprintf("policies, about both pods, %s, tc %s", r.name, version)}
		b.verdict, _ = w.run(t, r.program, sent{frame: p.bytes()}.bytes())
		b.instructions, b.calls = m.read(t)
		list = append(list, b)
	}
	return list
}

// isolateAll has policies be about both pods, which accept everything.
func (w *bareNode) isolateAll(t *testing.T) {
	t.Helper()
	errs := []error{w.maps.PolicyState.Put(uint32(0), bpf.MapsPolicyState{Pods: 2}), w.maps.PolicyRuns.Put(uint32(0), bpf.MapsPolicyRun{Verdict: accepted})}
	ports := bpf.MapsPolicyPorts{Count: 1}
	var list []maps.Pod
	for i, addrs := range [][2]string{{pod4, pod6}, {other4, other6}} {
		number := uint32(i + 1)
		list = append(list, maps.Pod{
			Addrs: []netip.Addr{netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1])}, Index: number, Policy: true,
			MAC: [6]byte([]byte([]string{podMAC, otherMAC}[i])), HostMAC: [6]byte([]byte(hostMAC)),
		})
		s := bpf.MapsPolicySubject{Subject: number, Scope: 1, Generation: number}
		errs = append(errs, w.maps.PolicyPods.Put(number, bpf.MapsPolicyPod{Subject: [2]bpf.MapsPolicySubject{s, s}}))
		for direction := range uint32(2) {
			at := bpf.MapsPolicyDecisionKey{Subject: number, Direction: direction}
			errs = append(errs, w.maps.PolicyDecisions.Put(at, bpf.MapsPolicyDecision{Ports: [2]bpf.MapsPolicyPorts{ports, ports}}))
		}
	}
	_, err := w.maps.SetPods(list)
	if err := errors.Join(append(errs, err)...); err != nil {
		t.Fatal(err)
	}
}

// openJudged moves the flows of which one end has sent something to those of which both have, in an earlier
// tick.
func (w *bareNode) openJudged(t *testing.T) {
	t.Helper()
	var key bpf.MapsFlow
	var row bpf.MapsPolicyFlow
	moved := 0
	for rows := w.maps.PolicyPending.Iterate(); rows.Next(&key, &row); moved++ {
		row.Seen--
		if err := errors.Join(w.maps.PolicyFlows.Put(key, row), w.maps.PolicyPending.Delete(key)); err != nil {
			t.Fatal(err)
		}
	}
	if moved == 0 {
		t.Fatal("no flow was judged")
	}
}
