package chart

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// view is a panel of the dashboard: lines with their legends, for the chosen nodes.
type view struct {
	title, unit string
	lines       [][2]string // legend, query; $i is the variable for the chosen nodes
}

// board returns the panels that an operator looks at first, in rows.
func board() []struct {
	title string
	views []view
} {
	type row = struct {
		title string
		views []view
	}
	return []row{
		{"Nodes", []view{
			{"Agents that answer", "none", [][2]string{{"up", `sum(up{job="fairlead"})`}, {"all", `count(up{job="fairlead"})`}}},
			{"Degraded", "none", [][2]string{{"{{instance}}", `fairlead_degraded{$i} > 0`}}},
			{"Programs missing", "none", [][2]string{
				{"{{instance}} {{program}}", `fairlead_program_attached{$i} == 0`}, {"{{instance}} {{device}} {{hook}}", `fairlead_device_attached{$i} == 0`},
			}},
			{"Services", "none", [][2]string{
				{"services", `max(fairlead_services{$i})`}, {"frontends", `max(fairlead_frontends{$i})`}, {"backends", `max(fairlead_backends{$i})`},
			}},
		}},
		{"Changes", []view{
			{"From the change of an endpoint to the maps", "s", [][2]string{
				{"median", `histogram_quantile(0.5, sum by (le) (rate(fairlead_network_programming_duration_seconds_bucket{$i}[5m])))`},
				{"99 in 100", `histogram_quantile(0.99, sum by (le) (rate(fairlead_network_programming_duration_seconds_bucket{$i}[5m])))`},
			}},
			{"Oldest change that waits", "s", [][2]string{{"{{instance}}", `fairlead_reconcile_oldest_change_age_seconds{$i}`}}},
			{"Rows written", "wps", [][2]string{{"{{instance}}", `rate(fairlead_reconcile_writes_total{$i}[5m])`}}},
			{"Errors", "none", [][2]string{
				{"{{instance}} maps", `increase(fairlead_reconcile_errors_total{$i}[5m]) > 0`}, {"{{instance}} objects", `fairlead_source_errors{$i} > 0`},
			}},
			{"Quota of the namespace that wants most", "percentunit", [][2]string{
				{"{{instance}} {{quota}}", `fairlead_namespace_quota_wanted{$i} / (fairlead_namespace_quota_limit{$i} > 0)`},
			}},
		}},
		{"Traffic", []view{
			{"Packets, and calls of sockets", "pps", [][2]string{{"{{hook}}", `sum by (hook) (rate(fairlead_datapath_packets_total{$i}[5m]))`}}},
			{"Bytes", "Bps", [][2]string{{"{{hook}}", `sum by (hook) (rate(fairlead_datapath_bytes_total{$i}[5m]))`}}},
			{"Drops", "pps", [][2]string{{"{{hook}} {{reason}}", `sum by (hook, reason) (rate(fairlead_drop_packets_total{$i}[5m])) > 0`}}},
			{"Sockets aborted, their backend gone", "cps", [][2]string{{"{{protocol}}", `sum by (protocol) (rate(fairlead_stale_sockets_aborted_total{$i}[5m]))`}}},
		}},
		{"Flows", []view{
			{"Rows of flows", "none", [][2]string{{"{{protocol}} {{state}}", `sum by (protocol, state) (fairlead_conntrack_entries{$i})`}}},
			{"Of the room that there may be", "percentunit", [][2]string{
				{"{{instance}}", `sum by (instance) (fairlead_conntrack_entries{$i,state!="half-open"}) / on (instance) (fairlead_conntrack_rows_limit{$i} > 0)`},
			}},
			{"Established", "cps", [][2]string{{"{{instance}}", `rate(fairlead_conntrack_opened_total{$i}[5m])`}}},
			{"Without room", "cps", [][2]string{{"{{instance}} {{hook}}", `rate(fairlead_conntrack_insert_failures_total{$i}[5m]) > 0`}}},
			{"SNAT ports in use toward one destination", "percentunit", [][2]string{
				{"{{instance}} {{user}}", `fairlead_snat_ports_used{$i} / (fairlead_snat_ports_limit{$i} > 0)`},
			}},
		}},
		{"Maps", []view{
			{"Rows in use", "percentunit", [][2]string{{"{{instance}} {{map}}", `fairlead_map_pressure_ratio{$i}`}}},
			{"Memory", "bytes", [][2]string{{"{{map}}", `max by (map) (fairlead_map_memory_bytes{$i})`}}},
			{"Rows pushed out", "cps", [][2]string{{"{{instance}} {{map}}", `rate(fairlead_map_evictions_total{$i}[5m]) > 0`}}},
			{"Damage found", "none", [][2]string{{"{{instance}}", `increase(fairlead_verify_damage_total{$i}[1h]) > 0`}}},
		}},
		{"Pods", []view{
			{"Addresses", "none", [][2]string{{"{{family}} {{state}}", `sum by (family, state) (fairlead_ipam_addresses{$i})`}}},
			{"Interfaces of pods", "none", [][2]string{{"{{instance}}", `fairlead_pods_attached{$i}`}}},
			{"How long the plugin waits, 99 in 100", "s", [][2]string{
				{"{{verb}}", `histogram_quantile(0.99, sum by (le, verb) (rate(fairlead_cni_request_duration_seconds_bucket{$i}[5m])))`},
			}},
			{"Routes to other nodes", "none", [][2]string{{"{{instance}}", `fairlead_fabric_routes{$i}`}}},
		}},
		{"Policies", []view{
			{"Not in force", "none", [][2]string{
				{"{{instance}} as they were", `fairlead_policy_in_force{$i} == 0`}, {"{{instance}} over quota", `fairlead_policy_refused_namespaces{$i} > 0`},
			}},
			{"From a change to its being in force", "s", [][2]string{
				{"median", `histogram_quantile(0.5, sum by (le) (rate(fairlead_policy_update_duration_seconds_bucket{$i}[5m])))`},
				{"99 in 100", `histogram_quantile(0.99, sum by (le) (rate(fairlead_policy_update_duration_seconds_bucket{$i}[5m])))`},
				{"oldest that waits at {{instance}}", `fairlead_policy_oldest_change_age_seconds{$i} > 0`},
			}},
			{"Changes, and errors", "none", [][2]string{
				{"{{instance}}", `increase(fairlead_policy_updates_total{$i}[5m])`}, {"{{instance}} errors", `increase(fairlead_policy_errors_total{$i}[5m]) > 0`},
			}},
			{"Rows in use", "percentunit", [][2]string{{"{{instance}} {{map}}", `fairlead_map_pressure_ratio{$i,map=~"policy_.*"}`}}},
			{"Packets denied", "pps", [][2]string{{"{{instance}} {{outcome}}", `sum by (instance, outcome) (rate(fairlead_policy_denied_packets_total{$i}[5m]))`}}},
			{"Policies that have denied most", "none", [][2]string{{"{{policy}} {{direction}}", `topk(10, sum by (policy, direction) (fairlead_policy_denials{$i}))`}}},
			{"Policies", "none", [][2]string{{"{{kind}}", `max by (kind) (fairlead_policy_objects{$i})`}, {"rules at {{instance}}", `fairlead_policy_rules{$i}`}}},
			{"Pods that policies are about", "none", [][2]string{{"{{instance}}", `fairlead_policy_pods{$i}`}}},
		}},
	}
}

