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

// series is what a scrape says of one metric.
type series struct {
	name, kind, help string
	labels           []string
}

// listed reads a scrape. A histogram's lines are those of its parts, which have its labels.
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

The agent serves these metrics at ` + "`/metrics`" + ` ([address and access](../README.md#metrics-and-health-checks)), besides those of Go and of the
process (` + "`go_*`" + `, ` + "`process_*`" + `). See [alerts.md](alerts.md) for what to alert on, and [drops.md](drops.md) for the cause and cure of what is
dropped.

| metric | type | labels | what it says |
| --- | --- | --- | --- |
`

// TestPage holds that docs/metrics.md has every metric, with what is said of it, and that names of the cluster are labels of none but
// those that tell of pods that somebody has given a rate: elsewhere the number of series would be that of what there is in the cluster.
func TestPage(t *testing.T) {
	list, err := os.ReadFile("testdata/metrics.txt") // which TestScrape holds
	if err != nil {
		t.Fatal(err)
	}
	want := pageHead
	for _, s := range listed(string(list)) {
		if s.kind == "" || s.help == "" {
			t.Errorf("%s: type %q, help %q", s.name, s.kind, s.help)
		}
		for _, label := range s.labels {
			if slices.Contains([]string{"namespace", "pod", "service", "name", "backend", "node"}, label) && !strings.HasPrefix(s.name, "fairlead_bandwidth_") {
				t.Errorf("%s has the label %s, and README.md says that it has none like it", s.name, label)
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
