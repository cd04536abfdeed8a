package config

import (
	"slices"
	"strings"
	"testing"
)

func TestServers(t *testing.T) {
	for value, want := range map[string][]string{
		"":                                 nil,
		"192.0.2.1:6443":                   {"192.0.2.1:6443"},
		"https://a.example:443,b:6443":     {"a.example:443", "b:6443"},
		"https://a:1/ https://[fd00::1]:2": {"a:1", "[fd00::1]:2"},
	} {
		cfg, _, err := environment{args: []string{"--api-servers=" + value}}.load(t)
		if err != nil || !slices.Equal(cfg.Servers(), want) {
			t.Errorf("%q: %q, %v", value, cfg.Servers(), err)
		}
	}
	for _, value := range []string{"a", "http://a:1", "a:0", "a:65536", "a:b", "https://u@a:1", "https://a:1/x", ":1", "a:1,b", "[[]:1"} {
		if _, _, err := (environment{args: []string{"--api-servers=" + value}}).load(t); err == nil || !strings.Contains(err.Error(), "not a list of API servers") {
			t.Errorf("%q: %v", value, err)
		}
	}
}
