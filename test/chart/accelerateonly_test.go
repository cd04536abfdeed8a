package chart

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/config"
)

var alone = at("mode", config.AccelerateOnly)

// With mode accelerate-only, agents get only the options of socket acceleration, and start with
// them.
func TestAccelerateOnly(t *testing.T) {
	t.Parallel()
	plain := map[string]string{
		"mode": "accelerate-only", "bpffs": "/sys/fs/bpf", "cni-cache": "/var/lib/cni/results", "log-format": "text", "log-level": "info",
		"ready-address": "127.0.0.1:10247", "sockmap-blocking": "false", "sockmap-except": "nginx,haproxy", "accelerate-selector": "", "api-servers": "",
	}
	more := maps.Clone(plain)
	maps.Copy(more, map[string]string{"accelerate-selector": "app=web", "sockmap-blocking": "true", "metrics-address": ":10246"})
	for _, tt := range []struct {
		given []values
		want  map[string]string
	}{
		{nil, plain},
		{[]values{at("sockmap", values{"selector": "app=web", "blocking": true}), at("metrics.address", ":10246"), at("kubeProxyReplacement", false)}, more},
	} {
		have := configMap(t, render(t, append(tt.given, alone)...))
		if diff := cmp.Diff(tt.want, have); diff != "" {
			t.Errorf("%v: files of options (-want +have):\n%s", tt.given, diff)
		}
		cfg, err := load(t, have)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.Sockmap != "true" || cfg.Devices != "none" || cfg.PodNetwork != "off" || cfg.HealthzAddress != "" || strings.HasSuffix(cfg.MetricsAddress, "10249") {
			t.Errorf("%v: %+v", tt.given, cfg)
		}
	}
}

// The init container of accelerate-only has the flags for that mode, installs no plugin, and
// changes no setting of the node. Neither container sees the runtime's configuration.
func TestPodsOfAccelerateOnly(t *testing.T) {
	t.Parallel()
	pod := daemonSet(t, alone).Spec.Template.Spec
	if len(pod.InitContainers) != 1 {
		t.Fatalf("%d init containers", len(pod.InitContainers))
	}
	want := []string{"init", "--bpffs=/sys/fs/bpf", "--mode=accelerate-only", "--sockmap=true", "--sockmap-blocking=false", "--sockmap-except=nginx,haproxy"}
	if diff := cmp.Diff(want, named(t, pod.InitContainers, "init").Args); diff != "" {
		t.Errorf("arguments (-want +have):\n%s", diff)
	}
	have := []string{}
	for _, m := range mounts(pod, named(t, pod.Containers, "agent")) {
		have = append(have, m.path)
	}
	if diff := cmp.Diff([]string{"/etc/fairlead", "/sys/fs/bpf", "/run/fairlead", "/var/lib/cni/results", "/run/netns"}, have); diff != "" {
		t.Errorf("mounts (-want +have):\n%s", diff)
	}
	if len(pod.Volumes) != len(have) {
		t.Errorf("volumes %v", pod.Volumes)
	}
}

func TestRightsOfAccelerateOnly(t *testing.T) {
	t.Parallel()
	all := render(t, alone)
	var want []string
	for _, of := range []string{"/namespaces", "/pods", "fairlead.io/socketaccelerations"} {
		want = append(want, "get "+of, "list "+of, "watch "+of)
	}
	want = append(want, "create /events")
	slices.Sort(want)
	if diff := cmp.Diff(want, rights(t, all)); diff != "" {
		t.Errorf("rights (-want +have):\n%s", diff)
	}
	for _, m := range all {
		if strings.Contains(typeOf(m.object), "Admission") {
			t.Errorf("agents change no Node in this mode, but the chart renders a %s", typeOf(m.object))
		}
	}
}

// Beside kube-proxy every pod can reach the API server at the address that Kubernetes sets, so the
// agent needs no other.
func TestServerOfAccelerateOnly(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{"auto": false, "192.0.2.1": true} {
		hasServer := false
		for _, env := range named(t, daemonSet(t, alone, at("k8sServiceHost", host)).Spec.Template.Spec.Containers, "agent").Env {
			hasServer = hasServer || env.Name == "KUBERNETES_SERVICE_HOST" && env.Value == host
		}
		if hasServer != want {
			t.Errorf("k8sServiceHost %s: the agent is told an API server: %v", host, hasServer)
		}
	}
}

// Values that ask for more are refused here; otherwise agents would not start, or would start and
// ignore them.
func TestAccelerateOnlyIsAskedForMore(t *testing.T) {
	t.Parallel()
	for path, value := range map[string]any{
		"podNetwork": "chained", "bigTCP": true, "bandwidthManager.enabled": true, "l7Proxies": []string{"a=1"}, "hostRouting": "stack", "ipMasqAgent.enabled": true,
		"masquerade.nativeCIDRs": []string{"10.0.0.0/8"}, "loadBalancer.mode": "dsr", "loadBalancer.vipPing": true, "bpf.lbExternalClusterIP": true,
		"socketLB.terminatePodConnections": true, "cgroup.hostRoot": "/sys/fs/cgroup",
	} {
		_, err := template(t, alone, at(path, value))
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "does not work with mode: accelerate-only") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := template(t, alone, at("metrics.address", ":10249")); err == nil || !strings.Contains(err.Error(), "uses the port of kube-proxy") {
		t.Errorf("kube-proxy's port: %v", err)
	}
	for path, value := range map[string]any{"podNetwork": "off", "kubeProxyReplacement": false, "socketLB.enabled": false, "sockmap.enabled": true} {
		if _, err := template(t, alone, at(path, value)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
