package main

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/test/bench/kubeproxy"
	"fairlead.io/fairlead/test/bench/minimal"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/topology"
	"fairlead.io/fairlead/test/rig"
)

// Every packet of a short run reaches the backend, and every question gets an answer.
func TestRun(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	path := filepath.Join(t.TempDir(), "datapath.json")
	if err := run(t.Context(), []string{"-output=" + path, "-rounds=9", "-effort=0.3", "-flows=50", "-only=established"}, t.Output()); err != nil {
		t.Fatal(err)
	}
	rows, err := result.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	goals := map[string]float64{}
	for _, r := range rows {
		if r.Yardstick <= 0 {
			t.Errorf("%s, %s: nothing was measured", r.Row, r.Case)
		}
		goals[r.Row] = r.Goal
	}
	want := map[string]float64{}
	for _, p := range []packets{
		{hook: minimal.XDP, family: topology.IPv4}, {hook: minimal.XDP, family: topology.IPv6},
		{hook: minimal.TC, family: topology.IPv4}, {hook: minimal.TC, family: topology.IPv6},
	} {
		row := "datapath/established, " + string(p.hook) + ", " + p.family.String()
		want[row], want[row+", within a tick"], want[row+", one conntrack lookup"] = p.goal(), p.goal(), 0
		want[row+", beside one conntrack lookup"] = p.goalConntrack()
		want[row+", within a tick, beside one conntrack lookup"] = p.goalConntrack()
	}
	if diff := cmp.Diff(want, goals); diff != "" {
		t.Errorf("goals (-want +have):\n%s", diff)
	}
}

// The same for first packets.
func TestRunOfNewFlows(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	path := filepath.Join(t.TempDir(), "datapath.json")
	if err := run(t.Context(), []string{"-output=" + path, "-rounds=9", "-effort=0.1", "-only=new flow, xdp, IPv6"}, t.Output()); err != nil {
		t.Fatal(err)
	}
	rows, err := result.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(rows, func(r result.Row) bool { return r.Goal == goalNew }) {
		t.Errorf("no row has the goal of new flows: %+v", rows)
	}
}

// The same for packets of flows whose backends answer their clients themselves, at both hooks.
func TestRunOfDirect(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	for _, kind := range []string{"direct, xdp, IPv4", "direct, tc, IPv6"} {
		path := filepath.Join(t.TempDir(), "datapath.json")
		if err := run(t.Context(), []string{"-output=" + path, "-rounds=9", "-effort=0.5", "-only=" + kind}, t.Output()); err != nil {
			t.Fatal(err)
		}
		rows, err := result.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		goals, want := map[string]float64{}, map[string]float64{}
		for _, r := range rows {
			if r.Yardstick <= 0 {
				t.Errorf("%s, %s: nothing was measured", r.Row, r.Case)
			}
			goals[r.Row+": "+r.Case] = r.Goal
		}
		for _, w := range wrappings() {
			begun, open := "datapath/"+kind+", new flow: "+w.name, "datapath/"+kind+", 1000 flows: "+w.name
			want[begun], want[begun+", beside SNAT"], want[open], want[open+", beside SNAT"] = goalDirect, 0, 0, 0
			want[begun+", beside "+wrappedFound], want["datapath/"+kind+", new flow: the look"] = 0, 0
		}
		if diff := cmp.Diff(want, goals); diff != "" {
			t.Errorf("goals (-want +have):\n%s", diff)
		}
	}
}

// Packets between pods with and without policies all pass, and every question gets an answer.
func TestRunOfPolicies(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	path := filepath.Join(t.TempDir(), "datapath.json")
	if err := run(t.Context(), []string{"-output=" + path, "-rounds=9", "-effort=0.1", "-only=policy, IPv6"}, t.Output()); err != nil {
		t.Fatal(err)
	}
	rows, err := result.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	goals, want := map[string]float64{}, map[string]float64{}
	for _, r := range rows {
		if r.Yardstick <= 0 {
			t.Errorf("%s, %s: nothing was measured", r.Row, r.Case)
		}
		goals[r.Row+", "+r.Case] = r.Goal
	}
	for _, row := range []string{"datapath/policy, 4000 flows, IPv6, beside ", "datapath/policy, new flow, IPv6, beside "} {
		want[row+open], want[row+firstOnly], want[row+eachPacket] = 0, 0, 0
	}
	want["datapath/policy, 4000 flows, IPv6, beside "+eachPacket] = goalJudged
	if diff := cmp.Diff(want, goals); diff != "" {
		t.Errorf("goals (-want +have):\n%s", diff)
	}
}

// A packet that does not reach the backend must not count.
func TestCheck(t *testing.T) {
	p := packets{hook: minimal.TC, family: topology.IPv4}
	packet := make([]byte, 64)
	copy(packet[30:], p.backend().Addr().AsSlice())
	if err := p.check(tcRedirect, packet); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"went on":      p.check(1<<32-1, packet),
		"goes nowhere": p.check(tcRedirect, make([]byte, 64)),
		"is cut":       p.check(tcRedirect, packet[:20]),
	} {
		if err == nil {
			t.Errorf("a packet that %s counts as arrived", name)
		}
	}
}

// Packets pass the nodes of all balancers without loss, and every question gets an answer.
func TestRates(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	program, version, err := kubeproxy.Find()
	if err != nil {
		t.Fatal(err)
	}
	if program == nil {
		rig.Lacking(t, "cluster", "kube-proxy "+version+" is not built; \"go run ./test/cluster build\" does that")
	}
	path := filepath.Join(t.TempDir(), "datapath.json")
	if err := run(t.Context(), []string{"-output=" + path, "-rounds=9", "-effort=0.02", "-only=another node"}, t.Output()); err != nil {
		t.Fatal(err)
	}
	rows, err := result.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	goals := map[string]float64{}
	for _, r := range rows {
		if r.Goal != 0 {
			goals[r.Row+", "+r.Case] = r.Goal
		}
	}
	want := map[string]float64{"datapath/rate, to a pod of another node, XDP beside tc": goalOverTC}
	for _, mode := range kubeproxy.Modes() {
		want["datapath/rate, to a pod of another node, XDP beside kube-proxy "+mode] = goalOverRules
		want["datapath/rate, to a pod of another node, tc beside kube-proxy "+mode] = goalTCOver
		want["datapath/rate, to a pod of the node, tc beside kube-proxy "+mode] = goalTCOver
	}
	if diff := cmp.Diff(want, goals); diff != "" {
		t.Errorf("goals (-want +have):\n%s", diff)
	}
}

// A packet that should be wrapped but was translated must not count, nor the reverse.
func TestCheckLength(t *testing.T) {
	for _, isWrapped := range []bool{false, true} {
		p := packets{isWrapped: isWrapped}
		if longer, same := p.checkLength(60, 80), p.checkLength(60, 60); (longer == nil) != isWrapped || (same == nil) == isWrapped {
			t.Errorf("to be wrapped %v: error for a longer packet %v, for one of equal length %v", isWrapped, longer, same)
		}
	}
}

// A node that drops packets must not count as a fast node.
func TestNobodyBalances(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	s, err := newClientTwoNodes("nobody", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	w, err := s.newWay(there, 500, s.frontend(0, there))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	if sample, err := w.run(ctx); err != nil || sample.Claimed != 500 || sample.Arrived != 0 {
		t.Errorf("%d packets without a balancer, of which %d arrived: %v", sample.Claimed, sample.Arrived, err)
	}
}
