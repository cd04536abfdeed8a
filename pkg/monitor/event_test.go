package monitor

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

func TestEventFilter(t *testing.T) {
	at := netip.MustParseAddrPort
	drop := Event{Verdict: EventDrop, Reason: "ttl", Source: at("198.51.100.7:4000"), Destination: at("192.0.2.1:30080"),
		NewSource: at("10.0.0.1:61000"), NewDestination: at("10.1.0.5:8080")}
	choice := drop
	choice.Verdict, choice.Reason = EventBackend, ""
	for _, tt := range []struct {
		name   string
		filter Filter
		drop   bool
		choice bool
	}{
		{"everything", Filter{Sample: 1}, true, true},
		{"no choices", Filter{}, true, false},
		{"its reason", Filter{Reasons: []string{"ttl"}, Sample: 1}, true, true},
		{"another reason", Filter{Reasons: []string{"no-port"}}, false, false},
		{"the client", Filter{Addr: netip.MustParsePrefix("198.51.100.0/24"), Sample: 1}, true, true},
		{"the backend", Filter{Addr: netip.MustParsePrefix("10.1.0.5/32"), Sample: 1}, true, true},
		{"somebody", Filter{Addr: netip.MustParsePrefix("10.1.0.6/32"), Sample: 1}, false, false},
		{"the new port", Filter{Port: 61000, Sample: 1}, true, true},
		{"another port", Filter{Port: 80, Sample: 1}, false, false},
	} {
		if d, c := tt.filter.Passes(&drop), tt.filter.Passes(&choice); d != tt.drop || c != tt.choice {
			t.Errorf("%s: drop %t, choice %t", tt.name, d, c)
		}
		again, err := ParseFilter(tt.filter.Values())
		if diff := cmp.Diff(&tt.filter, again, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); err != nil || diff != "" {
			t.Errorf("%s: %v %s", tt.name, err, diff)
		}
	}
}

func TestEventFilterWatch(t *testing.T) {
	reasons := Filter{Reasons: []string{"no-backend", "ttl"}, Addr: netip.MustParsePrefix("198.51.100.0/24"), Port: 53}
	w, err := reasons.Watch()
	want := uint64(1)<<bpf.MapsReasonREASON_NO_BACKEND | 1<<bpf.MapsReasonREASON_TTL
	if err != nil || w.Reasons != want || w.Port != maps.PortOf(53) {
		t.Errorf("%+v, %v", w, err)
	}
	if addr, mask := maps.NetipOf(w.Addr), maps.NetipOf(w.Mask); addr.String() != "198.51.100.0" || mask.String() != "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00" {
		t.Errorf("%s, %s", addr, mask)
	}
	all := Filter{Sample: 3}
	if w, err := all.Watch(); err != nil || w.Reasons != 1<<bpf.MapsReasonREASONS-1 || w.Sample != 3 || w.Mask != (maps.Addr{}) {
		t.Errorf("%+v, %v", w, err)
	}
}

func TestEventText(t *testing.T) {
	e := Event{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.Local), Hook: "xdp", Direction: "in", Device: "eth0", Verdict: EventBackend, Protocol: "tcp",
		TCPFlags: "SYN", Source: netip.MustParseAddrPort("198.51.100.7:4000"), Destination: netip.MustParseAddrPort("192.0.2.1:30080"),
		NewSource: netip.MustParseAddrPort("192.0.2.1:1024"), NewDestination: netip.MustParseAddrPort("10.1.0.5:8080"),
		Service: "shop/web:http/tcp4", Backend: "shop/web-0", Way: "eth1", Sample: 100,
	}
	drop := Event{Time: e.Time, Hook: "tc", Direction: "out", Device: "eth0", Verdict: EventDrop, Reason: "source-range", Protocol: "udp",
		Source: e.Source, Destination: e.Destination}
	var b strings.Builder
	for _, err := range []error{WriteHeader(&b), e.WriteText(&b), drop.WriteText(&b), (&Event{Lost: 7}).WriteText(&b)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := `TIME            HOOK DIR DEVICE     WHAT                 PACKET
03:04:05.000006 xdp  in  eth0       backend              tcp 198.51.100.7:4000 -> 192.0.2.1:30080 SYN => 192.0.2.1:1024 -> 10.1.0.5:8080 service=shop/web:http/tcp4 backend=shop/web-0 way=eth1 (1 of 100)
03:04:05.000006 tc   out eth0       drop source-range    udp 198.51.100.7:4000 -> 192.0.2.1:30080
7 events lost
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

// The event of a reply names the service and the backend of its flow.
func TestEventWords(t *testing.T) {
	pods := map[string]string{"10.1.0.5": "shop/web-0"}
	w, err := NewTranslator(t.TempDir(), Names{
		func(addr netip.Addr) string { return pods[addr.String()] },
		func(rule uint32) string {
			return map[uint32]string{7: "networkpolicy shop/web, ingress: no rule accepts it"}[rule]
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	addr := func(text string) maps.Addr { return maps.AddrOf(netip.MustParseAddr(text)) }
	reply := maps.Event{
		Hook: uint8(bpf.MapsHookHOOK_TC), IsLeaving: 1, IsDropped: 1, Reason: uint8(bpf.MapsReasonREASON_TTL), Kind: maps.FlowReply,
		Flow:  maps.Flow{Saddr: addr("10.1.0.5"), Daddr: addr("198.51.100.7"), Sport: maps.PortOf(8080), Dport: maps.PortOf(4000), Proto: 6},
		Saddr: addr("192.0.2.1"), Daddr: addr("198.51.100.7"), Sport: maps.PortOf(30080), Dport: maps.PortOf(4000), TcpFlags: 0x12, Len: 60, Ifindex: 1 << 30,
	}
	e := w.Event(&reply)
	e.Time = time.Time{}
	want := Event{
		Hook: "tc", Direction: "out", Device: "#1073741824", Verdict: EventDrop, Reason: "ttl", Protocol: "tcp", TCPFlags: "SYN,ACK", Bytes: 60,
		Source: netip.MustParseAddrPort("10.1.0.5:8080"), Destination: netip.MustParseAddrPort("198.51.100.7:4000"),
		NewSource: netip.MustParseAddrPort("192.0.2.1:30080"), NewDestination: netip.MustParseAddrPort("198.51.100.7:4000"), Backend: "shop/web-0",
	}
	if e != want {
		t.Errorf("%+v\nwant %+v", e, want)
	}
	full := maps.Event{Reason: uint8(bpf.MapsReasonREASON_FLOWS_FULL), Flow: maps.Flow{Proto: 58}}
	if e := w.Event(&full); e.Verdict != EventDegraded || e.Reason != "flows-full" || e.Protocol != "icmp6" || e.NewDestination.IsValid() {
		t.Errorf("%+v", e)
	}
	for rule, want := range map[uint32]string{
		7: " by networkpolicy shop/web, ingress: no rule accepts it", 8: " by rule 8",
	} {
		denied := maps.Event{Reason: uint8(bpf.MapsReasonREASON_POLICY), IsDropped: 1, Flow: maps.Flow{Proto: 6}, Rule: rule}
		e := w.Event(&denied)
		if text := e.packetText(); e.Verdict != EventDrop || e.Rule != rule || !strings.HasSuffix(text, want) {
			t.Errorf("%+v\nhave %s\nwant %s", e, text, want)
		}
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}
