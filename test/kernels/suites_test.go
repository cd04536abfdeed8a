package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fairlead.io/fairlead/test/kernels/debian"
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
		{"one fails", "maps", 1, "--- PASS: TestA (0.1s)\n--- FAIL: TestB (0s)\nFAIL\n", "exit code 1, TestB", false},
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

// From a log of many tests, only the output of the failed ones is shown.
func TestComplaint(t *testing.T) {
	const log = "=== RUN   TestA\n    a.go:1: from a\n--- PASS: TestA (0.1s)\n=== RUN   TestB\n=== RUN   TestB/c\n    b.go:2: too late\n" +
		"=== RUN   TestD\n    d.go:3: from d\n=== NAME  TestB/c\n    b.go:4: and wrong\n--- FAIL: TestB (0s)\n    --- FAIL: TestB/c (0s)\n" +
		"--- PASS: TestD (0s)\nFAIL\n"
	const want = "=== RUN   TestB\n=== RUN   TestB/c\n    b.go:2: too late\n=== NAME  TestB/c\n    b.go:4: and wrong\n" +
		"--- FAIL: TestB (0s)\n    --- FAIL: TestB/c (0s)"
	if have := complaint(log); have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
	if have := complaint("=== RUN   TestA\npanic: it hangs\n"); have != "=== RUN   TestA\npanic: it hangs" {
		t.Errorf("complaint about a truncated log: %s", have)
	}
}

// Every suite runs on one machine of each kernel, and the machines take about the same time, except the last one, which
// has the suites that judge times and no other.
func TestDeal(t *testing.T) {
	for n := range 4 {
		shares := deal(suites(), n)
		if want := max(1, n) + 1; len(shares) != want {
			t.Fatalf("%d machines have %d shares", n, len(shares))
		}
		ran, most, least := map[string]int{}, time.Duration(0), time.Duration(math.MaxInt64)
		for i, share := range shares {
			var limit time.Duration
			for _, s := range share {
				ran[s.name]++
				limit += s.limit
				if last := i == len(shares)-1; s.exact != last {
					t.Errorf("%s of %d runs on machine %d", s.name, len(shares), i+1)
				}
			}
			if i < len(shares)-1 {
				most, least = max(most, limit), min(least, limit)
			}
		}
		for _, s := range suites() {
			if ran[s.name] != 1 {
				t.Errorf("on %d machines %s runs %d times", n, s.name, ran[s.name])
			}
		}
		if most-least > 3*time.Minute {
			t.Errorf("one of %d machines may take %s, another %s", n, most, least)
		}
	}
	if shares := deal(suites()[:1], 2); len(shares) != 1 {
		t.Errorf("one suite runs on %d machines", len(shares))
	}
	if judges := slices.DeleteFunc(suites(), func(s suite) bool { return !s.exact }); len(deal(judges, 2)) != 1 {
		t.Errorf("suites that judge times run on %d machines", len(deal(judges, 2)))
	}
	if shares := deal(nil, 2); len(shares) != 1 || len(shares[0]) > 0 {
		t.Errorf("without suites, deal returns %v", shares)
	}
}

// What a suite skips is skipped on every kernel, beside tests for which another one is enough.
func TestSkip(t *testing.T) {
	found := 0
	for _, s := range suites() {
		for _, kernel := range []string{"6.1", "7.2"} {
			args := s.on(kernel).args
			skips := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "-test.skip=") })
			switch {
			case s.skip == "":
			case skips != len(args)-1 || !strings.Contains(args[skips], s.skip):
				t.Errorf("with Linux %s %s has %q, which does not skip %s", kernel, s.name, args, s.skip)
			default:
				found++
			}
		}
	}
	if found < 4 {
		t.Errorf("only %d suites skip tests", found)
	}
}

// Tests for which one kernel is enough run on that kernel and on no other.
func TestAlone(t *testing.T) {
	pins, err := debian.Pins()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range suites() {
		for _, a := range s.alone {
			at := slices.IndexFunc(pins, func(p debian.Pin) bool { return p.Kernel == a.kernel && p.Serves })
			if at < 0 || slices.Contains(s.without, a.kernel) {
				t.Errorf("%s of %s runs on no kernel", a.tests, s.name)
			}
			for _, pin := range pins {
				args := s.on(pin.Kernel).args
				skips := strings.HasPrefix(args[len(args)-1], "-test.skip=") && strings.Contains(args[len(args)-1], a.tests)
				if skips == (pin.Kernel == a.kernel) {
					t.Errorf("with Linux %s %s skips %s: %t", pin.Kernel, s.name, a.tests, skips)
				}
			}
		}
	}
}

// With -short, a suite that names a kernel runs on that one and on no other. Without it, every suite runs wherever it can.
func TestShort(t *testing.T) {
	pins, err := debian.Pins()
	if err != nil {
		t.Fatal(err)
	}
	once := 0
	for _, s := range suites() {
		count := map[bool]int{}
		for _, pin := range pins {
			if !pin.Serves {
				continue
			}
			for _, short := range []bool{false, true} {
				r := runner{suites: []suite{s}, short: short}
				count[short] += len(r.suitesOf(&debian.Kernel{Pin: pin}))
			}
		}
		want := count[false]
		if s.once != "" {
			once, want = once+1, 1
		}
		if count[true] != want || count[false] == 0 {
			t.Errorf("%s runs on %d kernels, with -short on %d, want %d", s.name, count[false], count[true], want)
		}
	}
	if once == 0 {
		t.Error("no suite names the kernel for -short")
	}
}

// The page about limits says on which kernels the tests run, and where suites leave one out that has
// what they test.
func TestLimitsPage(t *testing.T) {
	pins, err := debian.Pins()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(text)), " ")
	for name, want := range map[string]string{
		"maps": "runs the tests on %s,", "bandwidth": "those of bandwidth limits only on %s,",
		"rates": "those of rates on other devices and beside kube-network-policies only on %s.", "policies": "beside kube-network-policies only on %s.",
	} {
		var kernels []string
		for _, pin := range pins {
			if pin.Serves && !slices.Contains(suiteOf(t, name).without, pin.Kernel) {
				kernels = append(kernels, pin.Kernel)
			}
		}
		last := len(kernels) - 1
		list := kernels[last]
		if last > 0 {
			list = strings.Join(kernels[:last], ", ") + " and " + list
		}
		if want = fmt.Sprintf(want, list); !strings.Contains(page, want) {
			t.Errorf("%s: the page does not say %q", name, want)
		}
	}
}

func TestChooseSuites(t *testing.T) {
	if all, err := chooseSuites(nil); err != nil || len(all) != len(suites())+len(refusals()) {
		t.Errorf("no names: %d suites, %v", len(all), err)
	}
	if _, err := chooseSuites([]string{"maps", "nosuch"}); err == nil {
		t.Error("chooseSuites finds a suite that does not exist")
	}
}
