package metrics

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// series is what a scrape says about one metric.
type series struct {
	name, kind, help string
	labels           []string
}

// listed parses a scrape. The lines of a histogram are those of its parts, which have its labels.
func listed(text string) (all []series) {
	label := regexp.MustCompile(`[{,]([a-z_]+)="`)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			all = append(all, series{name: name, help: strings.ReplaceAll(help, `\n`, " ")})
			continue
		}
		last := &all[len(all)-1]
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			_, last.kind, _ = strings.Cut(rest, " ")
			continue
		}
		for _, found := range label.FindAllStringSubmatch(line, -1) {
			if !slices.Contains(last.labels, found[1]) {
				last.labels = append(last.labels, found[1])
			}
		}
	}
	return all
}

const pageHead = `<!-- Generated from what a scrape shows: go test ./pkg/metrics -update -->

# Metrics

The agent serves these metrics at ` + "`/metrics`" + ` ([address and access](monitoring.md#ports-and-health-checks)), besides those of Go and of the
process (` + "`go_*`" + `, ` + "`process_*`" + `). See [alerts.md](alerts.md) for what to alert on, and [drops.md](drops.md) for the cause and cure of what is
dropped.

| metric | type | labels | what it says |
| --- | --- | --- | --- |
`

// TestPage checks that docs/metrics.md lists every metric with its help, and that only the metrics
// of pods' rates and of policies' denials have labels with names from the cluster: elsewhere the number of
// series would grow with the cluster.
func TestPage(t *testing.T) {
	list, err := os.ReadFile("testdata/metrics.txt") // kept up to date by TestScrape
	if err != nil {
		t.Fatal(err)
	}
	want := pageHead
	for _, s := range listed(string(list)) {
		if s.kind == "" || s.help == "" {
			t.Errorf("%s: type %q, help %q", s.name, s.kind, s.help)
		}
		for _, label := range s.labels {
			if slices.Contains([]string{"namespace", "pod", "service", "name", "backend", "node", "policy"}, label) && !strings.HasPrefix(s.name, "fairlead_bandwidth_") && s.name != "fairlead_policy_denials" {
				t.Errorf("%s has the label %s, and docs/monitoring.md says that it has none like it", s.name, label)
			}
		}
		labels := ""
		if len(s.labels) > 0 {
			labels = "`" + strings.Join(s.labels, "`, `") + "`"
		}
		want += fmt.Sprintf("| `%s` | %s | %s | %s |\n", s.name, s.kind, labels, strings.ReplaceAll(s.help, "|", `\|`))
	}
	const path = "../../docs/metrics.md"
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("rewrite %s with -update if this is right:\n%s", path, diff)
	}
}
