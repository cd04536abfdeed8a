package chart

import (
	stdcmp "cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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

	Says             string
	Default, Example any
	Schema           values
	Arrives          string
}

// arrives returns what the agent is told if the value is as in the example.
func (r *row) arrives() string {
	switch example := r.Example.(type) {
	case []any:
		var list []string
		for _, item := range example {
			list = append(list, fmt.Sprint(item))
		}
		return stdcmp.Or(r.Arrives, strings.Join(list, ","))
	case float64: // YAML would print it as 2.097152e+06
		return stdcmp.Or(r.Arrives, strconv.FormatFloat(example, 'f', -1, 64))
	}
	return stdcmp.Or(r.Arrives, fmt.Sprint(r.Example))
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

// Every value reaches the agent unchanged in meaning.
func TestValuesReachTheAgent(t *testing.T) {
	t.Parallel()
	all, want := []values{at("loadBalancer.mode", "dsr")}, map[string]string{"cni-conf-dir": "/host/etc/cni/net.d"}
	for _, r := range rows(t) {
		if r.Value == "" {
			continue
		}
		if r.Example == nil {
			t.Errorf("option %s: its row needs an example", r.Option)
		}
		all, want[r.Option] = append(all, at(r.Value, r.Example)), r.arrives()
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
	want := map[string]string{"pod-network": "main", "policies": "enforce", "routing": "vxlan", "cni-conf-dir": "/host/etc/cni/net.d"}
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
		{"another plugin's policies", []values{at("podNetwork", "chained")}, map[string]string{"policies": "-"}},
		{"policies off", []values{at("policies", "off")}, map[string]string{"policies": "off"}},
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
