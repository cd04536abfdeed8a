package observe

import (
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/optout"
)

func TestStatusOptOut(t *testing.T) {
	s := Status{OptOut: &optout.Status{
		Pods: 3, Waiting: 1, NotCovered: 2, Uncovered: []optout.Uncovered{{Pod: "shop/web", Why: "mesh istio", Reason: "not covered by cgroup: none"}},
	}}
	var text strings.Builder
	if err := s.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"opted out  3 pods, 1 waiting to be set up, 2 not covered\n",
		"\nopted out of balancing at the socket, but not covered:\n  shop/web (mesh istio): not covered by cgroup: none\n  and 1 more\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in:\n%s", want, text.String())
		}
	}
	text.Reset()
	s.OptOut = &optout.Status{}
	if err := s.WriteText(&text); err != nil || strings.Contains(text.String(), "opted out") {
		t.Errorf("without opted-out pods, %v:\n%s", err, text.String())
	}
}