// rest returns a panel for each metric that the rows above do not show.
func rest(list []metric, shown string) (views []view) {
	for _, m := range list {
		if shows(shown, m) {
			continue
		}
		legend := "{{instance}}"
		for _, label := range m.labels {
			legend += " {{" + label + "}}"
		}
		query := m.name + "{$i}"
		switch m.kind {
		case "counter":
			query = "rate(" + query + "[5m])"
		case "histogram":
			legend, query = "99 in 100 at {{instance}}", "histogram_quantile(0.99, sum by (le, instance) (rate("+m.name+"_bucket{$i}[5m])))"
		}
		views = append(views, view{m.name, "short", [][2]string{{legend, query}}})
	}
	return views
}

// shows reports whether one of the queries uses a metric. Metrics with kube-proxy's name also exist
// under ours, so they count as shown.
func shows(queries string, m metric) bool {
	return strings.Contains(queries, m.name+"{") || strings.Contains(queries, m.name+"_bucket{") || strings.HasPrefix(m.name, "kubeproxy_")
}

type object = map[string]any

func panel(v view, id, x, y int) object {
	source := object{"type": "prometheus", "uid": "${source}"}
	var targets []object
	for i, line := range v.lines {
		query := strings.ReplaceAll(line[1], "$i", `instance=~"$instance"`)
		targets = append(targets, object{"datasource": source, "refId": string(rune('A' + i)), "legendFormat": line[0], "expr": query})
	}
	return object{
		"id": id, "type": "timeseries", "title": v.title, "datasource": source, "targets": targets,
		"gridPos":     object{"x": x, "y": y, "w": 6, "h": 7},
		"fieldConfig": object{"defaults": object{"unit": v.unit, "min": 0}, "overrides": []object{}},
	}
}

