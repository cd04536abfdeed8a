package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestInstructions(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "programs"), 0o755); err != nil {
		t.Fatal(err)
	}
	left := `{"sock_a":12,"sock_b":0}`
	if err := os.WriteFile(filepath.Join(dir, "programs", "instructions.json"), []byte(left), 0o644); err != nil {
		t.Fatal(err)
	}
	loads := kernelResult{kernel: "6.1", release: "6.1.0-1"}
	if err := loads.readInstructions(dir); err != nil {
		t.Fatal(err)
	}
	refuses := kernelResult{kernel: "5.10", release: "5.10.0-1"}
	if err := refuses.readInstructions(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	other := kernelResult{kernel: "6.1", release: "6.1.0-1", suites: []suiteResult{{name: "a", ok: true}}, took: 1}
	other.add(loads)
	if len(other.suites) != 1 || other.took != 1 {
		t.Errorf("result merged from two machines: %+v", other)
	}
	results := []kernelResult{other, refuses}

	var table strings.Builder
	if err := printInstructions(&table, results); err != nil {
		t.Fatal(err)
	}
	want := `
Instructions that the verifier walked:
   program   6.1   5.10
    sock_a    12    n/a
    sock_b   n/a    n/a
`
	if diff := cmp.Diff(want, table.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	path := filepath.Join(dir, "all.json")
	if err := writeInstructions(path, results); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wantJSON := `{
  "5.10": {
    "release": "5.10.0-1",
    "programs": {
      "sock_a": null,
      "sock_b": null
    }
  },
  "6.1": {
    "release": "6.1.0-1",
    "programs": {
      "sock_a": 12,
      "sock_b": null
    }
  }
}
`
	if diff := cmp.Diff(wantJSON, string(got)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
}

func TestReportFails(t *testing.T) {
	passed := kernelResult{suites: []suiteResult{{name: "a", ok: true}}}
	if err := report(t.TempDir(), []kernelResult{passed}); err != nil {
		t.Error(err)
	}
	failed := kernelResult{suites: []suiteResult{{name: "a", ok: true}, {name: "b"}}}
	if err := report(t.TempDir(), []kernelResult{passed, failed}); err == nil || !strings.Contains(err.Error(), "1 of 3") {
		t.Errorf("error %v", err)
	}
}
