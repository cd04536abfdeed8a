package twin

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// class is a kind of event that must happen in a run; otherwise the generator is useless.
type class struct {
	is   string // prefix of the path
	with string // text that the rest of the path contains
	rate int    // minimum in a million packets
}

// classes returns the classes. Their rates are at most a quarter of what the generator produces.
func classes() []class {
	list := []class{
		{"established", ", back", 900},
		{"established", ", on", 4000},
		{"established", ", to be asked for", 8000},
		{"established, first in a tick", "", 1000},
		{"established, way asked for", "", 1000},
		{"established", ", expired, told", 300},
		{"established", ", too big, told", 50},
		{"established", ", to be cut up on lo", 5},
		{"fragment", ", to be cut up on lo", 5},
		{"established, torn", "", 300},
		{"established now", "", 10000},
		{"no room", "", 50},
		{"half open, request", "", 20000},
		{"half open, reply", "", 6000},
		{"half open, given up", "", 1000},
		{"half open, torn", "", 300},
		{"cut off by ranges", "", 100},
		{"in place, there", ", an end", 100},
		{"in place, further", "", 1000},
		{"in place, further", ", an end", 100},
		{"in place, by what it acknowledges", "", 100},
		{"in place, by what it acknowledges", ", an end", 10},
		{"in place, unknown before", "", 100},
		{"in place, begun anew", "", 10},
		{"out of place", "", 1000},
		{"out of place", ", an end", 100},
		{"established", ", not judged", 7},
		{"begun, local", "", 1000},
		{"begun, remote, from inside", "", 100},
		{"begun, remote", ", back", 700},
		{"begun, remote", ", on", 600},
		{"begun, local", ", another port", 600},
		{"begun", ", too big, told", 8},
		{"fell back", "", 15},
		{"opt", ", no room", 40},
		{"hosted, cluster IP", "", 600},
		{"hosted", ", closed", 25},
		{"hosted, not let in", "", 180},
		{"hosted, stray", "", 100},
		{"hosted, dialed here", "", 100},
		{"pod, forged", "", 500},
		{"error", ", stray", 20},
		{"fragment", ", stray", 1000},
		{"given back", ", expired, told", 15},
		{"given back", ", too big", 4},
		{"taken back", "", 100},
		{"like the option", "", 100},
		{"leaving, established", "", 20000},
		{"leaving, half open", "", 20000},
		{"leaving, nobody's", "", 2000},
		{"leaving, torn", "", 100},
		{"error to the client", "", 4000},
		{"error", ", back", 150},
		{"error", ", on", 240},
		{"error, leaving, no reply", "", 800},
		{"error to another than the sender", "", 500},
		{"error", ", expired", 20},
		{"error, torn", "", 40},
		{"fragment", ", back", 130},
		{"fragment", ", on", 180},
		{"fragment, nobody's", "", 3000},
		{"fragment, nobody's", ", waits", 1000},
		{"first of what waits", "", 400},
		{"fragment, of a flow that is gone", "", 700},
		{"fragment, torn", "", 30},
		{"fragment", ", expired", 15},
		{"cut off", "", 500},
		{"first fragment of SCTP", "", 100},
		{"ping answered", "", 1000},
		{"tagged", "", 1000},
		{"other", "", 3000},
		{"to another on the link", "", 1000},
		{"no-backend, reset", "", 500},
		{"no-backend, told", "", 200},
		{"no-backend, not to be answered", "", 100},
		{"no-port", "", 10},
		{"begun", ", taken", 100},
		{"no-address", "", 1300},
		{"bad-table", "", 800},
		{"table-race", "", 400},
		{"not let in", "", 1000},
		{"cluster IP", "", 3500},
		{"reset of nobody's", "", 2000},
		{"no frontend", "", 9000},
		{"silent", "", 80},
		{"like a pod's", "", 50},
		{"answer to a pod", "", 20},
		{"pod, from pod, established", ", out", 2000},
		{"pod, from pod, established", ", to a pod", 600},
		{"pod, from pod, torn", "", 100},
		{"pod, from pod, no reply", ", to itself", 900},
		{"pod, half open, request", "", 5000},
		{"pod, half open, given up", "", 250},
		{"pod, established now", "", 1500},
		{"pod, no room", "", 50},
		{"pod, begun, local", ", out", 1500},
		{"pod, begun, local", ", to a pod", 500},
		{"pod, begun, local, another port", "", 120},
		{"pod, begun, own, to a pod", "", 350},
		{"pod, cut off by ranges", "", 30},
		{"pod, not let in", "", 400},
		{"pod, no-backend, reset", "", 350},
		{"pod, no-backend, told", "", 150},
		{"pod, no-address", "", 90},
		{"pod, begun, own, taken", "", 6},
		{"pod, bad-table", "", 200},
		{"pod, table-race", "", 180},
		{"pod, no frontend", "", 1500},
		{"pod, no service", ", told", 10},
		{"pod, fragment, no service", "", 1},
		{"pod, not dialed", ", to a pod", 900},
		{"pod, not dialed, to a pod by the stack", "", 60},
		{"for a pod, message, nobody's", "", 500},
		{"pod, reset of nobody's", "", 500},
		{"pod, error", ", out", 150},
		{"pod, error", ", to itself", 40},
		{"pod, fragment", ", out", 200},
		{"pod, fragment", ", to a pod", 180},
		{"pod, fragment, torn", "", 10},
		{"pod, first fragment of SCTP", "", 150},
		{"pod, ping answered", "", 250},
		{"tunnel, from no sender of it", "", 500},
		{"tunnel, established", "", 1000},
		{"tunnel, half open", "", 1000},
		{"tunnel, begun", "", 500},
		{"tunnel, error", "", 50},
		{"tunnel, fragment", "", 50},
		{"to the tunnel, not from one", "", 50},
		{"pod, to a tunnel", "", 50},
		{"pod, to the tunnel of its node", "", 2},
		{"pod, spoofed", "", 1500},
		{"pod, spoofed-link", "", 200},
		{"pod, loopback", "", 300},
		{"pod, dhcp", "", 100},
		{"pod, router", "", 20},
		{"pod, neighbor", "", 4},
		{"pod, protocol", "", 180},
		{"pod, malformed", "", 40},
		{"pod, stays on its link", "", 200},
		{"for a pod, to pod, established", "", 3500},
		{"for a pod, to pod, half open", "", 4500},
		{"for a pod, to pod, torn", "", 50},
		{"for a pod, cut off by ranges", "", 15},
		{"for a pod, error to the client", "", 800},
		{"for a pod, fragment", "", 800},
	}
	list = append(list, policyClasses()...)
	for _, mode := range []string{"ipip", "geneve", "opt"} {
		list = append(list,
			class{"begun, " + mode, ", back", 80},
			class{"begun, " + mode, ", on", 80},
			class{mode, ", back", 400}, // they come in few of the episodes, so a short run may have few
			class{mode, ", on", 400},
			class{mode, ", to be asked for", 1200},
			class{mode, ", by the stack", 100},
			class{mode, ", expired, told", 40},
			class{mode, ", too big, told", 20},
			class{"error, " + mode, "", 20},
			class{"fragment, " + mode, "", 50},
			class{"hosted, " + mode, "", 600})
	}
	for _, mode := range []string{"ipip", "geneve"} {
		list = append(list, class{mode + ", stray", "", 10}, class{"given back, " + mode, ", on", 300})
	}
	return list
}

