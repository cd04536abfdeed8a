package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// metric is a metric of the agent.
type metric struct {
	name, help, kind string
	labels           []string
}

// metricList reads the list that package metrics keeps.
func metricList(t testing.TB) (all []metric) {
	t.Helper()
	content, err := os.ReadFile("../../pkg/metrics/testdata/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	label := regexp.MustCompile(`([a-z_]+)="`)
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 4)
		switch {
		case fields[0] == "#" && fields[1] == "HELP":
			all = append(all, metric{name: fields[2], help: fields[3]})
		case fields[0] == "#" && fields[1] == "TYPE":
			all[len(all)-1].kind = fields[3]
		default:
			m := &all[len(all)-1]
			for _, found := range label.FindAllStringSubmatch(line, -1) {
				if !slices.Contains(m.labels, found[1]) {
					m.labels = append(m.labels, found[1])
				}
			}
		}
	}
	return all
}

// wrongQuery returns an error if a query uses a metric, or a label of one, that does not exist.
func wrongQuery(list []metric, query string) error {
	// The labels that Prometheus and the chart's monitors add.
	labels := []string{"instance", "job", "node", "le"}
	matcher := regexp.MustCompile(`([a-z_]+) *(=~|!~|!=|=)`)
	used := regexp.MustCompile(`\b((?:fairlead|kubeproxy)_[a-z0-9_]+|up)\b(\{[^}]*\})?`).FindAllStringSubmatch(query, -1)
	if len(used) == 0 {
		return fmt.Errorf("no metric of the agent is in %s", query)
	}
	for _, use := range used {
		own := slices.Clone(labels)
		if use[1] != "up" {
			at := slices.IndexFunc(list, func(m metric) bool {
				return m.name == use[1] || m.kind == "histogram" && slices.Contains([]string{m.name + "_bucket", m.name + "_sum", m.name + "_count"}, use[1])
			})
			if at < 0 {
				return fmt.Errorf("there is no metric %s", use[1])
			}
			own = append(own, list[at].labels...)
		}
		for _, found := range matcher.FindAllStringSubmatch(use[2], -1) {
			if !slices.Contains(own, found[1]) {
				return fmt.Errorf("%s has no label %s", use[1], found[1])
			}
		}
		labels = append(labels, own...)
	}
	for _, group := range regexp.MustCompile(`\b(?:by|on) *\(([^)]*)\)`).FindAllStringSubmatch(query, -1) {
		for name := range strings.SplitSeq(group[1], ",") {
			if !slices.Contains(labels, strings.TrimSpace(name)) {
				return fmt.Errorf("nothing has the label %s: %s", name, query)
			}
		}
	}
	return nil
}

func TestWrongQueries(t *testing.T) {
	t.Parallel()
	list := metricList(t)
	for query, want := range map[string]string{
		"vector(1)":                             "no metric",
		"fairlead_degrade == 1":                 "there is no metric fairlead_degrade",
		"fairlead_degraded_bucket":              "there is no metric",
		`fairlead_ipam_addresses{stat="x"}`:     "no label stat",
		"sum by (map) (fairlead_degraded)":      "nothing has the label map",
		"a / on (mode) fairlead_map_entries":    "nothing has the label mode",
		`fairlead_map_entries{map="ct",a!~"."}`: "no label a",
	} {
		if err := wrongQuery(list, query); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", query, err, want)
		}
	}
	if err := wrongQuery(list, `sum by (le, ip_family) (rate(fairlead_network_programming_duration_seconds_bucket{instance=~"a"}[5m]))`); err != nil {
		t.Error(err)
	}
}

// alerts is the file in the form in which Prometheus reads it.
type alerts struct {
	Groups []struct {
		Name  string
		Rules []struct {
			Alert, Expr, For    string
			Labels, Annotations map[string]string
		}
	}
}

// Alerts use only metrics that exist, and say what is wrong, why, and what to do. docs/alerts.md
// lists all of them.
func TestAlerts(t *testing.T) {
	t.Parallel()
	var file alerts
	readYAML(t, "alerts.yaml", &file)
	list, seen := metricList(t), map[string]bool{}
	cases, err := os.ReadFile("testdata/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	field := regexp.MustCompile(`\$labels\.([a-z_]+)`)
	text := "<!-- Generated from charts/fairlead/alerts.yaml: go test ./test/chart -update -->\n\n" + alertsHead
	for _, group := range file.Groups {
		for _, r := range group.Rules {
			if err := wrongQuery(list, r.Expr); err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
			if seen[r.Alert] {
				t.Errorf("%s is defined twice", r.Alert)
			}
			seen[r.Alert] = true
			if !strings.Contains(string(cases), `alertname="`+r.Alert+`"`) {
				t.Errorf("%s: testdata/alerts.yaml has no case for it", r.Alert)
			}
			if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
				t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
			}
			for _, name := range []string{"summary", "cause", "cure"} {
				if !strings.HasSuffix(r.Annotations[name], ".") {
					t.Errorf("%s: %s is not a sentence: %q", r.Alert, name, r.Annotations[name])
				}
				for _, found := range field.FindAllStringSubmatch(r.Annotations[name], -1) {
					if err := wrongQuery(list, "sum by ("+found[1]+") ("+r.Expr+")"); err != nil {
						t.Errorf("%s: %s: %v", r.Alert, name, err)
					}
				}
			}
			wait := ""
			if r.For != "" {
				wait = ", for " + r.For
			}
			text += fmt.Sprintf("## %s\n\n%s: `%s`%s\n\n**Cause.** %s\n\n**Cure.** %s\n\n", r.Alert, r.Labels["severity"], r.Expr, wait, r.Annotations["cause"], r.Annotations["cure"])
		}
	}
	for _, command := range regexp.MustCompile("`fairlead ([a-z-]+(?: [a-z]+)?)`").FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join("../../docs/cli", "fairlead_"+strings.ReplaceAll(command[1], " ", "_")+".md")); err != nil {
			t.Errorf("there is no command fairlead %s", command[1])
		}
	}
	hold(t, "docs/alerts.md", strings.TrimSuffix(text, "\n"))
}

const alertsHead = "# Alerts\n" + `
The chart's ` + "`metrics.prometheusRule.enabled`" + ` gives these alerts to the Prometheus operator. For a Prometheus without the operator, use
` + "`charts/fairlead/alerts.yaml`" + `; it must scrape the agents as the job "fairlead".

