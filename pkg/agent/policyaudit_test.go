package agent

import (
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/policy"
)

func words(f policy.Flow) string {
	return fmt.Sprint(f.Direction, " of ", f.Subject, ", peer ", f.Peer, " ", f.Protocol, " ", f.Port, ", ", f.Source, " -> ", f.Destination, " ", f.Judged, f.ByNode)
}

func TestFlowsOfRows(t *testing.T) {
	addr := func(text string) maps.Addr { return maps.AddrOf(netip.MustParseAddr(text)) }
	key := maps.Flow{Saddr: addr("10.1.0.5"), Daddr: addr("10.2.0.7"), Sport: maps.PortOf(4000), Dport: maps.PortOf(80), Proto: 6}
	for flags, want := range map[bpf.MapsPolicyFlowFlag]string{
		bpf.MapsPolicyFlowFlagPOLICY_FLOW_EGRESS: "egress of 10.1.0.5, peer 10.2.0.7 tcp 80, 10.1.0.5:4000 -> 10.2.0.7:80 true false",
		0:                                        "ingress of 10.1.0.5, peer 10.2.0.7 tcp 4000, 10.2.0.7:80 -> 10.1.0.5:4000 true false",
		bpf.MapsPolicyFlowFlagPOLICY_FLOW_NODE:   "ingress of 10.1.0.5, peer 10.2.0.7 tcp 4000, 10.2.0.7:80 -> 10.1.0.5:4000 true true",
	} {
		if have := words(*judgedFlow(&key, &maps.PolicyFlow{Flags: uint16(flags)})); have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}
	}
	if f := judgedFlow(&key, &maps.PolicyFlow{Flags: uint16(bpf.MapsPolicyFlowFlagPOLICY_FLOW_DENIED)}); f != nil {
		t.Errorf("a flow that is denied: %+v", f)
	}
	row := maps.FlowRow{Saddr: addr("192.0.2.1"), Daddr: addr("10.1.0.9"), Sport: maps.PortOf(61000), Dport: maps.PortOf(8080), Kind: uint8(maps.FlowPod)}
	list := translatedFlows(&key, &row)
	if len(list) != 2 {
		t.Fatalf("%d flows", len(list))
	}
	for i, want := range []string{
		"egress of 10.1.0.5, peer 10.1.0.9 tcp 8080, 10.1.0.5:4000 -> 10.1.0.9:8080 false false",
		"ingress of 10.1.0.9, peer 192.0.2.1 tcp 8080, 192.0.2.1:61000 -> 10.1.0.9:8080 false false",
	} {
		if have := words(list[i]); have != want {
			t.Errorf("have %s\nwant %s", have, want)
		}
	}
	for _, kind := range []uint8{uint8(maps.FlowPod) | maps.FlowReply, uint8(maps.FlowPodSelf)} {
		row.Kind = kind
		if list := translatedFlows(&key, &row); len(list) != 0 {
			t.Errorf("kind %d: %+v", kind, list)
		}
	}
}
