package metrics

import (
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/monitor"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/queues"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/routes"
	"fairlead.io/fairlead/pkg/sockets"
	"fairlead.io/fairlead/pkg/sockmap"
)

var update = flag.Bool("update", false, "rewrite testdata")

func rows(n int) *int { return &n }

// sample returns a Sample with a different value in every field.
func sample() Sample {
	return Sample{
		Degraded: true,
		Kernel: Kernel{
			Reading: mapstats.Reading{Counters: []reasons.Counter{{Hook: "sock", Reason: "none", Packets: 70, Bytes: 7000}, {Hook: "sock", Reason: "no-backend", Packets: 3},
				{Hook: "tc", Reason: "flows-full", Packets: 4}, {Hook: "pod", Reason: "policy", Packets: 165}, {Hook: "tc", Reason: "policy", Packets: 100},
				{Hook: "pod", Reason: "policy-audit", Packets: 166}},
				Maps: []mapstats.Map{
					{Name: "slots", Capacity: 400, Memory: 4096, Entries: rows(100), Pressure: 0.25},
					{Name: "affinity", Capacity: 65536, Memory: 1 << 20, Entries: rows(32768), Pressure: 0.5, Evictions: new(uint64(91))},
					{Name: "conn_origins", Capacity: 800, Memory: 2048},
				}, Fragments: mapstats.Fragments{Stored: 101, Returned: 102, Lost: 103, Refused: 104}},
			Programs: []datapath.ProgramStatus{{Name: "sock_connect4", Attached: true}, {Name: "sock_connect6"}, {Name: "sock_bind4", Idle: true}},
			Pins:     &datapath.Pins{Missing: []string{"/pins/a"}, Restored: 53},
			Attachment: &datapath.Attachment{Checked: time.Unix(1004, 0), Mended: 51, Proofs: []datapath.Proof{
				{Family: "IPv4", State: "proven"}, {Family: "IPv6", State: "missed"}, {Family: "IPvX", State: "unknown"},
			}},
			Outside: &datapath.Outside{Mended: 52, Devices: []datapath.DeviceStatus{{Name: "eth0", TC: "tcx", XDP: "native"}, {Name: "eth1"}}},
		},
		Stats: reconcile.Stats{
			Passes: 11, Compiled: 12, Writes: 13, Errors: 14, Growths: 15, Barriers: 16, Services: 17, Frontends: 18, Slots: 100,
			Backends: 20, Pending: 21, Checks: 22, Damage: 23, Repaired: 24,
			LastPass: time.Unix(1000, 5e8), LastApplied: time.Unix(1001, 0), LastCheck: time.Unix(1002, 0),
			Quotas: [4]reconcile.QuotaUse{{Quota: "frontends", Wanted: 123, Limit: 124}, {Quota: "hosted", Wanted: 125, Limit: 126}, {Quota: "backends", Wanted: 127, Limit: 128}, {Quota: "slots", Wanted: 129, Limit: 130}},
		},
		Reasons: map[string]int{"FrontendConflict": 2},
		Source: Source{
			Kinds: []Kind{{Name: "services", Synced: true, Lists: 31, Failures: 32}, {Name: "pods"}}, Errors: 33,
			LastChange: time.Unix(1003, 0), EventsDropped: 34,
		},
		Policies: new(35),
		Enforced: &policies.Status{
			Mode: "audit", NetworkPolicies: 151, ClusterNetworkPolicies: 152, Pods: 153, ClusterPods: 154, Subjects: 155, Classes: 156, Rules: 157, Generation: 158, Updates: 159,
			Errors: 160, Written: time.Unix(1006, 0), Refused: []string{"one", "two"},
		},
		Denials: []Denial{
			{"shop", "networkpolicy shop/web", "ingress", 161}, {"shop", "networkpolicy shop/web", "egress", 162}, {"shop", "networkpolicy shop/web", "egress", 100},
			{"", "clusternetworkpolicy admin/tenants", "egress", 163}, {"", "", "ingress", 164},
		},
		OptOut: optout.Status{Pods: 41, Waiting: 42, NotCovered: 43},
		Sockets: sockets.Stats{
			Scans: 51, Errors: 52, Took: 1500 * time.Millisecond, Aborted: map[model.Protocol]uint64{model.TCP: 53, model.UDP: 54},
		},
		Conntrack: conntrack.Stats{
			Passes: 61, Errors: 62, Took: 2500 * time.Millisecond, LastTook: 25 * time.Millisecond, LastPass: time.Unix(1005, 0),
			Entries: conntrack.Entries{{63, 64, 65}, {66, 67, 68}, {69, 70, 71}}, Rows: [2]int{200, 72}, Idle: 73, Stale: 74,
			Ports: [conntrack.PortUsers]conntrack.PortUse{{Used: 75, Of: 76}, {Used: 77, Of: 78}, {Used: 79, Of: 80}},
		},
		Routes:  routes.Status{Following: true, Changes: 91, Flaps: 92, Errors: 93},
		Monitor: monitor.Stats{Clients: 81, Events: 82, Lost: 83},
		Rates: []Rate{
			{RateOf{"shop", "web", "egress"}, 107, 108, 109, 110}, {RateOf{"shop", "web", "ingress"}, 111, 112, 113, 114},
			{RateOf{"shop", "", "egress"}, 115, 116, 117, 118}, {RateOf{"", "", "egress"}, 119, 120, 121, 122},
		},
		Bandwidth: &queues.Status{Devices: []string{"eth0"}, Lacking: map[string]string{"eth1": "its queue is htb"}, Dropped: 123},
		Pods:      &podnet.Stats{Pods: 104, Reclaimed: 105, Mended: 106, Families: map[string]podnet.AddressCount{"IPv4": {Used: 101, Cooling: 102, Free: 103}}},
		Fabric:    &fabric.Status{Routes: 107, Refused: []string{"one"}, Mended: 108},
		Sockmap: &sockmap.Status{
			State: sockmap.State{On: true, Sockets: 131},
			Tallies: sockmap.Tallies{
				Watched: 132, Admitted: 133, Left: 134, Full: 135, Redirected: sockmap.Tally{Count: 136, Bytes: 137},
				Passed: map[string]sockmap.Tally{"run": {Count: 138, Bytes: 139}}, Excluded: map[string]uint64{"splice": 140},
			},
			Checks: sockmap.Checked{Passed: 141, Failed: 142},
		},
	}
}