`

// The operator gets the alerts of the file, with a link to more.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	reached := at("metrics.address", ":10249")
	find := func(all []manifest, file string) string {
		t.Helper()
		for _, m := range all {
			if m.file == file && !strings.Contains(m.text, "kind: Service\n") {
				return m.text
			}
		}
		t.Fatalf("%s renders nothing", file)
		return ""
	}
	var rule struct {
		Spec alerts
	}
	decode(t, find(render(t, at("metrics.prometheusRule", values{"enabled": true, "labels": values{"release": "p"}})), "prometheusrule.yaml"), &rule)
	var file alerts
	readYAML(t, "alerts.yaml", &file)
	for i, group := range file.Groups {
		for j, r := range group.Rules {
			have := rule.Spec.Groups[i].Rules[j]
			if have.Annotations["runbook"] != "docs/alerts.md#"+strings.ToLower(r.Alert) || have.Expr != r.Expr || have.Annotations["summary"] != r.Annotations["summary"] {
				t.Errorf("%s: %+v", r.Alert, have)
			}
		}
	}
	const common = "map[sourceLabels:[__meta_kubernetes_pod_node_name] targetLabel:node] map[replacement:fairlead targetLabel:job]"
	for value, want := range map[string]struct{ of, port, relabelings string }{
		"serviceMonitor": {"servicemonitor.yaml", "metrics", common},
		"podMonitor": {"podmonitor.yaml", "", common + " map[action:keep regex:agent sourceLabels:[__meta_kubernetes_pod_container_name]]" +
			" map[regex:([^:]+) replacement:$1:10249 sourceLabels:[__meta_kubernetes_pod_ip] targetLabel:__address__]" +
			" map[regex:(.*:.*) replacement:[$1]:10249 sourceLabels:[__meta_kubernetes_pod_ip] targetLabel:__address__]"},
	} {
		all := render(t, reached, at("metrics."+value, values{"enabled": true, "interval": "7s", "labels": values{"release": "p"}}))
		var monitor struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Selector                       struct{ MatchLabels map[string]string }
				PodMetricsEndpoints, Endpoints []struct {
					Port, Path, Interval string
					PortNumber           int // selects only ports that containers declare, and these declare none
					Relabelings          []map[string]any
				}
			}
		}
		decode(t, find(all, want.of), &monitor)
		endpoints := append(monitor.Spec.PodMetricsEndpoints, monitor.Spec.Endpoints...)
		if len(endpoints) != 1 || endpoints[0].Path != "/metrics" || endpoints[0].Interval != "7s" || endpoints[0].PortNumber != 0 || endpoints[0].Port != want.port {
			t.Errorf("%s: %+v", value, endpoints)
		}
		if have := fmt.Sprint(endpoints[0].Relabelings); have != "["+want.relabelings+"]" {
			t.Errorf("%s: %v", value, have)
		}
		pods := daemonSet(t).Spec.Template.Labels
		for name, want := range monitor.Spec.Selector.MatchLabels {
			if pods[name] != want {
				t.Errorf("%s selects %s=%s, but agents have %q", value, name, want, pods[name])
			}
		}
		if monitor.Metadata.Labels["release"] != "p" {
			t.Errorf("%s: labels %v", value, monitor.Metadata.Labels)
		}
	}
	if _, err := template(t, reached, at("metrics.podMonitor.enabled", true), at("metrics.serviceMonitor.enabled", true)); err == nil || !strings.Contains(err.Error(), "counted twice") {
		t.Errorf("both: %v", err)
	}
}
