package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/sockmap"
)

var update = flag.Bool("update", false, "write the golden files and docs/cli")

// result is what a command printed and returned.
type result struct {
	code           int
	stdout, stderr string
}

// fairlead runs a command in this process, with an empty environment.
func fairlead(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), &env{Stdout: &stdout, Stderr: &stderr, Args: args})
	return result{code, stdout.String(), stderr.String()}
}

// nowhere returns the flags for a node with neither an agent nor maps.
func nowhere(t *testing.T) []string {
	return []string{"--bpffs", t.TempDir(), "--state-dir", t.TempDir()}
}

// startAgent serves the API on the socket of a state directory, as an agent does, until the test
// ends.
func startAgent(t *testing.T, status func() observe.Status) (stateDir string, level *slog.LevelVar) {
	t.Helper()
	stateDir, level = t.TempDir(), new(slog.LevelVar)
	s, err := api.NewServer(filepath.Join(stateDir, "agent.sock"), api.Handlers{
		Status:   status,
		Config:   func() any { return []config.Origin{{Name: "source", Value: "/manifests", From: "flag"}} },
		Problems: func() []model.ObjectProblem { return status().Problems },
		LogLevel: level,
		Verify: func(_ context.Context, repair bool) (observe.Verification, error) {
			return verified(status(), repair), nil
		},
		Try:      sampleTrial,
		Policies: samplePolicies{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return stateDir, level
}

// verified is what verify finds in an agent with that status: damage if it is degraded, part of
// which can be repaired.
func verified(status observe.Status, repair bool) observe.Verification {
	v := observe.Verification{Repair: repair, Report: reconcile.Report{Services: 2, Frontends: 4, Backends: 2, Took: 1500000, Differences: []reconcile.Difference{}}}
	if len(status.Degraded) > 0 {
		v.Found, v.Pending = 3, 1
		v.Differences = append(v.Differences,
			reconcile.Difference{Kind: "frontend", Where: "10.96.0.10:80/tcp", Want: "ClusterIP of shop/web:http/tcp4", Have: "no row", Mended: repair},
			reconcile.Difference{Kind: "backend", Where: "row 7", Want: "free", Have: "10.1.0.1:80/tcp of service 1, scopes 0x1"},
		)
	}
	if repair {
		v.Mended = min(v.Found, 2)
	}
	return v
}

func healthyStatus() observe.Status {
	return observe.Status{
		Version: "v1", Node: "worker-1",
		Problems: []model.ObjectProblem{{Object: "shop/web", Problem: model.Problem{Reason: "FrontendConflict", Message: "10.96.0.9:80/tcp belongs to shop/old"}}},
	}
}

func TestExitCodes(t *testing.T) {
	well, _ := startAgent(t, healthyStatus)
	ill, _ := startAgent(t, func() observe.Status { return observe.Status{Degraded: []string{"Nothing works."}} })
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stderr string // a part of it; empty for no output at all
	}{
		{"help", nil, exitOK, ""},
		{"help of a noun", []string{"service"}, exitOK, ""},
		{"completion", []string{"completion", "bash"}, exitOK, ""},
		{"version", []string{"version"}, exitOK, ""},
		{"version flag", []string{"--version"}, exitOK, ""},
		{"unknown command", []string{"stauts"}, exitUsage, "status"},
		{"unknown command of a noun", []string{"service", "lst"}, exitUsage, `unknown command "lst"`},
		{"unknown flag", []string{"version", "--loud"}, exitUsage, "unknown flag: --loud"},
		{"unknown output", []string{"version", "-o", "xml"}, exitUsage, `unknown output "xml": use table, json, yaml`},
		{"argument missing", []string{"service", "get"}, exitUsage, "accepts 1 arg"},
		{"argument too many", []string{"version", "x"}, exitUsage, "unknown command"},
		{"unknown map", []string{"map", "dump", "ct"}, exitUsage, "use one of svcs, services"},
		{"bad client", []string{"explain", "me", "10.96.0.10:80"}, exitUsage, `or "node" for a process of the node`},
		{"no port", []string{"explain", "node", "10.96.0.10"}, exitUsage, "write ADDRESS:PORT"},
		{"port 0", []string{"explain", "node", "10.96.0.10:0"}, exitUsage, "write ADDRESS:PORT"},
		{"bad protocol", []string{"explain", "node", "10.96.0.10:80", "--protocol", "dccp"}, exitUsage, "use tcp, udp or sctp"},
		{"too many probes", []string{"explain", "node", "10.96.0.10:80", "--probe", "1001"}, exitUsage, "make 0 to 1000"},
		{"nothing to explain", append([]string{"explain", "node", "10.96.0.10:80"}, nowhere(t)...), exitError, "no fairlead maps under"},
		{"bad duration", []string{"status", "--wait-duration", "soon"}, exitUsage, "invalid argument"},
		{"bad path", []string{"service", "list", "--bpffs", "here"}, exitUsage, "option bpffs"},
		{"bad log level", []string{"log-level", "loud"}, exitUsage, `unknown log level "loud"`},
		{"bad agent option", []string{"agent", "--log-level", "loud"}, exitUsage, "log-level"},
		{"controller outside of a pod", []string{"controller"}, exitUsage, "set --lease-namespace"},
		{"controller without a server", []string{"controller", "--leader-elect=false", "--kubeconfig=/nowhere"}, exitError, "read kubeconfig /nowhere"},
		{"no maps", append([]string{"service", "list"}, nowhere(t)...), exitError, "is the agent running on this node, or is --bpffs another path?"},
		{"no maps to dump", append([]string{"map", "dump", "svcs"}, nowhere(t)...), exitError, "no fairlead maps under"},
		{"no agent for the status", append([]string{"status"}, nowhere(t)...), exitUnreachable, "no agent answers at"},
		{"no agent to wait for", append([]string{"status", "--wait", "--wait-duration", "1ms"}, nowhere(t)...), exitUnreachable, "no agent answers at"},
		{"no agent for the log level", append([]string{"log-level"}, nowhere(t)...), exitUnreachable, "no agent answers at"},
		{"healthy", []string{"status", "--state-dir", well}, exitOK, ""},
		{"healthy at last", []string{"status", "--wait", "--state-dir", well}, exitOK, ""},
		{"degraded", []string{"status", "--state-dir", ill}, exitDegraded, "the node is degraded: Nothing works."},
		{"degraded for too long", []string{"status", "--wait", "--wait-duration", "1ms", "--state-dir", ill}, exitDegraded, "degraded"},
		{"sound maps", []string{"verify", "--state-dir", well}, exitOK, ""},
		{"damaged maps", []string{"verify", "--state-dir", ill}, exitDegraded, "3 rows of the maps differ from the objects."},
		{"maps mended in part", []string{"verify", "--repair", "--state-dir", ill}, exitDegraded, "1 rows of the maps"},
		{"nothing to verify", append([]string{"verify"}, nowhere(t)...), exitUnreachable, "no fairlead maps under"},
		{"cleanup beside an agent", []string{"cleanup", "--bpffs", t.TempDir(), "--state-dir", well}, exitError, "stop it first, or use --force"},
		{"cleanup of nothing", append([]string{"cleanup"}, nowhere(t)...), exitOK, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := fairlead(t, tt.args...)
			if got.code != tt.code {
				t.Errorf("exit code %d, want %d", got.code, tt.code)
			}
			if tt.stderr == "" && got.stderr != "" || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("stderr %q, want %q", got.stderr, tt.stderr)
			}
			if hint := strings.Contains(got.stderr, "--help\"."); hint != (tt.code == exitUsage) {
				t.Errorf("stderr %q: only usage errors point to the help", got.stderr)
			}
		})
	}
}

