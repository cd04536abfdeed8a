package config

import (
	"strings"
	"testing"
)

// A node that forwards packets accepts them too, and others accept them if told to.
func TestDSRAccept(t *testing.T) {
	for _, c := range []struct {
		args    []string
		accepts bool
		problem string
	}{
		{nil, false, ""},
		{[]string{"--dsr=ipip"}, true, ""},
		{[]string{"--dsr-accept=true"}, true, ""},
		{[]string{"--dsr-accept=false"}, false, ""},
		{[]string{"--dsr=opt", "--dsr-accept=false"}, false, "option dsr: opt needs what dsr-accept=false rules out"},
	} {
		cfg, _, err := environment{args: c.args}.load(t)
		switch {
		case c.problem != "":
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%v: %v, want %q", c.args, err, c.problem)
			}
		case err != nil:
			t.Errorf("%v: %v", c.args, err)
		case cfg.AcceptsDSR() != c.accepts:
			t.Errorf("%v: accepts %t, want %t", c.args, !c.accepts, c.accepts)
		}
	}
}