func newMetrics(read func() Sample) *Metrics {
	return New(Build{Version: "v1", Commit: "abc", Go: "go1", Kernel: "6.1"}, read)
}

func scrape(t testing.TB, m *Metrics) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != 200 {
		t.Fatalf("the scrape answers %d: %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

// ownLines leaves out the lines of Go's and the process's collectors, and most buckets of the
// histograms.
func ownLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.Contains(line, "_bucket{") {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

// TestScrape compares a scrape with testdata/metrics.txt, which is also the list of all metrics.
func TestScrape(t *testing.T) {
	m := newMetrics(sample)
	m.Pass(20 * time.Millisecond)
	m.Programmed(model.IPv4, 250*time.Millisecond)
	m.Answered("/healthz", 503)
	m.Asked("allocate", "ok", 2*time.Millisecond)
	m.Enforced(40 * time.Millisecond)
	const path = "testdata/metrics.txt"
	have := ownLines(scrape(t, m))
	if *update {
		if err := os.WriteFile(path, []byte(have), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), have); diff != "" {
		t.Errorf("rewrite %s with -update if this is right:\n%s", path, diff)
	}
}

// Counters that could not be read are missing. As zeros they would look like a restart.
func TestUnread(t *testing.T) {
	page := scrape(t, newMetrics(func() Sample {
		s := sample()
		s.Sockmap = &sockmap.Status{Unread: "boom"}
		s.Kernel.Counters = nil
		return s
	}))
	if strings.Contains(page, "\nfairlead_sockmap_") || strings.Contains(page, "\nfairlead_policy_denied") || !strings.Contains(page, "\nfairlead_degraded") {
		t.Errorf("the page: %s", ownLines(page))
	}
}

func TestNames(t *testing.T) {
	m := newMetrics(sample)
	m.Answered("/healthz", 200)
	text := scrape(t, m)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	others := []string{"fairlead_", "go_", "process_", "kubeproxy_network_programming_duration_seconds", "promhttp_"}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok &&
			!slices.ContainsFunc(others, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
			t.Errorf("%s has no prefix of ours", strings.Fields(name)[0])
		}
	}
}

// TestIndicator checks that the indicator has the buckets that its readers rely on.
func TestIndicator(t *testing.T) {
	m := newMetrics(func() Sample { return Sample{} })
	m.Programmed(model.IPv6, 700*time.Millisecond)
	text := scrape(t, m)
	const name = `kubeproxy_network_programming_duration_seconds`
	for _, want := range []string{
		`_bucket{ip_family="IPv6",le="0.5"} 0`, `_bucket{ip_family="IPv6",le="1"} 1`, `_bucket{ip_family="IPv6",le="59"} 1`,
		`_bucket{ip_family="IPv6",le="115"} 1`, `_bucket{ip_family="IPv6",le="300"} 1`, `_count{ip_family="IPv6"} 1`, `_count{ip_family="IPv4"} 0`,
		`_sum{ip_family="IPv6"} 0.7`,
	} {
		if !strings.Contains(text, name+want+"\n") {
			t.Errorf("the scrape has no %s%s", name, want)
		}
	}
	if got := strings.Count(text, name+`_bucket{ip_family="IPv4"`); got != 2+59+12+7+1 {
		t.Errorf("%d buckets", got)
	}
	if !strings.Contains(text, `fairlead_network_programming_duration_seconds_bucket{ip_family="IPv6",le="0.512"} 0`) {
		t.Error("the scrape has no finer indicator")
	}
}

// TestSeriesAreFew checks that the number of series does not depend on how much the cluster has.
func TestSeriesAreFew(t *testing.T) {
	count := func(n int) int {
		m := newMetrics(func() Sample {
			s := sample()
			s.Stats.Services, s.Stats.Backends, s.Source.Errors = n, n, n
			s.Reasons = map[string]int{"FrontendConflict": n}
			s.Denials = nil
			for i := range maxDenying + n {
				s.Denials = append(s.Denials, Denial{"shop", fmt.Sprint("networkpolicy shop/", i), "egress", 1})
			}
			return s
		})
		for range n {
			m.Programmed(model.IPv4, time.Second)
			m.Answered("/livez", 200)
		}
		return strings.Count(scrape(t, m), "\n")
	}
	if few, many := count(1), count(10_000); few != many {
		t.Errorf("%d lines with few objects, %d with many", few, many)
	}
}

func BenchmarkScrape(b *testing.B) {
	m := newMetrics(sample)
	for b.Loop() {
		scrape(b, m)
	}
}
