package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestProxies(t *testing.T) {
	for value, want := range map[string][]Proxy{
		"":            nil,
		"envoy=15001": {{Name: "envoy", Port: 15001}},
		"a=1, b-2=65535:pass,c=3:drop": {
			{Name: "a", Port: 1}, {Name: "b-2", Port: 65535, Optional: true}, {Name: "c", Port: 3},
		},
	} {
		cfg, _, err := environment{args: []string{"--l7-proxies=" + value}}.load(t)
		if err != nil {
			t.Errorf("%q: %v", value, err)
			continue
		}
		if diff := cmp.Diff(want, cfg.Proxies()); diff != "" {
			t.Errorf("%q (-want +got):\n%s", value, diff)
		}
	}
	for value, want := range map[string]string{
		"envoy": "no port", "envoy=": "no port", "envoy=0": "no port", "envoy=65536": "no port", "envoy=-1": "no port", "envoy=x": "no port",
		"=15001": "name", "Envoy=1": "name", "-a=1": "name", ",": "name", "a=1,": "name", strings.Repeat("a", 64) + "=1": "name", "a b=1": "name",
		"a=1:": "says neither", "a=1:no": "says neither", "a=1,a=2": "different", "a=1,b=1": "different",
	} {
		if _, _, err := (environment{args: []string{"--l7-proxies=" + value}}).load(t); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", value, err, want)
		}
	}
}
