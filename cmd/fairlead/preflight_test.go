package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/preflight"
	"fairlead.io/fairlead/pkg/source"
)

// preflightOf runs the command on the real machine, and returns its line for each check.
func preflightOf(t *testing.T, args ...string) (map[string]preflight.Line, result) {
	t.Helper()
	got := fairlead(t, append([]string{"preflight", "-o", "json"}, args...)...)
	var report preflight.Report
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil {
		t.Fatalf("%v: %+v", err, got)
	}
	lines := map[string]preflight.Line{}
	var failed []string
	for _, l := range report.Lines {
		if _, twice := lines[l.Check]; twice {
			t.Errorf("two lines are about %s", l.Check)
		}
		lines[l.Check] = l
		if l.State == preflight.Fail {
			failed = append(failed, l.Check)
		}
	}
	code, stderr := exitOK, ""
	if len(failed) > 0 {
		code, stderr = exitError, "fairlead: this machine is not ready: "+strings.Join(failed, ", ")+"\n"
	}
	if got.code != code || got.stderr != stderr || report.Fails != len(failed) {
		t.Errorf("exit code %d, %q; failed checks %q", got.code, got.stderr, failed)
	}
	return lines, got
}

// TestPreflight checks the real machine, as root and as other users see it.
func TestPreflight(t *testing.T) {
	lines, _ := preflightOf(t, nowhere(t)...)
	for _, check := range []string{"kernel", "jit", "memory", "mtu", "host routing", "governor"} {
		if l := lines[check]; l.State == "" || l.State == preflight.Fail || l.Found == "" {
			t.Errorf("%s: %+v", check, l)
		}
	}
	if l := lines["bpffs"]; l.State != preflight.Warn || !strings.Contains(l.Cure, "fairlead init") {
		t.Errorf("an empty directory is %+v", l)
	}
	if l := lines["rp_filter"]; l.State != "" {
		t.Errorf("without a network of pods: %+v", l)
	}
	lines, _ = preflightOf(t, append(nowhere(t), "--pod-network=main", "--devices=none", "--cni-conf-dir", t.TempDir())...)
	if lines["rp_filter"].State == "" || lines["forwarding"].State != "" || lines["cni"].State != preflight.OK || lines["host routing"].Found != "pods' packets bypass the node's stack" {
		t.Errorf("with a network of pods, and without devices: %+v", lines)
	}
	networks := t.TempDir()
	if err := os.WriteFile(filepath.Join(networks, "00-other.conf"), []byte(`{"type": "other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	lines, got := preflightOf(t, append(nowhere(t), "--pod-network=main", "--cni-conf-dir", networks)...)
	if lines["cni"].State != preflight.Fail || got.code != exitError || !strings.Contains(got.stderr, "cni") {
		t.Errorf("with another network before ours: %+v, %+v", lines["cni"], got)
	}
	if got := fairlead(t, append([]string{"preflight", "--devices=,"}, nowhere(t)...)...); got.code != exitUsage {
		t.Errorf("a bad option: %+v", got)
	}
	if got := fairlead(t, append([]string{"preflight"}, nowhere(t)...)...); !strings.Contains(got.stdout, " checks: ") {
		t.Errorf("for people: %+v", got)
	}
}

// TestPreflightBesideAgent checks that with an agent, the command uses the agent's options and what
// the agent knows of the cluster.
func TestPreflightBesideAgent(t *testing.T) {
	dir, _ := startAgent(t, func() observe.Status {
		return observe.Status{
			Policies:   &source.PolicyStatus{Count: new(4)},
			PodNetwork: &observe.PodNetwork{Status: podnet.Status{CIDRs: []string{"10.1.0.0/24", "nonsense"}}},
		}
	})
	lines, _ := preflightOf(t, "--state-dir", dir, "--pod-network=main", "--policies=off")
	if l := lines["rp_filter"]; l.State != "" {
		t.Errorf("the agent gives pods no network: %+v", l)
	}
	if l := lines["network policies"]; l.State != preflight.Warn || !strings.Contains(l.Found, "the cluster has 4") {
		t.Errorf("%+v", l)
	}
}

func TestSameConfig(t *testing.T) {
	cfg, err := sameConfig([]config.Origin{
		{Name: "devices", Value: "none"}, {Name: "pod-network", Value: "main"}, {Name: "node-name", Value: "n1"}, {Name: "of-the-future", Value: "x"},
		{Name: "config-dir", Value: "/none"},
	})
	if err != nil || cfg.Devices != "none" || cfg.PodNetwork != "main" || cfg.NodeName != "n1" || cfg.ConfigDir != "" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if _, err := sameConfig([]config.Origin{{Name: "xdp", Value: "maybe"}}); err == nil {
		t.Error("an invalid value was accepted")
	}
}

// TestMapMemory checks that the maps may grow by the memory of the flows that the option allows.
func TestMapMemory(t *testing.T) {
	var most []uint64
	for _, flows := range []string{"65536", "1048576", ""} {
		m, err := mapMemory(&config.Config{Conntrack: config.Conntrack{Max: flows}})
		if err != nil || m.Start < 10<<20 || m.Most < m.Start {
			t.Fatalf("%q flows: %+v, %v", flows, m, err)
		}
		most = append(most, m.Most)
	}
	if most[1] < 512<<20 || !slices.IsSorted(most[:2]) || most[2] < most[0] {
		t.Errorf("at most %d", most)
	}
}
