package explain

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/snapshot"
	"fairlead.io/fairlead/test/tables"
)

// An explanation says what led to the backend, where memory comes before hashes, and which slot it
// was.
func TestChoice(t *testing.T) {
	const slots = 7 // of tables.Spread(): .1 .3 .2 .1 .1 .2 .3
	client := netip.MustParseAddrPort("198.51.100.7:4000")
	keys := lb.NewHashKeys("some seed or other")
	numbers := &Numbers{Flow: keys.Flow(client, 30080), Client: keys.Client(client.Addr())}
	if numbers.Flow%slots == numbers.Client%slots {
		t.Fatal("both numbers lead to the same slot")
	}
	holds, lapsed := lastFlow{true, 1000e9, 1}, lastFlow{true, 900e9, 1}
	for name, tt := range map[string]struct {
		algorithm lb.Algorithm
		affinity  uint32
		visit     lastFlow
		known     bool
		by        string
		number    uint32 // that leads to the slot
		says      string
	}{
		"random":                {algorithm: lb.Random, by: ByHash, number: numbers.Flow, says: "the hash of its address and port"},
		"maglev":                {algorithm: lb.Maglev, by: ByHash, number: numbers.Flow, says: "the hash of its address and port"},
		"source hash":           {algorithm: lb.SourceHash, by: ByHash, number: numbers.Client, says: "the hash of its address, modulo 7"},
		"round robin":           {algorithm: lb.RoundRobin, by: ByTurn, number: 12, says: "slot 5 of 7, whose turn it is"},
		"a known flow":          {algorithm: lb.Maglev, known: true, by: ByFlow, says: "keeps its backend whatever the table says"},
		"affinity, first":       {algorithm: lb.Maglev, affinity: 60, by: ByHash, number: numbers.Client, says: "the hash of its address, modulo 7"},
		"affinity, holds":       {algorithm: lb.Random, affinity: 60, visit: holds, by: ByAffinity, says: "keeps the backend of its last flow"},
		"affinity, known flow":  {algorithm: lb.Random, affinity: 60, visit: holds, known: true, by: ByFlow, says: "by conntrack"},
		"affinity, lost":        {algorithm: lb.Random, affinity: 60, visit: lastFlow{true, 1000e9, 77}, by: ByHash, number: numbers.Client, says: "of its address, m"},
		"affinity, turn":        {algorithm: lb.RoundRobin, affinity: 60, by: ByHash, number: numbers.Client, says: "of its address, modulo"},
		"lapsed":                {algorithm: lb.Random, affinity: 60, visit: lapsed, by: ByHash, number: numbers.Flow, says: "of its address and port"},
		"lapsed, turn":          {algorithm: lb.RoundRobin, affinity: 60, visit: lapsed, by: ByTurn, number: 12, says: "whose turn it is"},
		"lapsed, with maglev":   {algorithm: lb.Maglev, affinity: 60, visit: lapsed, by: ByHash, number: numbers.Client, says: "of its address, modulo"},
		"source hash, affinity": {algorithm: lb.SourceHash, affinity: 60, visit: lapsed, by: ByHash, number: numbers.Client, says: "of its address, modulo"},
	} {
		w := tables.Spread()
		w.Algorithm, w.Affinity = uint8(tt.algorithm), tt.affinity
		l := tables.NewLayout()
		l.Services[l.Add(w)].Turn = 12
		known := facts{now: 1000e9, node: map[netip.Addr]struct{}{netip.MustParseAddr("192.0.2.1"): {}},
			rememberedAddr: func(netip.Addr, *snapshot.Service) (lastFlow, error) { return tt.visit, nil }}
		trial := &Trial{Outcome: TrialBackend, Forwarding: ByDNAT, Known: tt.known, Numbers: numbers, Source: client,
			Backend: netip.MustParseAddrPort(w.All[tt.number%slots])}
		q := Question{Destination: netip.MustParseAddrPort("192.0.2.1:30080"), Protocol: model.TCP}
		e, err := explainOutside(snapshotOf(t, l), known, q, client, trial)
		if err != nil || e.Choice == nil {
			t.Errorf("%s: %+v, %v", name, e, err)
			continue
		}
		c := e.Choice
		if c.By != tt.by || c.Number != tt.number || tt.number != 0 && (c.Slots != slots || c.Slot != int(tt.number%slots)) || len(e.Notes) > 0 {
			t.Errorf("%s: %+v, %q; want by %s, number %d", name, c, e.Notes, tt.by, tt.number)
		}
		var out bytes.Buffer
		if err := e.WriteText(&out); err != nil || !strings.Contains(out.String(), tt.says) {
			t.Errorf("%s: no %q in %s (%v)", name, tt.says, out.String(), err)
		}
		if trial.Backend = netip.MustParseAddrPort("10.1.0.9:1"); tt.number != 0 {
			if e, err = explainOutside(snapshotOf(t, l), known, q, client, trial); err != nil || len(e.Notes) != 1 ||
				!strings.Contains(e.Notes[0], "ask again") {
				t.Errorf("%s: for a backend other than the slot's the notes are %q, %v", name, e.Notes, err)
			}
		}
	}
}

