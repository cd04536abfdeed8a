package main

import (
	"os"
	"path/filepath"
	"testing"

	"fairlead.io/fairlead/test/kernels/vm"
)

// suiteOf returns the suite with the name.
func suiteOf(t *testing.T, name string) suite {
	t.Helper()
	chosen, err := chooseSuites([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return chosen[0]
}

func TestVerdict(t *testing.T) {
	const refusal = "fairlead: the kernel is too old: 5.10 lacks this (Linux 5.12); fairlead needs Linux 6.1 or newer\n"
	for _, test := range []struct {
		name, suite string
		code        int
		log         string
		text        string
		ok          bool
	}{
		{"all pass", "maps", 0, "--- PASS: TestA (0.1s)\n    --- PASS: TestA/b (0s)\nPASS\n", "2 passed", true},
		{"one fails", "maps", 1, "--- PASS: TestA (0.1s)\n--- FAIL: TestB (0s)\nFAIL\n", "exit code 1", false},
		{"one is skipped", "maps", 0, "--- PASS: TestA (0.1s)\n    --- SKIP: TestB/c (0s)\nPASS\n", "skipped TestB/c", false},
		{"none runs", "maps", 0, "testing: warning: no tests to run\nPASS\n", "0 passed", false},
		{"a command", "demo", 0, "Done.\n", "passed", true},
		{"a command fails", "demo", 2, "", "exit code 2", false},
		{"refused", "agent", 1, "level=INFO\n" + refusal, "refused", true},
		{"works after all", "agent", 0, "", "exit code 0, and not the refusal that was expected", false},
		{"another error", "agent", 1, "fairlead: load programs: invalid argument\n",
			"exit code 1, and not the refusal that was expected", false},
		{"crash", "agent", 2, refusal, "exit code 2, and not the refusal that was expected", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(log, []byte(test.log), 0o644); err != nil {
				t.Fatal(err)
			}
			text, ok, err := suiteOf(t, test.suite).verdict(vm.Result{Code: test.code, Log: log})
			if err != nil || text != test.text || ok != test.ok {
				t.Errorf("have %q, %t, %v; want %q, %t", text, ok, err, test.text, test.ok)
			}
		})
	}
}

func TestChooseSuites(t *testing.T) {
	if all, err := chooseSuites(nil); err != nil || len(all) != len(suites())+len(refusals()) {
		t.Errorf("no names: %d suites, %v", len(all), err)
	}
	if _, err := chooseSuites([]string{"maps", "nosuch"}); err == nil {
		t.Error("a suite that there is not was found")
	}
}
