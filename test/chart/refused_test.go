package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A wrong value, or a name that does not exist, is refused before anything changes in the cluster,
// and the message says where and why.
func TestWrongValues(t *testing.T) {
	t.Parallel()
	tests := []struct {
		path  string
		value any
		says  string
	}{
		// Names that do not exist, at each depth.
		{"loadbalancer", values{}, "'loadbalancer' not allowed"},
		{"loadBalancer.modes", "dsr", "'modes' not allowed"},
		{"metrics.podMonitor.enable", true, "'enable' not allowed"},
		{"ipMasqAgent.config.nonMasqueradeCIDR", []string{}, "'nonMasqueradeCIDR' not allowed"},
		{"updateStrategy.rollingUpdate.maxUnavailible", 1, "'maxUnavailible' not allowed"},
		// Values from a fixed list of words.
		{"podNetwork", "on", "'off', 'main', 'chained'"},
		{"routing", "geneve", "'none', 'native', 'vxlan'"},
		{"hostRouting", "legacy", "'bpf', 'stack'"},
		{"loadBalancer.mode", "hybrid", "'snat', 'dsr'"},
		{"loadBalancer.dsrDispatch", "gre", "'opt', 'ipip', 'geneve'"},
		{"loadBalancer.acceleration", "auto", "'best-effort', 'native', 'generic', 'disabled'"},
		{"loadBalancer.algorithm", "leastconn", "'random', 'round-robin', 'source-hash', 'maglev'"},
		{"bpf.datapathMode", "netkit-l2", "'auto', 'veth', 'netkit'"},
		{"externalIPs", "none", "'all', 'external-only', 'deny'"},
		{"externalIPs.enable", true, "'enable' not allowed"},
		{"debug.verbose", "flow", "'verbose' not allowed"},
		{"kubeProxyReplacement", "strict", "leave it true"},
		{"log.level", "trace", "'debug', 'info', 'warn', 'error'"},
		{"log.format", "xml", "'text', 'json'"},
		{"image.pullPolicy", "Sometimes", "'Always', 'IfNotPresent', 'Never'"},
		{"updateStrategy.type", "Recreate", "'RollingUpdate', 'OnDelete'"},
		// Values of the wrong type.
		{"masquerade.enabled", "yes", "got string, want boolean"},
		{"bigTCP", 1, "got number, want boolean"},
		{"loadBalancer", "dsr", "got string, want object"},
		{"masquerade.nativeCIDRs", "10.0.0.0/8", "got string, want array"},
		{"tolerations", values{}, "got object, want array"},
		{"extraEnv", []string{"A=b"}, "got string, want object"},
		{"podLabels.a", 1, "got number, want string"},
		{"socketLB.optOutMeshes", "istio", "got string, want null or array"},
		// Numbers and texts.
		{"bpf.ctMax", 1000, "/bpf/ctMax"},
		{"bpf.ctMax", 1 << 40, "/bpf/ctMax"},
		{"k8sServicePort", 0, "/k8sServicePort"},
		{"bandwidthManager.bbr", "sometimes", "/bandwidthManager/bbr"},
		{"bandwidthManager.bbr", true, "bandwidthManager.enabled: true"},
		{"sockmap.enabled", "true", "got string, want boolean"},
		{"sockmap.selector", []string{"app=web"}, "got array, want string"},
		{"sockmap.selector", "app='web'", "is not a label selector"},
		{"sockmap.selector", "app=web", "needs sockmap.enabled: true"},
		{"sockmap.blocking", true, "needs sockmap.enabled: true"},
		{"k8s.apiServerURLs", "http://192.0.2.1:6443", "is not a list of API servers with their ports"},
		{"k8s.apiServerURLs", "https://192.0.2.1", "is not a list of API servers with their ports"},
		{"k8sServicePort", 65536, "/k8sServicePort"},
		{"k8sServicePort", "https", `k8sServicePort: "https" is not a port, such as 6443`},
		{"nodePort.range", "30000", "is not a range of ports, FIRST-LAST"},
		{"nodePort.snatPorts", "all", "is not a range of ports"},
		{"maglev.hashSeed", "short", "/maglev/hashSeed"},
		{"conntrack.udpTimeout", 30, "/conntrack/udpTimeout"},
		{"conntrack.udpTimeout", "30", `conntrack.udpTimeout: "30" is not a duration with its unit`},
		{"metrics.address", ":99999", `metrics.address: ":99999" is not HOST:PORT`},
		{"healthz.address", ":99999", "PORT from 1 to 65535"},
		{"ready.address", "127.0.0.1:70000", `ready.address: "127.0.0.1:70000" is not HOST:PORT on loopback`},
		{"masquerade.nativeCIDRs", []string{"999.1.1.1/99"}, `"999.1.1.1/99" is not a prefix`},
		{"ipMasqAgent.config.nonMasqueradeCIDRs", []string{"10.0.0.0/8", "999.1.1.1/99"}, `"999.1.1.1/99" is not a prefix`},
		{"nodePort.addresses", "999.1.1.1/99", `"999.1.1.1/99" is not primary, a prefix`},
		{"nodePort.addresses", []string{"primary", "10.0.0.0/8"}, "nodePort.addresses: primary cannot be in a list with prefixes"},
		{"nodePort.range", "40000-30000", `nodePort.range: "40000-30000" is not a range of ports, FIRST-LAST with FIRST not above LAST`},
		{"nodePort.snatPorts", "1023-2000", "nodePort.snatPorts: 1023-2000 begins with ports that are the node's own: begin at 1024"},
		{"nodePort.snatPorts", "2-1", "with FIRST not above LAST"},
		{"nodePort.snatPorts", "20000-30000", "nodePort.snatPorts: 20000-30000 overlaps with the NodePorts, 30000-32767"},
		{"nodePort.snatPorts", "50000-61000", "nodePort.snatPorts: 50000-61000 overlaps with 61000-65535, from which nodes send through the tunnel"},
		{"nodePort.range", "30000-65535", "nodePort.range: 30000-65535 overlaps with 61000-65535"},
		{"l7Proxies", []string{"a=99999"}, `"a=99999" is not NAME=PORT`},
		{"l7Proxies", []string{"a=1", "b=1:pass"}, "l7Proxies: b=1:pass has the port of another proxy"},
		{"l7Proxies", []string{"a=1", "a=2"}, "l7Proxies: a=2 has the name of another proxy"},
		{"k8s.apiServerURLs", "h:99999", `"h:99999" is not a list of API servers`},
		{"k8sServicePort", "70000", "is not a port"},
		{"conntrack.udpTimeout", "0s", "from 1s to 1000h"},
		{"conntrack.sctpTimeoutClosing", "1000h1s", "from 1s to 1000h"},
		{"drain", "1001h", "up to 1000h"},
		{"sockmap.selector", "app in web", "is not a label selector"},
		{"socketLB.optOutMeshes", []string{"isto"}, "'istio', 'istio-ambient'"},
		{"extraArgs", []string{"--log-levl=debug"}, "extraArgs: --log-levl=debug: the agent has no such flag"},
		{"extraArgs", []string{"--log-level"}, "is not a flag of the agent with its value"},
		{"extraEnv", []any{values{"name": "FAIRLEAD_LOGLEVEL", "value": "debug"}}, "extraEnv: FAIRLEAD_LOGLEVEL: the agent has no such option"},
		{"metrics.address", "localhost:1", "HOST must be an address or empty"},
		{"metrics.address", "10249", "HOST must be an address or empty"},
		{"healthz.address", ":0", "HOST must be an address or empty"},
		{"ready.address", ":10247", "on loopback"},
		{"ready.address", "", "on loopback"},
		{"image.digest", "sha256:abc", "is not a digest: sha256:"},
		{"image.repository", "a b", "is not the name of an image"},
		{"cni.binPath", "opt/cni", "is not an absolute path"},
		{"cni.confName", "05-fairlead.conf", "ends in .conflist"},
		{"bpf.root", "bpf", "is not an absolute path"},
		{"devices", "", "/devices"},
		{"devices", []string{}, "/devices"},
		{"devices", []string{"eth0,eth1"}, `devices: "eth0,eth1" is not auto`},
		{"l7Proxies", []string{"a=1", "envoy"}, `l7Proxies: "envoy" is not NAME=PORT`},
		{"masquerade.nativeCIDRs", []string{"10.0.0.0"}, `masquerade.nativeCIDRs: "10.0.0.0" is not a prefix`},
		{"extraArgs", []string{"log-level=debug"}, "is not a flag of the agent"},
		// Values refused with a message of their own.
		{"k8sServiceHost", "https://192.0.2.1", "k8sServiceHost: https://192.0.2.1 is not just a name or an address"},
		{"k8sServiceHost", "192.0.2.1:6443", "set the port in k8sServicePort"},
		{"k8sServiceHost", "[2001:db8::1]:6443", "set the port in k8sServicePort"},
		{"k8sServiceHost", "auto", "set k8sServiceHost and k8sServicePort to an address that every node can reach"},
		{"k8sServiceHost", "", "set k8sServiceHost and k8sServicePort to an address that every node can reach"},
		{"k8sServiceHost", nil, "set k8sServiceHost and k8sServicePort to an address that every node can reach"},
		{"bpf.natMax", 524288, "set bpf.ctMax: flows and how they are translated are in one table"},
		{"bpf.mapDynamicSizeRatio", 0.0025, "set bpf.ctMax, which limits the flows"},
		{"cleanup", true, "no nodes are known"},
		{"ipMasqAgent.config.masqLinkLocal", true, "set ipMasqAgent.enabled to true"},
		{"metrics.podMonitor.enabled", true, `set metrics.address, such as ":10249"`},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			t.Parallel()
			_, err := template(t, at(tt.path, tt.value))
			if err == nil {
				t.Fatalf("%v was accepted", tt.value)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v: the message is %v, want %q", tt.value, err, tt.says)
			}
		})
	}
}

