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

	"fairlead.io/fairlead/test/rig"
)

// prometheus is a Prometheus that scrapes the agents and evaluates their alerts, as an operator
// would run it.
type prometheus struct {
	client http.Client
	ended  chan struct{}
	log    bytes.Buffer // to be read only after ended is closed
}

// startPrometheus starts Prometheus where it can reach the agents, at a port of their nodes. It
// scrapes every second to keep the test short.
func (f *fixture) startPrometheus(port string) *prometheus {
	f.t.Helper()
	alerts, err := filepath.Abs(filepath.Join(root, "charts/fairlead/alerts.yaml"))
	if err != nil {
		f.t.Fatal(err)
	}
	config := "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files: [" + alerts + "]\nscrape_configs:\n- job_name: fairlead\n  static_configs:\n"
	for i, name := range f.Names() {
		at := net.JoinHostPort(f.Family.Node(i + 1)[0].Addr().String(), port)
		config += fmt.Sprintf("  - {targets: [%q], labels: {node: %s}}\n", at, name)
	}
	dir := f.t.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
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

// seen has Prometheus scrape the agents at a port, and checks that the expressions asked for, with at least as
// many metrics, have data from each node, and that no alert is pending or firing.
func (f *fixture) seen(port string, asked func(expr string) bool, metrics int) {
	p, expressions := f.startPrometheus(port), f.expressions(asked)
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
	judged := 0
	for _, g := range data.Groups {
		for _, r := range g.Rules {
			judged++
			if r.Health != "ok" || r.State != "inactive" {
				f.t.Errorf("alert %s is %s, health %s %s", r.Name, r.State, r.Health, r.LastError)
			}
		}
	}
	if judged < 20 {
		f.t.Errorf("only %d alerts were evaluated", judged)
	}
}