// TestHelpNamesExitCodes compares the documented exit codes with the constants.
func TestHelpNamesExitCodes(t *testing.T) {
	for code, words := range map[int]string{
		exitOK: "0  success", exitError: "1  error", exitUsage: "2  mistake", exitDegraded: "3  the node is degraded",
		exitUnreachable: "4  no agent answers",
	} {
		if !strings.Contains(rootHelp, words) || words[0] != byte('0'+code) {
			t.Errorf("the help does not say %q of %d", words, code)
		}
	}
}

func TestEnvironmentIsUsed(t *testing.T) {
	stateDir, _ := startAgent(t, healthyStatus)
	run := func(environ ...string) int {
		var out bytes.Buffer
		return execute(t.Context(), &env{Stdout: &out, Stderr: &out, Args: []string{"status"}, Environ: environ})
	}
	if code := run("FAIRLEAD_STATE_DIR="+stateDir, "PATH=/bin"); code != exitOK {
		t.Errorf("with the state directory: exit code %d", code)
	}
	if code := run("FAIRLEAD_STATEDIR=" + stateDir); code != exitUsage {
		t.Errorf("with a typo: exit code %d", code)
	}
}

func TestOutputForms(t *testing.T) {
	stateDir, _ := startAgent(t, healthyStatus)
	want := healthyStatus()
	got := fairlead(t, "status", "-o", "json", "--state-dir", stateDir)
	var status observe.Status
	if err := json.Unmarshal([]byte(got.stdout), &status); err != nil {
		t.Fatalf("%v in %s", err, got.stdout)
	}
	if diff := cmp.Diff(want, status); diff != "" {
		t.Error(diff)
	}
	if got := fairlead(t, "status", "-o", "yaml", "--state-dir", stateDir); !strings.Contains(got.stdout, "\nnode: worker-1\n") {
		t.Errorf("yaml: %s", got.stdout)
	}
	if got := fairlead(t, "status", "--state-dir", stateDir); !strings.Contains(got.stdout, "\nhealthy\n") ||
		!strings.Contains(got.stdout, "shop/web: FrontendConflict: ") {
		t.Errorf("table: %s", got.stdout)
	}
	if got := fairlead(t, "version", "-o", "json"); !json.Valid([]byte(got.stdout)) {
		t.Errorf("version: %s", got.stdout)
	}
}

