package config

import (
	"strings"
	"testing"
)

// TestAccelerateOnly checks that in accelerate-only mode, the agent needs no option but the mode,
// and does not use kube-proxy's ports.
func TestAccelerateOnly(t *testing.T) {
	for _, source := range []string{Kubernetes, "/manifests"} {
		cfg, _, err := environment{args: []string{"--mode=accelerate-only", "--source=" + source}}.load(t)
		if err != nil {
			t.Fatal(err)
		}
		address := "127.0.0.1:10247"
		if source != Kubernetes {
			address = ""
		}
		if !cfg.AcceleratesOnly() || cfg.Sockmap != "true" || cfg.Devices != "none" || cfg.HealthzAddress != "" || cfg.MetricsAddress != address ||
			cfg.ReadyAddress != address {
			t.Errorf("source %s: %+v", source, cfg)
		}
		for _, o := range Options() {
			if have := originOf(cfg, o.Name).Value; o.idle != nil && have != *o.idle {
				t.Errorf("source %s: %s defaults to %q, want %q, which asks for nothing", source,
					o.Name, have, *o.idle)
			}
		}
	}
}

func TestAccelerateOnlyIsAskedForMore(t *testing.T) {
	for _, tt := range []struct {
		args []string
		want string // empty = no error
	}{
		{[]string{"--sockmap=true", "--pod-network=off", "--devices=none", "--bandwidth=false"}, ""},
		{[]string{"--accelerate-selector=app=web", "--sockmap-blocking=true", "--sockmap-except="}, ""},
		{[]string{"--sockmap=false"}, `option sockmap: "false" from flag leaves --mode=accelerate-only nothing to do`},
		{[]string{"--pod-network=chained"}, `option pod-network: "chained" from flag asks for more than --mode=accelerate-only`},
		{[]string{"--bandwidth=true"}, `option bandwidth: "true" from flag asks for more`},
		{[]string{"--cgroup-root=/sys/fs/cgroup/x"}, `option cgroup-root: "/sys/fs/cgroup/x" from flag asks for more`},
		{[]string{"--devices=auto"}, `option devices: "auto" from flag asks for more`},
		{[]string{"--healthz-address=:10256"}, `option healthz-address: ":10256" from flag asks for more`},
	} {
		_, _, err := environment{args: append(tt.args, "--mode=accelerate-only")}.load(t)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%v: %v", tt.args, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%v: %v, want %q", tt.args, err, tt.want)
		}
		if _, _, err := (environment{args: append(tt.args, "--mode=full")}).load(t); err != nil {
			t.Errorf("%v with --mode=full: %v", tt.args, err)
		}
	}
}