// An explanation says how packets get to the backend, and why.
func TestForwarding(t *testing.T) {
	row := maps.FlowRow{}
	if have := ForwardingOf(&row); have != BySNAT {
		t.Errorf("to another node: %s", have)
	}
	row.Kind = uint8(maps.FlowLocal)
	if have := ForwardingOf(&row); have != ByDNAT {
		t.Errorf("on this node: %s", have)
	}
	row.Kind = uint8(maps.FlowDSR) + uint8(lb.DirectIPIP)
	if have := ForwardingOf(&row); have != "dsr-ipip" {
		t.Errorf("without this node on the way back: %s", have)
	}
	for name, tt := range map[string]struct {
		by    Forwarding
		flags uint8
		port  string
		says  string
	}{
		"here":                {ByDNAT, 0, "4000", "mode       dnat: the backend is on this node"},
		"here, another port":  {ByDNAT, 0, "4001", "so this one got another\n"},
		"here, by the policy": {ByDNAT, maps.ExternalLocal, "4000", "dnat: externalTrafficPolicy is Local, so"},
		"there, direct":       {"dsr-geneve", 0, "4000", "dsr-geneve: the backend is on another node, sees the client's own address"},
		"there, with a mode":  {BySNAT, maps.DirectFlags(uint8(lb.DirectGeneve)), "61000", "the service has dsr-geneve, which this flow does not use"},
		"there, inside":       {BySNAT, maps.DirectFlags(uint8(lb.DirectOpt)), "61000", "which this flow does not use, since its client is inside the cluster\n"},
		"there, no mode":      {BySNAT, maps.DirectFlags(uint8(lb.DirectIPIP)), "61000", "dsr-ipip, which this flow does not use\n"},
		"there":               {BySNAT, 0, "61000", "snat: the backend is on another node and sees this node's address 198.51.100.7"},
	} {
		w := tables.Spread()
		w.Flags, w.Local = tt.flags, w.All
		l := tables.NewLayout()
		l.Add(w)
		l.Ranges = tables.Ranges{{Service: maps.Inside, Prefix: netip.MustParsePrefix("198.51.100.0/24")}}
		trial := &Trial{Outcome: TrialBackend, Forwarding: tt.by, Source: netip.MustParseAddrPort("198.51.100.7:" + tt.port),
			Backend: netip.MustParseAddrPort(w.All[0])}
		e, err := explainOutside(snapshotOf(t, l), facts{node: map[netip.Addr]struct{}{netip.MustParseAddr("192.0.2.1"): {}}},
			Question{Destination: netip.MustParseAddrPort("192.0.2.1:30080"), Protocol: model.TCP}, netip.MustParseAddrPort("198.51.100.7:4000"), trial)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := e.WriteText(&out); err != nil || !strings.Contains(out.String(), tt.says) {
			t.Errorf("%s: no %q in %s (%v)", name, tt.says, out.String(), err)
		}
	}
}
