package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/masquerade"
)

// row is a row of options.yaml.
type row struct {
	Option, Value, Known string
	While, Is, Otherwise string
	Words                map[string]string
	Why                  string
	Alone                bool
	Not                  string
}

func rows(t testing.TB) (table []row) {
	t.Helper()
	readYAML(t, "options.yaml", &table)
	return table
}

func readYAML(t testing.TB, name string, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(content, into); err != nil {
		t.Fatal(err)
	}
}

// Every option has a row: the value that sets it, or the reason why none does.
func TestEveryOptionHasARow(t *testing.T) {
	t.Parallel()
	var have, want []string
	for _, r := range rows(t) {
		have = append(have, r.Option)
		if (r.Value == "") == (r.Why == "") {
			t.Errorf("option %s: needs either a value or a reason to have none", r.Option)
		}
	}
	for _, o := range config.Options() {
		want = append(want, o.Name)
	}
	slices.Sort(have)
	slices.Sort(want)
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("charts/fairlead/options.yaml (-options of the agent +rows):\n%s", diff)
	}
}

// configMap returns the files that the agent finds in its --config-dir.
func configMap(t testing.TB, all []manifest) map[string]string {
	t.Helper()
	for _, m := range all {
		if c, ok := m.object.(*corev1.ConfigMap); ok && c.Name == "fairlead" {
			return c.Data
		}
	}
	t.Fatal("no ConfigMap")
	return nil
}

// load parses a ConfigMap as the agent does, with the flags and environment variables that the
// chart sets.
func load(t testing.TB, data map[string]string) (*config.Config, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range data {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	config.AddFlags(flags)
	if err := flags.Parse([]string{"--config-dir=" + dir, "--node-name=n"}); err != nil {
		t.Fatal(err)
	}
	return config.Load(flags, nil)
}

// given has a non-default setting for every option that a value sets, and what the agent is told
// then. Options that could be mixed up have different settings.
func given() map[string]struct {
	value any
	want  string
} {
	type pair = struct {
		value any
		want  string
	}
	return map[string]pair{
		"accelerate-selector": {"app in (web,api), tier!=test", "app in (web,api), tier!=test"}, "sockmap": {true, "true"}, "sockmap-blocking": {true, "true"}, "sockmap-except": {[]string{"envoy", "squid"}, "envoy,squid"},
		"algorithm": {"maglev", "maglev"}, "api-servers": {"https://192.0.2.1:6443 https://[2001:db8::1]:6443", "https://192.0.2.1:6443 https://[2001:db8::1]:6443"},
		"bandwidth": {true, "true"}, "bbr": {"annotated", "annotated"}, "big-tcp": {true, "true"}, "bpffs": {"/run/bpf", "/run/bpf"},
		"cgroup-root": {"/sys/fs/cgroup/x", "/sys/fs/cgroup/x"}, "cni-cache": {"/var/c", "/var/c"}, "cni-conf-name": {"10-x.conflist", "10-x.conflist"},
		"conntrack-max":                  {2097152, "2097152"}, // YAML would print it as 2.097152e+06
		"conntrack-sctp-timeout-closing": {"11s", "11s"}, "conntrack-sctp-timeout-established": {"12s", "12s"},
		"conntrack-tcp-timeout-close-wait": {"13s", "13s"}, "conntrack-tcp-timeout-closing": {"14s", "14s"},
		"conntrack-tcp-timeout-established": {"3h", "3h"}, "conntrack-tcp-timeout-half-open": {"16s", "16s"},
		"conntrack-tcp-timeout-reset": {"17s", "17s"}, "conntrack-udp-timeout": {"18s", "18s"}, "conntrack-udp-timeout-stream": {"19s", "19s"},
		"devices": {[]string{"eth0", "bond*"}, "eth0,bond*"}, "dsr": {"geneve", "geneve"}, "dsr-accept": {true, "true"}, "tunnel-source-ports": {"any", "any"}, "external-clusterip": {true, "true"},
		"external-ips": {"deny", "deny"}, "hash-seed": {`0123456789"abc<{{ }}`, `0123456789"abc<{{ }}`}, "healthz-address": {"[::1]:1", "[::1]:1"},
		"host-routing": {"stack", "stack"}, "l7-proxies": {[]string{"envoy=15001", "waf=15002:pass"}, "envoy=15001,waf=15002:pass"},
		"log-format": {"json", "json"}, "log-level": {"debug", "debug"}, "masquerade": {false, "false"}, "metrics-address": {":2", ":2"}, "mode": {"full", "full"},
		"native-cidrs":       {[]string{"10.0.0.0/8", "fd00::/8"}, "10.0.0.0/8,fd00::/8"},
		"nodeport-addresses": {[]string{"192.0.2.0/24", "2001:db8::/64"}, "192.0.2.0/24,2001:db8::/64"},
		"nodeport-range":     {"31000-31999", "31000-31999"}, "opt-out-meshes": {[]string{"istio"}, "istio"},
		"opt-out-runtimes": {[]string{"kata*", "kubevirt"}, "kata*,kubevirt"}, "pod-device": {"netkit", "netkit"}, "pod-network": {"main", "main"},
		"ready-address": {"[::1]:3", "[::1]:3"}, "reset-stale-tcp": {true, "true"}, "routing": {"native", "native"},
		"node-external-ips": {true, "true"}, "service-cidrs": {"10.96.0.0/12", "10.96.0.0/12"}, "service-quota": {"slots=1", "slots=1"}, "namespace-quota": {"backends=2,slots=1", "backends=2,slots=1"},
		"snat-ports": {"40000-50000", "40000-50000"}, "vip-ping": {true, "true"}, "xdp": {"disabled", "off"},
	}
}

// Every value reaches the agent unchanged in meaning.
func TestValuesReachTheAgent(t *testing.T) {
	t.Parallel()
	all, want := []values{at("loadBalancer.mode", "dsr")}, map[string]string{"cni-conf-dir": "/host/etc/cni/net.d"}
	samples := given()
	for _, r := range rows(t) {
		if r.Value == "" {
			continue
		}
		sample, ok := samples[r.Option]
		if !ok {
			t.Errorf("option %s: the test has no value for it", r.Option)
			continue
		}
		all, want[r.Option] = append(all, at(r.Value, sample.value)), sample.want
	}
	have := configMap(t, render(t, all...))
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("files of options (-want +have):\n%s", diff)
	}
	cfg, err := load(t, have)
	if err != nil {
		t.Fatal(err)
	}
	for _, origin := range cfg.Origins() {
		if w, ok := want[origin.Name]; ok && (origin.Value != w || !strings.HasPrefix(origin.From, "file ")) {
			t.Errorf("option %s is %q from %s, want %q", origin.Name, origin.Value, origin.From, w)
		}
	}
}

