package life

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDegradedNotifier gives a notifier a series of findings, "x" for a degraded node and "-" for a healthy one.
// Posts are refused if they come too soon.
func TestDegradedNotifier(t *testing.T) {
	for _, test := range []struct {
		name, states string
		refused      []int // at these states
		want         map[int]string
	}{
		{"well", "----", nil, map[int]string{}},
		{"once", "-x--", nil, map[int]string{}},
		{"from the start", "xxxx", nil, map[int]string{1: "DatapathDegraded"}},
		{"and back", "-xxx--", nil, map[int]string{2: "DatapathDegraded", 4: "DatapathRecovered"}},
		{"twice", "xx-xx-", nil, map[int]string{1: "DatapathDegraded", 2: "DatapathRecovered", 4: "DatapathDegraded", 5: "DatapathRecovered"}},
		{"now and then", "x-x-x-", nil, map[int]string{}},
		{"the second too soon", "xx-xxxx", []int{4, 5}, map[int]string{1: "DatapathDegraded", 2: "DatapathRecovered", 6: "DatapathDegraded"}},
		{"the second too soon and over", "xx-xx--", []int{4}, map[int]string{1: "DatapathDegraded", 2: "DatapathRecovered"}},
		{"the end too soon", "xx---", []int{2, 3}, map[int]string{1: "DatapathDegraded", 4: "DatapathRecovered"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			posted, at := map[int]string{}, 0
			h := &DegradedNotifier{log: slog.New(slog.DiscardHandler), post: func(warning bool, reason, message string) bool {
				if slices.Contains(test.refused, at) {
					return false
				}
				posted[at] = reason
				if warning != (reason == "DatapathDegraded") || warning && message != "One. Two." {
					t.Errorf("%s, a warning %v: %s", reason, warning, message)
				}
				return true
			}}
			for i, state := range test.states {
				at = i
				h.step(map[rune][]string{'x': {"One.", "Two."}}[state])
			}
			if diff := cmp.Diff(test.want, posted); diff != "" {
				t.Errorf("events by state (-want +got):\n%s", diff)
			}
		})
	}
}
