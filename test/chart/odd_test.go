package chart

import (
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/optout"
	"fairlead.io/fairlead/pkg/source"
)

// starts checks options as the agent does before it touches the node: all of them when they are
// read, and some again by the package that is told them.
func starts(t *testing.T, options map[string]string) error {
	t.Helper()
	cfg, err := load(t, options)
	if err != nil {
		return err
	}
	if _, err := devices.ParseFilter(cfg.Devices); err != nil {
		return err
	}
	if _, err := datapath.ParseNodePortAddrs(cfg.NodePortAddresses); err != nil {
		return err
	}
	if _, err := source.ParseSelector(cfg.AccelerateSelector); err != nil {
		return err
	}
	_, err = optout.ParseRules(cfg.OptOutRuntimes, cfg.OptOutMeshes, source.Meshes())
	return err
}

// Whatever the chart takes, the agent takes too. Each value is odd in a way that its form could
// overlook; one for each form must be taken, so that a form does not just refuse everything.
func TestOddValues(t *testing.T) {
	t.Parallel()
	address := []string{":1", ":65535", ":0", ":010", ":65536", ":99999", ":100000", ":+1", ":", "1:1", "1.2.3:1", "1.2.3.4:1", "1.2.3.256:1", "1.2.3.04:1", "1.2.3.4.5:1",
		"[::1]:1", "[::]:1", "[:::]:1", "[::1", "[1:2:3:4:5:6:7:8]:1", "[1:2:3:4:5:6:7]:1", "[1:2:3:4:5:6:7::8]:1", "[1::2::3]:1", "[fe80::1%eth0]:1", "[fe80::1%]:1", "[12345::]:1",
		"::1:1", "[1.2.3.4]:1", "[::g]:1", "127.0.0.1:70000", "127.0.0.1:1", "127.0.0.256:1", "127.1:1", "127.0.0.1.1:1", "[::1%lo]:1", "[::ffff:7f00:1]:1", ":1\n", " :1"}
	prefix := []string{"0.0.0.0/0", "10.0.0.0/8", "999.1.1.1/99", "10.0.0.0/33", "10.0.0.0/08", "10.0.0.0/", "10.0.0/8", "010.0.0.0/8", "::/0", "fd00::/8", "fd00::/129", "fd00:/8", "fd00:::/8",
		"1:2:3:4:5:6:7:8/128", "1:2:3:4:5:6:7:8:9/128", "fe80::%eth0/64", "::ffff:1:2/128", "::FFFF:0:0/96", "0:0:0:0:0:ffff::/96", "::ffff:1.2.3.4/120", "64:ff9b::1.2.3.4/128", "10.0.0.0/8 ", "10.0.0.0/8,"}
	ports := []string{"1-65535", "0-1", "40000-30000", "40000-40000", "1-65536", "99999-99999", "1-2-3", "1-", "9-10", "100-20", "1-2\n"}
	length := []string{"1s", "0s", "999ms", "1000ms", "0.5s", "1000h", "1001h", "999h60m", "1000h1ms", "0h0m1s", "0.999s", "0.0001h", "1.5h30m", "99999999999999999999h", "1d", "1", "-1s", "1s ", ".5h", "1us", "60000.001m"}
	path := []string{"/", "/a b", "/a\nb", "a", "", "/é", "/a/../b", "/a..b", "/a:b"}
	selector := []string{"a", "!a", "a=b", "a==b", "a!=b", "a=", "a in (b, c)", "a in (b,)", "a in ()", "a in b", "a notin (b),c", "a,,b", ",a", "a b", "a>1", "a<b", "a=b c", "=", "a in (b", "a/b/c=d", "x.y/a=b",
		"X.y/a=b", "/a=b", "x..y/a=b", "a-", "-a", "a=-b", strings.Repeat("a", 63), strings.Repeat("a", 64), "a=" + strings.Repeat("a", 64), "in=a", "in", "notin in (in)", "a in (in)", "!in", "! a", "!a=b", "a in(b)", "a notin  (b) , c", "()", "a,"}
	option := map[string]string{}
	for _, r := range rows(t) {
		option[r.Value] = r.Option
	}
	all := map[string][]string{
		"metrics.address": address, "ready.address": address, "masquerade.nativeCIDRs": prefix,
		"nodePort.addresses": {"primary", "Primary", "", "10.0.0.0/8", "10.0.0.0/33", "::ffff:1:2/128"}, "nodePort.range": ports, "nodePort.snatPorts": append(ports, "30000-30000", "29999-32768", "32768-40000", "1024-29999"),
		"bpf.root": path, "cgroup.hostRoot": path, "cni.confName": {"a.conflist", ".conflist", "a/b.conflist", "a\nb.conflist", "a.conflist\n", "a b.conflist"},
		"k8s.apiServerURLs": {"", "h:1", "h:99999", "h:0", "h", "http://h:1", "https://h:1/", "https://h:1/x", "https://h:1,https://[fd00::1]:2", "a:b:1", "[a]:1", "[fd00::1]:1", "fd00::1:1", "[[]:1",
			"h?:1", "h#:1", "a:1 b:2", "a:1,", ",a:1", ":1", "u@h:1", "h:1\n", "https://https://h:1"},
		"l7Proxies":        {"a=1", "a=65535:pass", "a=99999", "a=0", "a=01", "A=1", "-a=1", "a-=1", "a.b=1", "a=1:no", "a=1:", "a =1", "a= 1", strings.Repeat("a", 63) + "=1", strings.Repeat("a", 64) + "=1"},
		"devices":          {"auto", "none", "eth0", "*", "eth*", "e*h0", "*eth", "**", "a b", "a/b", "a\tb", strings.Repeat("a", 15), strings.Repeat("a", 16), strings.Repeat("a", 15) + "*", strings.Repeat("é", 8), " ", " eth0 "},
		"sockmap.except":   {"nginx", " ", " a", "a b", strings.Repeat("a", 15), strings.Repeat("a", 16), strings.Repeat("é", 8), "a\nb", ""},
		"maglev.hashSeed":  {"0123456789abcdef", "0123456789abcde\n", strings.Repeat("é", 512), strings.Repeat("é", 513), strings.Repeat("a", 1024)},
		"sockmap.selector": selector, "socketLB.optOutRuntimes": {"kata*", "a[", "a[b]", "a\\", "[^]", "a?", "a,b[", "", "a\nb"}, "socketLB.optOutMeshes": {"istio", "Istio", "none", "", "istio,none"},
		"conntrack.udpTimeout": length,
		"serviceCIDRs":         {"auto", "off", "Auto", "", "10.96.0.0/12", "10.96.0.0/12,fd00:96::/108", "10.96.0.0", "10.96.0.0/33", "::ffff:10.0.0.0/104", "10.96.0.0/12,", "10.96.0.0/12 ,fd00::/108", "10.96.0.0/12, fd00::/108"},
		"quota.service":        {"slots=1", "slots=0", "slots=01", "slots=999999999", "slots=1000000000", "slot=1", "slots", "", "slots=1,", "slots=1,hosted=2", "slots=1,slots=2", "slots=1 ", "slots=1\n", "slots=-1"},
	}
	for _, form := range forms(t) {
		isSet := slices.ContainsFunc(form.Values, func(path string) bool { return option[path] != "" })
		if isSet && !slices.ContainsFunc(form.Values, func(path string) bool { return all[path] != nil }) {
			t.Errorf("the test has no odd value for %q", form.Values)
		}
	}
	for path, odd := range all {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			standard, _ := standard(t)[path].([]any)
			taken := 0
			for _, text := range odd {
				var value any = text
				if standard != nil || strings.HasPrefix(path, "socketLB.") {
					value = []string{text}
				}
				refused := starts(t, map[string]string{option[path]: text})
				if refused == nil && taken > 0 {
					continue // whether the chart takes it too is its own affair
				}
				_, err := template(t, at("sockmap.enabled", true), at(path, value))
				switch {
				case err == nil && refused != nil:
					t.Errorf("the chart takes %q, and the agent does not: %v", text, refused)
				case err == nil:
					taken++
				case !strings.Contains(err.Error(), path+": ") && !strings.Contains(err.Error(), "/"+strings.ReplaceAll(path, ".", "/")):
					t.Errorf("%q is refused without saying where: %v", text, err)
				}
			}
			if taken == 0 {
				t.Error("every value is refused")
			}
		})
	}
	if _, err := template(t, at("socketLB.optOutMeshes", source.Meshes())); err != nil {
		t.Errorf("every mesh that the agent knows: %v", err)
	}
}
