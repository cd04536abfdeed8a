package sockmap

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// A pod with a rate or a policy never takes part, nor one whose network namespace is unknown or was mistaken for the node's: its
// rules would be those of everything that runs on the node.
func TestRuleControllerFind(t *testing.T) {
	const host = 7
	k := NewRuleController(RuleConfig{
		Host: host, Limited: func(pod *model.Pod) bool { return pod.Egress > 0 },
		Judged: func(pod model.Name) (judged, known bool) { return pod.Name == "judged", pod.Name != "new" },
	})
	missing := fmt.Errorf("%w: no record", ErrUnknown)
	for name, tt := range map[string]struct {
		rate    int
		pod     string
		cookies []uint64
		err     error
		want    string // a part of the error
		unknown bool
	}{
		"as usual":                 {cookies: []uint64{3, 4}},
		"with a rate":              {rate: 1, cookies: []uint64{3}, want: "rate"},
		"judged by policies":       {pod: "judged", cookies: []uint64{3}, want: "policies"},
		"not known to be judged":   {pod: "new", cookies: []uint64{3}, want: "policies"},
		"the node's own":           {cookies: []uint64{host}, want: "the node's own", unknown: true},
		"the node's own among two": {cookies: []uint64{3, host}, want: "the node's own", unknown: true},
		"unknown":                  {err: missing, want: "no record", unknown: true},
	} {
		pod := &model.Pod{Name: model.Name{Name: tt.pod}}
		if tt.rate > 0 {
			pod.Egress = 1000
		}
		cookies, err := k.find(func(*model.Pod) ([]uint64, error) { return tt.cookies, tt.err }, pod)
		if tt.want == "" {
			if err != nil || !slices.Equal(cookies, tt.cookies) {
				t.Errorf("%s: %v, %v", name, cookies, err)
			}
			continue
		}
		if err == nil || len(cookies) > 0 || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrUnknown) != tt.unknown {
			t.Errorf("%s: %v, %v", name, cookies, err)
		}
	}
}
