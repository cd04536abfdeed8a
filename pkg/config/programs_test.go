package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPrograms(t *testing.T) {
	for _, c := range []struct {
		list  string
		names []string
		wrong string
	}{
		{"", nil, ""},
		{" ", nil, ""},
		{"nginx, haproxy", []string{"nginx", "haproxy"}, ""},
		{"nginx,", []string{"nginx", ""}, "empty name"},
		{"a-name-of-16-let", []string{"a-name-of-16-let"}, `give "a-name-of-16-le"`},
		{strings.Repeat("x,", 64) + "x", nil, "room for 64"},
	} {
		err := programs(c.list)
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%.40q: %v, want %q", c.list, err, c.wrong)
		}
		if got := (&Config{SockmapExcept: c.list}).ExceptedPrograms(); c.names != nil && !cmp.Equal(got, c.names) {
			t.Errorf("%q: %q", c.list, got)
		}
	}
}
