package twin

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// class is a kind of thing that has to happen in a run, or the generator is worth nothing.
type class struct {
	is   string // the beginning of paths
	with string // and what they have further on
	rate int    // so often in a million packets at least
}

// classes are at most a quarter of what the generator brings about.
func classes() []class {
	return []class{
		{"established", ", back", 10000},
		{"established", ", on", 10000},
		{"established", ", to be asked for", 20000},
		{"established, first in a tick", "", 1000},
		{"established, way asked for", "", 1000},
		{"established", ", expired, told", 900},
		{"established", ", too big, told", 50},
		{"established", ", to be cut up", 20},
		{"established, torn", "", 300},
		{"established now", "", 10000},
		{"no room", "", 50},
		{"half open, request", "", 20000},
		{"half open, reply", "", 10000},
		{"half open, given up", "", 1000},
		{"half open, torn", "", 300},
		{"cut off by ranges", "", 100},
		{"begun, local", "", 1000},
		{"begun, remote", ", back", 1000},
		{"begun, remote", ", on", 1000},
		{"begun, local with another port", "", 1000},
		{"begun", ", too big, told", 8},
		{"begun, ipip", ", back", 300},
		{"begun, ipip", ", on", 300},
		{"begun, ipip", ", by the stack", 300},
		{"ipip", ", back", 3000},
		{"ipip", ", on", 2000},
		{"ipip", ", to be asked for", 5000},
		{"ipip", ", expired, told", 200},
		{"ipip", ", too big, told", 100},
		{"fell back", "", 15},
		{"error, ipip", "", 100},
		{"fragment, ipip", "", 300},
		{"leaving, established", "", 20000},
		{"leaving, half open", "", 20000},
		{"leaving, nobody's", "", 2000},
		{"leaving, torn", "", 100},
		{"error to the client", "", 4000},
		{"error", ", back", 800},
		{"error", ", on", 600},
		{"error, leaving, no reply", "", 800},
		{"error to another than the sender", "", 500},
		{"error", ", expired", 70},
		{"error, torn", "", 40},
		{"fragment", ", back", 900},
		{"fragment", ", on", 450},
		{"fragment, nobody's", "", 3000},
		{"fragment, nobody's", ", waits", 1000},
		{"first of what waits", "", 400},
		{"fragment, of a flow that is gone", "", 1000},
		{"fragment, torn", "", 30},
		{"fragment", ", expired", 60},
		{"cut off", "", 500},
		{"first fragment of SCTP", "", 100},
		{"ping answered", "", 1000},
		{"tagged", "", 1000},
		{"other", "", 3000},
		{"to another on the link", "", 1000},
		{"no-backend, reset", "", 2000},
		{"no-backend, told", "", 200},
		{"no-backend, not to be answered", "", 200},
		{"no-port", "", 1000},
		{"no-address", "", 2000},
		{"bad-table", "", 800},
		{"table-race", "", 400},
		{"not let in", "", 1000},
		{"cluster IP", "", 5000},
		{"reset of nobody's", "", 2000},
		{"no frontend", "", 9000},
		{"silent", "", 80},
	}
}

// fewest is how often a class has to be due in a run to be judged there: less may be chance.
const fewest = 10

// judgeCoverage fails the test where too little happened of some kind.
func judgeCoverage(t *testing.T, hook string, paths map[string]int, total int) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		t.Logf("%8d %s", paths[path], path)
	}
	for _, c := range classes() {
		n := 0
		for path, count := range paths {
			if rest, ok := strings.CutPrefix(path, c.is); ok && strings.Contains(rest, c.with) {
				n += count
			}
		}
		if c.rate*total >= fewest*1_000_000 && n*1_000_000 < c.rate*total {
			t.Errorf("%s: %q with %q happened %d times in %d packets, want %d in a million", hook, c.is, c.with, n, total, c.rate)
		}
	}
}
