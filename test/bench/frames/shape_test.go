package frames

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func shapeOf(v6 bool, kind Kind) Shape {
	s := Shape{
		Kind: kind, Source: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddrPort("192.0.2.1:80"),
		Local: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Remote: net.HardwareAddr{2, 0, 0, 0, 0, 2},
	}
	if v6 {
		s.Source, s.To = netip.MustParseAddr("fd00::1"), netip.MustParseAddrPort("[2001:db8::1]:80")
	}
	return s
}

// Every flow has its first turn before any has its second.
func TestStride(t *testing.T) {
	for _, flows := range []int{1, 2, 3, 4, 6, 10, 97, 1000, 4096, 65536, 99_999, 1_000_000} {
		seen, step, flow := make([]bool, flows), int(stride(flows)), 0
		for range flows {
			if seen[flow] {
				t.Fatalf("%d flows with stride %d: flow %d has its second turn too early", flows, step, flow)
			}
			seen[flow] = true
			if flow += step; flow >= flows {
				flow -= flows
			}
		}
		if flow != 0 || step >= flows && flows > 1 {
			t.Errorf("%d flows with stride %d end at %d", flows, step, flow)
		}
	}
}

func TestFlowSources(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		s, seen := shapeOf(v6, UDP), map[netip.AddrPort]bool{}
		s.Flows = 20_000
		for flow := range s.Flows {
			seen[s.FlowSource(flow)] = true
		}
		if len(seen) != s.Flows {
			t.Errorf("%d flows have %d sources", s.Flows, len(seen))
		}
	}
	if have := shapeOf(false, UDP).FlowSource(4096*300 + 7); have != netip.MustParseAddrPort("10.0.1.45:1031") {
		t.Errorf("have %s", have)
	}
}

func TestRefusedShapes(t *testing.T) {
	for want, change := range map[string]func(*Shape){
		`no kind "icmp"`:      func(s *Shape) { s.Kind = "icmp" },
		"of no family":        func(s *Shape) { s.Source = netip.IPv6Loopback() },
		"is of no family":     func(s *Shape) { s.Source = netip.Addr{} },
		"not of Ethernet":     func(s *Shape) { s.Local = nil },
		"a size of 63":        func(s *Shape) { s.Size = 63 },
		"a size of 3001":      func(s *Shape) { s.Size = 3001 },
		"has no data":         func(s *Shape) { s.Kind, s.Size = TCPSyn, 100 },
		"do not fit behind 1": func(s *Shape) { s.Source, s.Flows = netip.MustParseAddr("10.0.255.250"), 1_000_000 },
		"-1 flows":            func(s *Shape) { s.Flows = -1 },
	} {
		s := shapeOf(false, UDP)
		change(&s)
		if _, err := s.Packet(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	long := shapeOf(true, TCPAck)
	long.Size = 79
	if _, err := long.Packet(); err == nil || !strings.Contains(err.Error(), "use 80 to") {
		t.Error(err)
	}
}
