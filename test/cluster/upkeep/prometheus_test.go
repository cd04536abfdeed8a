package upkeep

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/test/rig"
)

// prometheus is a Prometheus that scrapes the agents and evaluates their alerts, as an operator
// would run it.
type prometheus struct {
	client http.Client
	ended  chan struct{}
	log    bytes.Buffer // to be read only after ended is closed
}

// startPrometheus starts Prometheus where it can reach the agents. It scrapes every second to keep
// the test short.
func (f *fixture) startPrometheus() *prometheus {
	f.t.Helper()
	alerts, err := filepath.Abs(filepath.Join(root, "charts/fairlead/alerts.yaml"))
	if err != nil {
		f.t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{
		"global":     map[string]string{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{alerts}, "scrape_configs": []any{f.scrapeConfig()},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	dir := f.t.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		f.t.Fatal(err)
	}
	const listens = "127.0.0.1:9090"
	p := &prometheus{ended: make(chan struct{})}
	cmd := exec.Command(rig.Prometheus(f.t, "prometheus"), "--config.file="+file, "--storage.tsdb.path="+dir, "--web.listen-address="+listens)
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	control := f.Netns("control")
	if err := control.Start(cmd); err != nil {
		f.t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // its log shows why it ended
		close(p.ended)
	}()
	f.t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM) // an error means that it has ended
		<-p.ended
	})
	p.client.Transport = &http.Transport{DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
		err = control.Do(func() (err error) { conn, err = net.DialTimeout("tcp", listens, patience); return err })
		return conn, err
	}}
	return p
}

// scrapeConfig returns what the Prometheus operator makes of the chart's PodMonitor, with the targets
// that Prometheus would find by asking Kubernetes: Debian builds it without that.
func (f *fixture) scrapeConfig() map[string]any {
	f.t.Helper()
	values := f.helm("get", "values", "--namespace=kube-system", "--output=yaml", "fairlead")
	text := f.rig(strings.NewReader(values), "helm", "-prefix", f.Prefix, "--", "template", "--namespace=kube-system", "--values=-",
		"--set=metrics.podMonitor.enabled=true", "--show-only=templates/podmonitor.yaml", "fairlead", "charts/fairlead")
	var monitor struct {
		Spec struct {
			Selector            struct{ MatchLabels map[string]string }
			PodMetricsEndpoints []struct {
				Path        string
				Relabelings []map[string]any
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text), &monitor); err != nil {
		f.t.Fatalf("%v:\n%s", err, text)
	}
	if len(monitor.Spec.PodMetricsEndpoints) != 1 {
		f.t.Fatalf("want one endpoint:\n%s", text)
	}
	endpoint := monitor.Spec.PodMetricsEndpoints[0]
	for _, r := range endpoint.Relabelings {
		for theirs, name := range map[string]string{"sourceLabels": "source_labels", "targetLabel": "target_label"} {
			if value, ok := r[theirs]; ok {
				r[name] = value
				delete(r, theirs)
			}
		}
	}
	return map[string]any{
		"job_name": "podMonitor/kube-system/fairlead/0", "metrics_path": endpoint.Path, "relabel_configs": endpoint.Relabelings,
		"static_configs": f.discover(monitor.Spec.Selector.MatchLabels),
	}
}

// discovered is a target that Prometheus finds, with what it and the operator say about it.
type discovered struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// discover returns the targets of the pods that have the labels, as Prometheus finds them: one for
// each container, with the pod's address and no port as the containers declare none.
func (f *fixture) discover(labels map[string]string) (all []discovered) {
	f.t.Helper()
	var selector []string
	for name, value := range labels {
		selector = append(selector, name+"="+value)
	}
	var pods struct {
		Items []struct {
			Spec struct {
				NodeName                   string
				Containers, InitContainers []struct{ Name string }
			}
			Status struct{ PodIP string }
		}
	}
	text := f.mustAsk("--namespace=kube-system", "get", "pods", "--selector="+strings.Join(selector, ","), "--output=json")
	if err := json.Unmarshal([]byte(text), &pods); err != nil {
		f.t.Fatal(err)
	}
	for _, p := range pods.Items {
		for _, c := range slices.Concat(p.Spec.Containers, p.Spec.InitContainers) {
			all = append(all, discovered{[]string{p.Status.PodIP}, map[string]string{
				"__meta_kubernetes_pod_ip": p.Status.PodIP, "__meta_kubernetes_pod_container_name": c.Name, "__meta_kubernetes_pod_node_name": p.Spec.NodeName,
				"container": c.Name, // the operator adds it, so that every container is a target of its own
			}})
		}
	}
	return all
}

// ask queries the API and decodes the data of the answer into the value that into points to.
func (p *prometheus) ask(path string, query url.Values, into any) error {
	select {
	case <-p.ended:
		return errors.New("prometheus has ended: " + p.log.String())
	default:
	}
	answer, err := p.client.Get("http://prometheus/api/v1/" + path + "?" + query.Encode())
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var body struct {
		Error string
		Data  json.RawMessage
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return fmt.Errorf("%s: %s: %w", path, answer.Status, err)
	}
	if body.Error != "" {
		return fmt.Errorf("%s: %s", path, body.Error)
	}
	return json.Unmarshal(body.Data, into)
}

// nodes evaluates an expression, and returns the number of its series and the nodes that they come
// from.
func (p *prometheus) nodes(expr string) (series int, nodes []string, err error) {
	var data struct {
		Result []struct{ Metric map[string]string }
	}
	if err := p.ask("query", url.Values{"query": {expr}}, &data); err != nil {
		return 0, nil, fmt.Errorf("%s: %w", expr, err)
	}
	for _, r := range data.Result {
		nodes = append(nodes, r.Metric["node"])
	}
	slices.Sort(nodes)
	return len(data.Result), slices.Compact(nodes), nil
}

// Two kinds of metrics exist only with a feature that is off by default: those of connections that
// bypass TCP, and those of pods with a bandwidth limit. The latter are left to the tests of the pod
// network, which run on kernels with fq; without fq, agents are degraded.
var (
	pastTCP  = regexp.MustCompile(`fairlead_sockmap_`)
	optional = regexp.MustCompile(`fairlead_(bandwidth|sockmap)_`)
)

// expressions returns the expressions of the chart's dashboard for all nodes, as far as they are
// asked for.
func (f *fixture) expressions(asked func(expr string) bool) (list []string) {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "charts/fairlead/dashboard.json"))
	if err != nil {
		f.t.Fatal(err)
	}
	type panel struct {
		Targets []struct{ Expr string }
		Panels  []panel
	}
	var board panel
	if err := json.Unmarshal(text, &board); err != nil {
		f.t.Fatal(err)
	}
	var walk func(panels []panel)
	walk = func(panels []panel) {
		for _, p := range panels {
			for _, t := range p.Targets {
				if asked(t.Expr) {
					list = append(list, strings.ReplaceAll(t.Expr, "$instance", ".*"))
				}
			}
			walk(p.Panels)
		}
	}
	walk(board.Panels)
	return list
}

