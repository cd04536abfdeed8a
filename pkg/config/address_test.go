package config

import (
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	tests := []struct {
		value            string
		listen, loopback string // prefix of the error; "" for none
	}{
		{"", "", ""},
		{"127.0.0.1:80", "", ""},
		{"[::1]:80", "", ""},
		{":80", "", "not at a loopback"},
		{"0.0.0.0:80", "", "not at a loopback"},
		{"[fe80::1%eth0]:80", "", "not at a loopback"},
		{"localhost:80", "not at an IP address", "not at an IP address"},
		{"127.0.0.1", "not HOST:PORT", "not HOST:PORT"},
		{"::1:80:80", "not HOST:PORT", "not HOST:PORT"},
		{"127.0.0.1:0", "without a port", "without a port"},
		{"127.0.0.1:65536", "without a port", "without a port"},
		{"127.0.0.1:http", "without a port", "without a port"},
		{"/run/x.sock", "not HOST:PORT", "not HOST:PORT"},
	}
	for _, tt := range tests {
		for name, check := range map[string]struct {
			err  error
			want string
		}{
			"listen":   {listenAddress(tt.value), tt.listen},
			"loopback": {loopbackAddress(tt.value), tt.loopback},
		} {
			switch {
			case check.want == "" && check.err != nil:
				t.Errorf("%s %q: %v", name, tt.value, check.err)
			case check.want != "" && (check.err == nil || !strings.HasPrefix(check.err.Error(), check.want)):
				t.Errorf("%s %q: %v, want %q", name, tt.value, check.err, check.want)
			}
		}
	}
}

// TestPortsOfAnAgent checks that with files as its source, an agent is one of several on a machine
// and opens no port unless told to.
func TestPortsOfAnAgent(t *testing.T) {
	tests := []struct {
		args                   []string
		metrics, health, ready string
	}{
		{nil, "127.0.0.1:10249", ":10256", "127.0.0.1:10247"},
		{[]string{"--source=/etc/manifests"}, "", "", ""},
		{[]string{"--source=/etc/manifests", "--healthz-address=:10256"}, "", ":10256", ""},
		{[]string{"--metrics-address=", "--ready-address=[::1]:1"}, "", ":10256", "[::1]:1"},
	}
	for _, tt := range tests {
		cfg, _, err := environment{args: tt.args}.load(t)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.MetricsAddress != tt.metrics || cfg.HealthzAddress != tt.health || cfg.ReadyAddress != tt.ready {
			t.Errorf("%q: metrics at %q, health at %q, ready at %q", tt.args, cfg.MetricsAddress, cfg.HealthzAddress, cfg.ReadyAddress)
		}
		for _, o := range cfg.Origins() {
			if o.Name == "metrics-address" && o.Value != tt.metrics {
				t.Errorf("%q: the origin says %+v", tt.args, o)
			}
		}
	}
}