func TestVerifyOutput(t *testing.T) {
	ill, _ := startAgent(t, func() observe.Status { return observe.Status{Degraded: []string{"Nothing works."}} })
	well, _ := startAgent(t, healthyStatus)
	golden(t, "verify-damaged.txt", fairlead(t, "verify", "--state-dir", ill).stdout)
	golden(t, "verify-repair.txt", fairlead(t, "verify", "--repair", "--state-dir", ill).stdout)
	golden(t, "verify-sound.txt", fairlead(t, "verify", "--state-dir", well).stdout)
	var v observe.Verification
	if err := json.Unmarshal([]byte(fairlead(t, "verify", "-o", "json", "--state-dir", ill).stdout), &v); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(verified(observe.Status{Degraded: []string{""}}, false), v, cmpopts.IgnoreUnexported(reconcile.Difference{})); diff != "" {
		t.Error(diff)
	}
}

// TestCommandsBesideAccelerateOnly checks that commands about Services say that this mode has none,
// and do not suggest to look for an agent or other maps, whether the options, the pins or the agent
// tell the mode.
func TestCommandsBesideAccelerateOnly(t *testing.T) {
	found := nowhere(t)
	if err := os.MkdirAll(sockmap.Dir(found[1]), 0o700); err != nil {
		t.Fatal(err)
	}
	alone, _ := startAgent(t, func() observe.Status { return observe.Status{Mode: config.AccelerateOnly} })
	for _, where := range [][]string{found, nowhere(t), {"--bpffs", t.TempDir(), "--state-dir", alone}} {
		for _, command := range []string{
			"service list", "service get shop/web", "backend list", "map list", "map dump svcs", "explain node 10.96.0.10:80", "drops", "verify",
			"conntrack list", "conntrack flush --all", "bandwidth list",
		} {
			if command == "verify" && where[3] == alone {
				continue // it is the agent that answers
			}
			var stdout, stderr bytes.Buffer
			e := &env{Stdout: &stdout, Stderr: &stderr, Args: append(strings.Fields(command), where...)}
			if where[3] != alone && where[1] != found[1] {
				e.Environ = []string{"FAIRLEAD_MODE=accelerate-only"}
			}
			code := execute(t.Context(), e)
			if text := stderr.String(); code == exitOK || !strings.Contains(text, "accelerate-only does not serve them") || strings.Contains(text, "no fairlead maps") {
				t.Errorf("%s: exit code %d, %s", command, code, text)
			}
		}
	}
}