// policyClasses returns what policies must say, for the seeds that have any.
func policyClasses() []class {
	return []class{
		{"policy, begun, egress", "", 1000},
		{"policy, begun, ingress", "", 500},
		{"policy, begun by the node", "", 200},
		{"policy, begun to itself", "", 15},
		{"policy, begun in the other direction", "", 200},
		{"policy, answered", "", 600},
		{"policy, no room", "", 300},
		{"policy, in its tick", "", 600},
		{"policy, in its tick, for both", "", 60},
		{"policy, accepted again", "", 500},
		{"policy, accepted again after a denial", "", 120},
		{"policy, denied again", "", 1000},
		{"policy, adopted", "", 120},
		{"policy, of a connection that nobody opened", "", 200},
		{"policy, on the way at a denial", "", 250},
		{"policy, an error of no flow", "", 300},
		{"policy, denied, egress", "", 3000},
		{"policy, denied, ingress", "", 2000},
		{"policy, denied, unknown pod", "", 700},
		{"policy, unknown pod, by its node", "", 60},
		{"policy, denied, tells no flow", "", 500},
		{"pod, stays on its link, denied", "", 1},
		{"pod, begun, local", ", denied", 70},
		{"pod, fragment", ", denied", 150},
	}
}

// fewest is how often a class must be expected in a run to be judged: a shortfall below that may be
// chance.
const fewest = 10

// requireCoverage fails the test where a class happened too rarely. A class is judged if it must be
// expected at least so often.
func requireCoverage(t *testing.T, what string, list []class, paths map[string]int, total, least int) {
	t.Helper()
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		t.Logf("%8d %s", paths[path], path)
	}
	for _, c := range list {
		n := 0
		for path, count := range paths {
			if rest, ok := strings.CutPrefix(path, c.is); ok && strings.Contains(rest, c.with) {
				n += count
			}
		}
		if c.rate*total >= least*1_000_000 && n*1_000_000 < c.rate*total {
			t.Errorf("%s: %q with %q happened %d times in %d packets, want %d in a million", what, c.is, c.with, n, total, c.rate)
		}
	}
}
