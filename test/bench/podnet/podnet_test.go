package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/bench/flow"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, flow.Funcs())) }

func TestParse(t *testing.T) {
	for args, fails := range map[string]string{
		"": "", "-services=0": "", "-effort=0": "does nothing", "-services=-1": "not possible", "more": "unexpected argument",
	} {
		_, err := parse(strings.Fields(args))
		if (fails == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), fails) {
			t.Errorf("%q: have error %v, want %q", args, err, fails)
		}
	}
}

// build builds the programs and returns their folder.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", dir+"/", "fairlead.io/fairlead/cmd/...", "fairlead.io/fairlead/test/podnet/byhand")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return dir
}

// forwarded returns the number of packets that the node's stack has forwarded.
func (s *oneNodeTwoPods) forwarded() (count string, err error) {
	return count, s.Do(func() error {
		content, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		_, numbers, _ := strings.Cut(string(content), "\nIp: ")
		count = strings.Fields(numbers)[5]
		return nil
	})
}

func TestBench(t *testing.T) {
	rig.Root(t)
	rig.NoLeaks(t)
	binaries := build(t)
	t.Run("ways", func(t *testing.T) { testWays(t, binaries) })
	t.Run("rows", func(t *testing.T) { testRows(t, binaries) })
}

// All traffic takes the path that the name of the setup says: through the stack, or past it.
func testWays(t *testing.T, binaries string) {
	o := options{binaries: binaries, effort: 1e-9}
	report, err := result.Begin(result.Config{Benchmark: "podnet", Path: filepath.Join(t.TempDir(), "podnet.json"), Out: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	setups, closer, err := o.setups(t.Context(), report)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := closer(); err != nil {
			t.Error(err)
		}
	}()
	if len(setups) != len(routings)+1 {
		t.Errorf("have %d setups, want one per routing, and one with policies", len(setups))
	}
	for _, s := range setups {
		for _, r := range o.rows() {
			if s.name == isolated && r.ours != isolated {
				continue // denied
			}
			before, err := s.forwarded()
			if err != nil {
				t.Fatal(err)
			}
			sample, err := r.variant(s).Run(t.Context())
			if err != nil || sample.Arrived == 0 {
				t.Errorf("%s, %s: %+v, %v", r.name, s.name, sample, err)
			}
			after, err := s.forwarded()
			if err != nil {
				t.Fatal(err)
			}
			if (before == after) != (s.name != "stack") {
				t.Errorf("%s, %s: the stack has forwarded %s packets, before the run %s", r.name, s.name, after, before)
			}
		}
	}
}

// A run with minimal effort has all rows except those that need kube-proxy.
func testRows(t *testing.T, binaries string) {
	path := filepath.Join(t.TempDir(), "podnet.json")
	err := run(t.Context(), []string{"-binaries=" + binaries, "-output=" + path, "-rounds=9", "-effort=1e-9", "-services=0"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []result.Row
	if err := json.Unmarshal(content, &rows); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, row := range rows {
		found[row.Row]++
	}
	want := map[string]int{
		"podnet/request, to a pod of the node": 3, "podnet/request, to the outside": 3,
		"podnet/stream, to a pod of the node": 2, "podnet/stream, to the outside": 2, "podnet/ADD": 3,
		"podnet/policy, request, to a pod of the node": 2, "podnet/policy, stream, to a pod of the node": 2,
	}
	for name, count := range want {
		if found[name] != count {
			t.Errorf("%d rows of %q, want %d; all: %v", found[name], name, count, found)
		}
	}
}
