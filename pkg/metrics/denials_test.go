package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// denialSeries returns the packets of the scrape's series of denials, by policy and direction.
func denialSeries(t *testing.T, list []Denial) map[[2]string]float64 {
	t.Helper()
	m := newMetrics(func() Sample { return Sample{Denials: list} })
	if _, err := promlint.New(strings.NewReader(scrape(t, m))).Lint(); err != nil {
		t.Fatalf("the page cannot be read: %v", err)
	}
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[[2]string]float64{}
	for _, family := range families {
		if family.GetName() != "fairlead_policy_denials" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			out[[2]string{labels["policy"], labels["direction"]}] = m.GetGauge().GetValue()
		}
	}
	return out
}

// Names are up to tenants. None of them may break the page, add series, or be taken for another's.
func TestHostileNames(t *testing.T) {
	hostile := []string{
		"networkpolicy shop/a\nfairlead_degraded 0", `networkpolicy shop/"} 1`, `networkpolicy shop/\`, "networkpolicy shop/\xff\xfe", "networkpolicy shop/\x00\x1b[2J",
		"networkpolicy shop/\u202egnp", "networkpolicy shop/" + strings.Repeat("x", 1<<20), "networkpolicy shop/" + strings.Repeat("x", 1<<20) + "y", "networkpolicy shop/others",
	}
	var list []Denial
	total := uint64(0)
	for i, name := range hostile {
		list = append(list, Denial{"shop", name, "egress", uint64(1 + i)})
		total += uint64(1 + i)
	}
	have := denialSeries(t, list)
	sum := 0.0
	for at, packets := range have {
		sum += packets
		if len(at[0]) > maxPolicyLabel || !strings.HasPrefix(at[0], "networkpolicy shop/") {
			t.Errorf("a label of %d bytes: %.60q", len(at[0]), at[0])
		}
		for _, c := range at[0] {
			if c < ' ' || c > '~' {
				t.Errorf("%.60q has %q", at[0], c)
			}
		}
	}
	// Two that differ only where they are too long count as one.
	if len(have) != len(hostile)-1 || sum != float64(total) {
		t.Errorf("%d series with %v packets, want %d with %d", len(have), sum, len(hostile)-1, total)
	}
}

// The policies that deny most have series, those of all namespaces in turns, and the rest is counted as others.
func TestBoundedDenials(t *testing.T) {
	list := []Denial{
		{"quiet", "networkpolicy quiet/one", "ingress", 1}, {"", "clusternetworkpolicy admin/one", "egress", 2}, {"", "", "ingress", 3},
		{"loud", "networkpolicy loud/most", "ingress", 1}, {"loud", "networkpolicy loud/most", "egress", 1 << 30},
	}
	for i := range 1000 {
		list = append(list, Denial{"loud", fmt.Sprintf("networkpolicy loud/%04d", i), "egress", 10_000 - uint64(i)})
	}
	have, rest := denialSeries(t, list), 0
	for i := maxDenying - 3; i < 1000; i++ {
		rest += 10_000 - i
	}
	for at, want := range map[[2]string]float64{
		{"networkpolicy quiet/one", "ingress"}: 1, {"clusternetworkpolicy admin/one", "egress"}: 2, {"", "ingress"}: 3, {"networkpolicy loud/most", "ingress"}: 1,
		{"networkpolicy loud/most", "egress"}: 1 << 30, {"networkpolicy loud/0000", "egress"}: 10_000, {"others", "egress"}: float64(rest),
	} {
		if packets, found := have[at]; !found || packets != want {
			t.Errorf("%v: %v (%v), want %v", at, packets, found, want)
		}
	}
	if want := maxDenying + 1 + 1 + 1; len(have) != want { // loud/most has two, and there are others, and those of no policy
		t.Errorf("%d series, want %d", len(have), want)
	}
}

// Without policies there are no series of them.
func TestNoPolicies(t *testing.T) {
	page := scrape(t, newMetrics(func() Sample { s := sample(); s.Enforced, s.Denials = nil, nil; return s }))
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "fairlead_policy_") && !strings.HasPrefix(line, "fairlead_policy_update_duration_seconds") {
			t.Errorf("without policies: %s", line)
		}
	}
}
