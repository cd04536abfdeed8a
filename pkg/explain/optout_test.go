package explain

import (
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/snapshot"
	"fairlead.io/fairlead/test/tables"
)

func TestExplainOptOut(t *testing.T) {
	addr := netip.MustParseAddr("10.1.0.9")
	pod := snapshot.Optout{Kind: "netns", ID: 5, Pod: "shop/web", Addrs: []netip.Addr{addr}, Why: "mesh", Key: maps.OptoutKey{Id: 5, Kind: maps.OptoutNetns}}
	host := snapshot.Optout{Kind: "cgroup", ID: 7, Pod: "shop/agent", Why: "runtime", Key: maps.OptoutKey{Id: 7, Kind: maps.OptoutCgroup}}
	for _, test := range []struct {
		name     string
		question string
		self     Namespace
		rows     []snapshot.Optout
		outcome  Outcome
		says     string
	}{
		{"by its address", "tcp 10.1.0.9 10.96.0.10:80", Namespace{}, []snapshot.Optout{pod}, LeftAlone, "shop/web has opted out of socket balancing (mesh)"},
		{"by its namespace", "tcp 10.1.0.8 10.96.0.10:80", Namespace{Cookie: 5, Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.8")}},
			[]snapshot.Optout{pod}, LeftAlone, "shop/web has opted out"},
		{"another pod", "tcp 10.1.0.8 10.96.0.10:80", Namespace{}, []snapshot.Optout{pod, host}, ToBackend, ""},
		{"no service", "tcp 10.1.0.9 10.96.0.10:81", Namespace{}, []snapshot.Optout{pod}, LeftAlone, "no service has"},
		{"no backends", "tcp 10.1.0.9 10.96.0.13:80", Namespace{}, []snapshot.Optout{pod}, LeftAlone, "shop/web has opted out"},
		{"the node", "tcp node 10.96.0.10:80", Namespace{}, []snapshot.Optout{pod, host}, ToBackend, "1 pods in the node's network namespace"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := newAsked()
			a.Add(tables.Wants{Name: "shop/none/tcp4", Frontends: map[string]uint32{"10.96.0.13:80": maps.ClusterIP}})
			a.facts.optouts = test.rows
			q := question(test.question)
			q.Self = test.self
			e := a.ask(t, q)
			var text strings.Builder
			if err := e.WriteText(&text); err != nil {
				t.Fatal(err)
			}
			if e.Outcome != test.outcome || !strings.Contains(text.String(), test.says) || len(e.Candidates) > 0 != (test.outcome == ToBackend) {
				t.Errorf("%s, want %s and %q in:\n%s", e.Outcome, test.outcome, test.says, text.String())
			}
			if strings.Contains(text.String(), "network namespace have opted out") != (test.name == "the node") {
				t.Errorf("notes: %q", e.Notes)
			}
		})
	}
}
