package main

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/snapshot"
	"fairlead.io/fairlead/pkg/ticks"
	"fairlead.io/fairlead/test/rig"
)

// remembered returns the clients of the remembered flows, by their ports.
func (n *node) remembered() (ports []uint16) {
	n.t.Helper()
	reader, err := snapshot.OpenFlows(datapath.MapsDir(n.bpffs), nil)
	if err != nil {
		n.t.Fatal(err)
	}
	defer reader.Close()
	err = reader.Each(&snapshot.FlowFilter{}, func(f *snapshot.Flow, _ maps.Doomed, _ bool) error {
		ports = append(ports, f.Client.Port())
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	slices.Sort(ports)
	return ports
}

// remove removes a manifest.
func (n *node) remove(name string) {
	n.t.Helper()
	if err := os.Remove(filepath.Join(n.manifests, name)); err != nil {
		n.t.Fatal(err)
	}
}

// enterFlows adds that many connections to the table of established flows.
func (n *node) enterFlows(many int) {
	n.t.Helper()
	tick, err := ticks.Measure()
	if err != nil {
		n.t.Fatal(err)
	}
	now, err := tick.Now()
	if err != nil {
		n.t.Fatal(err)
	}
	m, err := maps.OpenFlowMap(filepath.Join(datapath.MapsDir(n.bpffs), "ct"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer m.Close()
	node, backend := maps.AddrOf(netip.MustParseAddr("192.0.2.1")), maps.AddrOf(netip.MustParseAddr("10.1.0.1"))
	for i := range many {
		client := maps.AddrOf(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
		port := maps.PortOf(uint16(4000 + i>>16))
		key := maps.Flow{Saddr: client, Sport: port, Daddr: node, Dport: port, Proto: uint8(model.TCP)}
		row := maps.FlowRow{Saddr: client, Sport: port, Daddr: backend, Dport: port, Seen: now, State: maps.FlowOpen}
		row.Checksum = maps.ChecksumOf(key, row)
		back := maps.BackOf(key, &row)
		reply := maps.FlowRow{Saddr: node, Sport: port, Daddr: client, Dport: port, Seen: now, State: maps.FlowOpen, Kind: maps.FlowReply}
		reply.Checksum = maps.ChecksumOf(back, reply)
		if err := errors.Join(m.Put(&key, &row), m.Put(&back, &reply)); err != nil {
			n.t.Fatal(err)
		}
	}
}

// TestFlowsGrow checks that the table of flows grows by itself when it is half full, and the new
// table has every flow.
func TestFlowsGrow(t *testing.T) {
	const flows = 34_000 // 68,000 rows of 131,072
	n := newNode(t)
	n.echoes("198.18.0.1")
	n.agent = rig.NewChild(t, nil, n.ns, "fairlead", append([]string{
		"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=warn", "--conntrack-max=200000",
	}, n.flags...)...)
	n.run("status", "--wait", "--wait-duration=30s")
	n.enterFlows(flows)
	n.waitFor("more room", func() bool { return strings.Contains(n.run("status"), " of 262144 rows (at most 524288)") })
	if have := len(n.remembered()); have != flows {
		t.Errorf("%d flows are remembered, want %d", have, flows)
	}
	if list := n.run("map", "list"); !strings.Contains(list, "262144") {
		t.Errorf("the list of maps says nothing of it:\n%s", list)
	}
}

// TestPurge checks that UDP flows are removed within a second when their backend leaves (matched by
// address and port), when no backend is left, and when the Service is deleted. TCP connections
// stay.
func TestPurge(t *testing.T) {
	n := newNode(t)
	n.echoes("198.18.0.1", "198.18.0.2")
	n.agent = rig.NewChild(t, nil, n.ns, "fairlead", append([]string{
		"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=warn",
	}, n.flags...)...)
	n.run("status", "--wait", "--wait-duration=30s")
	enter := func(which string, proto model.Protocol, port uint16, backend string, state uint8) {
		client := netip.AddrPortFrom(netip.MustParseAddr("198.51.100.7"), port).String()
		enterFlow(t, n.bpffs, which, proto, [4]string{client, "10.96.0.20:7", client, backend}, [2]uint8{state, state}, 0)
	}
	fill := func() {
		enter("ct", model.UDP, 4001, "198.18.0.1:7", maps.FlowOpen)
		enter("ct", model.UDP, 4002, "198.18.0.2:7", maps.FlowOpen)
		enter("ct_pending", model.UDP, 4003, "198.18.0.2:7", maps.FlowNew)
		// From before the Service had another port.
		enter("ct", model.UDP, 4004, "198.18.0.1:8", maps.FlowOpen)
		enter("ct", model.TCP, 4005, "198.18.0.2:7", maps.FlowOpen)
		enter("ct_pending", model.TCP, 4006, "198.18.0.2:7", maps.FlowNew)
		enter("ct", model.UDP, 4007, "198.18.0.3:7", maps.FlowOpen)
	}
	for _, step := range []struct {
		name   string
		before []string
		change func()
		want   []uint16
	}{
		{"one leaves", []string{"198.18.0.1", "198.18.0.2"}, func() { n.echoes("198.18.0.1") }, []uint16{4001, 4005}},
		{"another leaves", []string{"198.18.0.1", "198.18.0.2", "198.18.0.3"}, func() { n.echoes("198.18.0.1", "198.18.0.2") },
			[]uint16{4001, 4002, 4003, 4005, 4006}},
		{"none is left", []string{"198.18.0.1", "198.18.0.2"}, func() { n.echoes() }, []uint16{4005}},
		// It is not known whose backends they had.
		{"no Service", []string{"198.18.0.1", "198.18.0.2"}, func() { n.remove("echo.yaml") }, []uint16{4005, 4006}},
	} {
		n.echoes(step.before...)
		n.waitFor(step.name, func() bool {
			return strings.Contains(n.run("backend", "list"), step.before[len(step.before)-1]+":7")
		})
		fill()
		start := time.Now()
		step.change()
		n.waitFor(step.name, func() bool { return slices.Equal(n.remembered(), step.want) })
		t.Logf("%s: took %v", step.name, time.Since(start))
	}
	if status := n.run("status"); !strings.Contains(status, "flows") {
		t.Errorf("the status says nothing of flows: %s", status)
	}
}
