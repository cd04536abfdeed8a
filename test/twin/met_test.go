package twin

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// honestClasses returns what honest ends must get. The rates, of a million packets of attackers, are at
// most a third of what the sessions produce.
func honestClasses() []class {
	return []class{
		{"answered, by a service, TCP", "", 10000},
		{"answered, by a service, UDP", "", 3000},
		{"answered, by a service, SCTP", "", 3000},
		{"answered, by the server's own address, TCP", "", 3000},
		{"answered, masqueraded, TCP", "", 3000},
		{"answered, masqueraded, UDP", "", 1500},
		{"answered, masqueraded, SCTP", "", 3000},
		{"answered, forwarded", ", TCP", 1000}, // in Geneve
		{"answered, forwarded", ", UDP", 800},  // in IP
		{"answered, forwarded", ", SCTP", 700}, // with an option
		{"answered, forwarded to pod", " of the other node", 1000},
		{"answered, forwarded to pod", " of this node", 700},
		{"answered, forwarded to the other node", "", 700},
		{"an error, by a service", "", 5000},
		{"an error, masqueraded", "", 1800},
		{"an error, forwarded", "", 800},
		{"fragments, by a service", "", 1500},
		{"fragments, masqueraded", "", 500},
		{"fragments, forwarded", "", 250},
	}
}

// judgeHonest fails the test where honest ends have got a kind of packet too rarely.
func judgeHonest(t *testing.T, met map[string]int, total int) {
	t.Helper()
	for _, kind := range slices.Sorted(maps.Keys(met)) {
		t.Logf("%8d %s", met[kind], kind)
	}
	for _, c := range honestClasses() {
		n := 0
		for kind, count := range met {
			if rest, ok := strings.CutPrefix(kind, c.is); ok && strings.Contains(rest, c.with) {
				n += count
			}
		}
		if c.rate*total >= fewest*1_000_000 && n*1_000_000 < c.rate*total {
			t.Errorf("honest ends got %q with %q %d times among %d packets of attackers, want %d in a million", c.is, c.with, n, total, c.rate)
		}
	}
}