// Values that need the pod network are refused without it; otherwise agents would not start, or
// would ignore them.
func TestValuesThatNeedThePodNetwork(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"chained", "off"} {
		for path, value := range map[string]any{
			"bigTCP": true, "bandwidthManager.bbr": true, "l7Proxies": []string{"a=1"}, "bpf.datapathMode": "netkit",
			"hostRouting": "stack", "masquerade.nativeCIDRs": []string{"10.0.0.0/8"}, "ipMasqAgent.enabled": true, "policies": "enforce",
		} {
			_, err := template(t, at("podNetwork", network), at(path, value))
			if err == nil || !strings.Contains(err.Error(), "podNetwork: main, but it is "+network) || !strings.Contains(err.Error(), path+": ") {
				t.Errorf("podNetwork %s with %s: %v", network, path, err)
			}
		}
		_, err := template(t, at("podNetwork", network), at("bandwidthManager.enabled", true))
		if network == "chained" && err != nil || network == "off" && (err == nil || !strings.Contains(err.Error(), "podNetwork: main or chained, but it is off")) {
			t.Errorf("podNetwork %s with rates: %v", network, err)
		}
	}
}

// refusal is an entry of refused.yaml.
type refusal struct {
	Value, But, Why string
	Alone           bool
}

// Values that users of Cilium bring along and that cannot be set here are refused with a message
// that says what to do instead, unless they ask for what fairlead does anyway.
func TestWhatIsDecidedOtherwise(t *testing.T) {
	t.Parallel()
	var table []refusal
	readYAML(t, "refused.yaml", &table)
	// A value that is neither the refused one nor the accepted one.
	var let []values
	for _, r := range table {
		if r.But != "" {
			let = append(let, at(r.Value, map[string]any{"true": true, "false": false}[r.But]))
			if r.But != "true" && r.But != "false" {
				let[len(let)-1] = at(r.Value, r.But)
			}
		}
		t.Run(r.Value, func(t *testing.T) {
			t.Parallel()
			var value any = "other"
			if r.But == "true" || r.But == "false" {
				value = r.But == "false"
			}
			if _, err := template(t, at(r.Value, value)); err == nil || !strings.Contains(err.Error(), r.Value+": "+r.Why) {
				t.Errorf("%v: %v", value, err)
			}
		})
	}
	if _, err := template(t, let...); err != nil {
		t.Errorf("values that ask for what fairlead does anyway: %v", err)
	}
}