// With default values, the chart renders a configuration with which an agent starts; the test lists
// where it differs from the agent's defaults.
func TestDefaultsOfTheChart(t *testing.T) {
	t.Parallel()
	cfg, err := load(t, configMap(t, render(t)))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := load(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	differs := map[string]string{}
	for i, origin := range cfg.Origins() {
		if other := plain.Origins()[i]; other.Value != origin.Value && origin.Name != "config-dir" {
			differs[origin.Name] = origin.Value
		}
	}
	want := map[string]string{"pod-network": "main", "routing": "vxlan", "cni-conf-dir": "/host/etc/cni/net.d"}
	if diff := cmp.Diff(want, differs); diff != "" {
		t.Errorf("differences from the agent's defaults (-want +have):\n%s", diff)
	}
}

// Options that depend on more than one value.
func TestValuesTogether(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		given []values
		want  map[string]string // "-" for an option that must not be set
	}{
		{"snat", []values{at("loadBalancer.dsrDispatch", "opt")}, map[string]string{"dsr": "off"}},
		{"dsr", []values{at("loadBalancer.mode", "dsr")}, map[string]string{"dsr": "ipip"}},
		{"another plugin first", []values{at("podNetwork", "chained")}, map[string]string{"pod-network": "chained", "routing": "-", "cni-conf-dir": "-"}},
		{"another plugin alone", []values{at("podNetwork", "off")}, map[string]string{"pod-network": "off", "routing": "-", "cni-conf-dir": "-"}},
		{"best effort", nil, map[string]string{"xdp": "auto", "devices": "auto", "snat-ports": "-", "conntrack-max": "-", "opt-out-meshes": "-"}},
		{"one device", []values{at("devices", "eth0")}, map[string]string{"devices": "eth0"}},
		{"nowhere", []values{at("metrics.address", ""), at("healthz.address", "")}, map[string]string{"metrics-address": "", "healthz-address": ""}},
		{"nobody is left out", []values{at("socketLB.optOutMeshes", []string{})}, map[string]string{"opt-out-meshes": ""}},
		{"a value taken back", []values{at("nodePort.range", nil), at("conntrack", nil)}, map[string]string{"nodeport-range": "-", "conntrack-udp-timeout": "-"}},
		{"ip-masq-agent's file", []values{at("ipMasqAgent.enabled", true)}, map[string]string{"masquerade-config": "/etc/fairlead-masquerade/config"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			have := configMap(t, render(t, tt.given...))
			for option, want := range tt.want {
				value, ok := have[option]
				if !ok {
					value = "-"
				}
				if value != want {
					t.Errorf("option %s is %q, want %q", option, value, want)
				}
			}
			if _, err := load(t, have); err != nil {
				t.Error(err)
			}
		})
	}
}

// The agent reads ip-masq-agent's ConfigMap as the user wrote it, in the format that the agent
// accepts.
func TestMasqueradeConfig(t *testing.T) {
	t.Parallel()
	given := at("ipMasqAgent", values{"enabled": true, "configMap": "mine", "config": values{"nonMasqueradeCIDRs": []string{"10.0.0.0/8", "fd00::/8"}, "masqLinkLocal": true}})
	for _, m := range render(t, given) {
		c, ok := m.object.(*corev1.ConfigMap)
		if !ok || c.Name != "mine" {
			continue
		}
		rules, err := masquerade.Parse([]byte(c.Data["config"]))
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"10.0.0.0/8", "fd00::/8", "fe80::/10"}
		have := []string{}
		for _, network := range rules.Native {
			have = append(have, network.String())
		}
		slices.Sort(have)
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("networks (-want +have):\n%s", diff)
		}
		return
	}
	t.Error("no ConfigMap of this name")
}