// dashboard returns the dashboard, with four panels in a row.
func dashboard(list []metric) object {
	var panels []object
	id, y, shown := 0, 0, fmt.Sprint(board())
	lay := func(views []view, top int) (laid []object) {
		for i, v := range views {
			id++
			laid = append(laid, panel(v, id, i%4*6, top+i/4*7))
		}
		return laid
	}
	for _, row := range board() {
		id++
		panels = append(panels, object{"id": id, "type": "row", "title": row.title, "collapsed": false, "panels": []object{}, "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1}})
		panels = append(panels, lay(row.views, y+1)...)
		y += 1 + (len(row.views)+3)/4*7
	}
	id++
	panels = append(panels, object{
		"id": id, "type": "row", "title": "All else", "collapsed": true, "panels": lay(rest(list, shown), y+1), "gridPos": object{"x": 0, "y": y, "w": 24, "h": 1},
	})
	return object{
		"uid": "fairlead", "title": "fairlead", "tags": []string{"fairlead"}, "schemaVersion": 39, "version": 1, "editable": true, "refresh": "30s",
		"time": object{"from": "now-1h", "to": "now"}, "panels": panels,
		"templating": object{"list": []object{
			{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
			{
				"name": "instance", "label": "Node", "type": "query", "datasource": object{"type": "prometheus", "uid": "${source}"},
				"query": "label_values(fairlead_build_info, instance)", "multi": true, "includeAll": true, "allValue": ".*", "refresh": 2,
				"current": object{"text": "All", "value": "$__all"},
			},
		}},
	}
}

// The dashboard uses only metrics that exist, and shows every one.
func TestDashboard(t *testing.T) {
	t.Parallel()
	list := metricList(t)
	content, err := json.MarshalIndent(dashboard(list), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	hold(t, "charts/fairlead/dashboard.json", string(content)+"\n")
	var shown string
	for _, row := range append(board(), struct {
		title string
		views []view
	}{views: rest(list, fmt.Sprint(board()))}) {
		for _, v := range row.views {
			for _, line := range v.lines {
				query := strings.ReplaceAll(line[1], "$i", `instance=~".*"`)
				shown += query
				if err := wrongQuery(list, query); err != nil {
					t.Errorf("%s: %v", v.title, err)
				}
				for _, label := range strings.Split(line[0], "{{")[1:] {
					label, _, _ = strings.Cut(label, "}}")
					if err := wrongQuery(list, "sum by ("+label+") ("+query+")"); err != nil {
						t.Errorf("%s: legend: %v", v.title, err)
					}
				}
			}
		}
	}
	for _, m := range list {
		if !shows(shown, m) {
			t.Errorf("%s is on no panel", m.name)
		}
	}
	for _, m := range render(t, at("dashboards", values{"enabled": true, "labels": values{"folder": "x"}})) {
		if c, ok := m.object.(*corev1.ConfigMap); ok && c.Name == "fairlead-dashboard" {
			if c.Data["fairlead.json"] != string(content)+"\n" || c.Labels["grafana_dashboard"] != "1" || c.Labels["folder"] != "x" {
				t.Errorf("Grafana gets another dashboard, or other labels: %v", c.Labels)
			}
			return
		}
	}
	t.Error("the chart renders no ConfigMap with the dashboard")
}