// Every name that docs/values.md gives as known to users of Cilium can be set: it is a value of
// this chart, or the refusal names the value.
func TestKnownNames(t *testing.T) {
	t.Parallel()
	var table []refusal
	readYAML(t, "refused.yaml", &table)
	within := func(name, of string) bool { return name == of || strings.HasPrefix(name, of+".") }
	for _, r := range rows(t) {
		for name := range strings.SplitSeq(r.Known, ", ") {
			known := name == ""
			for value := range standard(t) {
				known = known || within(value, name)
			}
			for _, refused := range table {
				known = known || within(name, refused.Value)
			}
			if !known {
				t.Errorf("option %s: users of Cilium know it as %s, which helm refuses without saying why: add it to refused.yaml", r.Option, name)
			}
		}
	}
}

// form is a row of forms.yaml.
type form struct {
	Part, Form, Not, Want string
	Values                []string
	Bytes                 int
	Seconds               []int
	Rising                bool
}

func forms(t testing.TB) (table []form) {
	t.Helper()
	readYAML(t, "forms.yaml", &table)
	return table
}

// A regular expression is no help to a user who wrote something else, so the schema has no
// patterns, and forms.yaml describes each form in words.
func TestForms(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	if found := regexp.MustCompile(`"[A-Za-z0-9]+": \{[^{}]*"pattern"`).Find(content); found != nil || strings.Contains(string(content), `"pattern"`) {
		t.Errorf("values.schema.json has a pattern: %s", found)
	}
	all, seen := standard(t), map[string]bool{}
	for _, r := range forms(t) {
		if r.Part != "" {
			continue
		}
		if _, err := regexp.Compile(r.Form); err != nil || r.Want == "" || len(r.Values) == 0 {
			t.Errorf("%q: %v", r.Values, err)
		}
		for _, path := range r.Values {
			_, known := all[path]
			if known = known || strings.HasPrefix(path, "ipMasqAgent.config."); !known || seen[path] {
				t.Errorf("%s is not a value, or is listed twice", path)
			}
			seen[path] = true
		}
	}
}