// seen has Prometheus scrape the agents, each once, and checks that the expressions asked for, with at
// least as many metrics, have data from each node, and that no alert is pending or firing.
func (f *fixture) seen(asked func(expr string) bool, metrics int) {
	p, expressions := f.startPrometheus(), f.expressions(asked)
	names := slices.Compact(slices.Sorted(slices.Values(regexp.MustCompile(`\bfairlead_\w+`).FindAllString(strings.Join(expressions, " "), -1))))
	if len(names) < metrics {
		f.t.Errorf("the dashboard shows only %d metrics", len(names))
	}
	// Every metric is needed twice, since a rate takes two samples. The agents take up to a minute
	// until they have counted NetworkPolicies.
	f.await("every agent has reported every metric twice", func() error {
		for _, name := range names {
			if _, nodes, err := p.nodes("count_over_time(" + name + "[5m]) > 1"); err != nil || !slices.Equal(nodes, f.Names()) {
				return fmt.Errorf("%s is reported by %q, %v", name, nodes, err)
			}
		}
		return nil
	})
	// Without brackets around an IPv6 address, only some versions of Prometheus find the port.
	if n, _, err := p.nodes(`up{job="fairlead",instance=~"([^:]+|\\[.+]):[0-9]+"}`); n != f.Nodes || err != nil {
		f.t.Errorf("Prometheus has %d targets with an address and a port, %v, want one on each node", n, err)
	}
	limit := regexp.MustCompile(`^(.*[})\]]) (?:>|==) 0$`) // has series only if something is wrong
	for _, expr := range expressions {
		if m := limit.FindStringSubmatch(expr); m != nil {
			if n, _, err := p.nodes(expr); n != 0 || err != nil {
				f.t.Errorf("%s: %d series, %v", expr, n, err)
			}
			expr = m[1]
		}
		if n, _, err := p.nodes(expr); n == 0 || err != nil {
			f.t.Errorf("%s: %d series, %v", expr, n, err)
		}
	}
	f.quiet(p)
}

// quiet fails the test for every alert that cannot be evaluated, is pending or fires.
func (f *fixture) quiet(p *prometheus) {
	type rule struct {
		Name, Health, LastError, State string
		LastEvaluation                 time.Time
	}
	var data struct{ Groups []struct{ Rules []rule } }
	since := time.Now()
	f.await("all alerts are evaluated", func() error {
		data.Groups = nil
		if err := p.ask("rules", nil, &data); err != nil {
			return err
		}
		for _, g := range data.Groups {
			for _, r := range g.Rules {
				if r.LastEvaluation.Before(since) {
					return errors.New(r.Name + " is not evaluated")
				}
			}
		}
		return nil
	})
	checked := 0
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			checked++
			if r.Health != "ok" || r.State != "inactive" {
				f.t.Errorf("alert %s is %s, health %s %s", r.Name, r.State, r.Health, r.LastError)
			}
		}
	}
	if checked < 20 {
		f.t.Errorf("only %d alerts were evaluated", checked)
	}
}