func TestStatusWithoutAnything(t *testing.T) {
	got := fairlead(t, append([]string{"status", "-o", "json"}, nowhere(t)...)...)
	var status observe.Status
	if err := json.Unmarshal([]byte(got.stdout), &status); err != nil {
		t.Fatalf("%v in %s", err, got.stdout)
	}
	if len(status.Degraded) != 2 || !strings.Contains(status.Degraded[1], "no fairlead maps under") {
		t.Errorf("degraded: %q", status.Degraded)
	}
}

// TestWaitFollowsTheAgent begins with a degraded agent, which recovers while the command waits.
func TestWaitFollowsTheAgent(t *testing.T) {
	asked := 0
	ask := func(context.Context) (observe.Status, error) {
		asked++
		switch asked {
		case 1:
			return observe.Status{}, &api.UnreachableError{Err: os.ErrNotExist}
		case 2:
			return observe.Status{Degraded: []string{"Not yet."}}, nil
		}
		return observe.Status{Node: "worker-1"}, nil
	}
	status, err := healthy(ask, 1<<62)(t.Context())
	if err != nil || status.Node != "worker-1" || asked != 3 {
		t.Errorf("%+v, %v after %d requests", status, err, asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	asked = 1
	if _, err := healthy(ask, 1<<62)(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that was canceled: %v", err)
	}
}

func TestConfigCommand(t *testing.T) {
	stateDir, _ := startAgent(t, healthyStatus)
	got := fairlead(t, "config", "--state-dir", stateDir)
	if got.code != exitOK || !strings.HasPrefix(got.stdout, "The agent at "+stateDir) || !strings.Contains(got.stdout, "/manifests") {
		t.Errorf("of the agent: %+v", got)
	}
	dir := t.TempDir()
	got = fairlead(t, "config", "--state-dir", dir, "--source", "/elsewhere", "-o", "json")
	var view configView
	if err := json.Unmarshal([]byte(got.stdout), &view); err != nil {
		t.Fatalf("%v in %+v", err, got)
	}
	want := config.Origin{Name: "source", Value: "/elsewhere", From: "flag"}
	if view.Of != "here" || len(view.Options) != len(config.Options()) || view.Options[0] != want {
		t.Errorf("without an agent: %+v", view)
	}
	if got := fairlead(t, "config", "--state-dir", dir); !strings.HasPrefix(got.stdout, "No agent answers at "+dir) {
		t.Errorf("without an agent: %+v", got)
	}
}

func TestLogLevelCommand(t *testing.T) {
	stateDir, level := startAgent(t, healthyStatus)
	if got := fairlead(t, "log-level", "--state-dir", stateDir); got.stdout != "info\n" {
		t.Errorf("%+v", got)
	}
	if got := fairlead(t, "log-level", "debug", "--state-dir", stateDir); got.stdout != "debug\n" || level.Level() != slog.LevelDebug {
		t.Errorf("%+v, the agent logs at %s", got, level.Level())
	}
}

func TestObjectOf(t *testing.T) {
	for name, want := range map[string]string{
		"shop/web:http/tcp4":               "shop/web",
		"shop/web/tcp4":                    "shop/web",
		"pod:shop/web-0:0.0.0.0:9000/tcp4": "pod:shop/web-0",
		"pod:shop/web-0:[::]:9000/tcp6":    "pod:shop/web-0",
		"shop/web":                         "shop/web",
		"odd":                              "odd",
		"":                                 "",
	} {
		if got := objectOf(name); got != want {
			t.Errorf("objectOf(%q) = %q, want %q", name, got, want)
		}
	}
}
