package connections

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/config"
)

// TestMostRows checks that a node has room for as many flows as kube-proxy would give it, unless
// they took too much of its memory, and for as many as the option says.
func TestMostRows(t *testing.T) {
	const gigabyte = 1 << 30
	for _, tt := range []struct {
		name   string
		cpus   int
		memory uint64
		want   int
	}{
		{"small", 2, 4 * gigabyte, 131072},
		{"usual", 8, 32 * gigabyte, 262144},
		{"large", 48, 192 * gigabyte, 2097152},
		{"little memory", 32, 4 * gigabyte, 524288},
		{"next to no memory", 1, gigabyte / 2, 65536},
	} {
		if have := defaultFlows(tt.cpus, tt.memory); have != tt.want {
			t.Errorf("%s: %d flows, want %d", tt.name, have, tt.want)
		}
	}
	for asked, want := range map[string]int{"65536": 131072, "65537": 262144, "1000000": 2097152, "67108864": 1 << 27} {
		if have, err := MostRows(asked); err != nil || have != want {
			t.Errorf("%s: %d rows, %v; want %d", asked, have, err, want)
		}
	}
	if have, err := MostRows(""); err != nil || have < 131072 {
		t.Errorf("by default: %d rows, %v", have, err)
	}
}

// TestShownFlows checks that the option says how many flows there may be by default. The chart's
// test reads it there.
func TestShownFlows(t *testing.T) {
	options := config.Options()
	shown := options[slices.IndexFunc(options, func(o config.Option) bool { return o.Name == "conntrack-max" })].Shown
	if want := fmt.Sprintf("%d per processor, at least %d, ", flowsPerCPU, flowsAtLeast); !strings.HasPrefix(shown, want) {
		t.Errorf("conntrack-max says %q, want %q", shown, want)
	}
}
