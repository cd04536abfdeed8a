// Package layout checks the shape of the source tree: which package may import which, what packages
// may be called, how long a file may get, and what must not appear in it.
package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "fairlead.io/fairlead"

// rule says which of our packages a package may import. A name that ends in /... also stands for
// all packages below it.
type rule struct {
	of  string
	may []string
	why string
}

// rules has a row for every package; the first match applies. A package without a row is a mistake:
// add one with the package.
func rules() []rule {
	return []rule{
		{"pkg/model", nil, "the model knows neither where objects come from nor where rows go"},
		{"pkg/bpf", nil, "it is generated code and the lowest layer"},
		{"pkg/config", []string{"pkg/model"}, "options are text, and ranges of ports; the packages that get them decide what they mean"},
		{"pkg/source/kube", []string{"pkg/source", "pkg/source/podslices", "pkg/model", "pkg/phrase"}, "a source translates objects into the model and knows no rows"},
		{"pkg/source/...", []string{"pkg/source", "pkg/model", "pkg/phrase"}, "a source translates objects into the model and knows no rows"},
		{"pkg/maps", []string{"pkg/bpf", "pkg/model"}, "tables own the maps; higher layers decide what a row means"},
		{"pkg/lb", []string{"pkg/model", "pkg/maps", "pkg/bpf"}, "the compiler is pure: model in, rows out"},
		{"pkg/policy", []string{"pkg/model"}, "the compiler is pure: objects in, tables out; who writes maps and who reads the API server is not its business"},
		{"pkg/policies", []string{"pkg/policy", "pkg/model"}, "it feeds the compiler from any source, and hands what changed to whoever writes maps"},
		{"pkg/enforce", []string{"pkg/bpf", "pkg/maps", "pkg/model", "pkg/policy", "pkg/ticks"}, "it writes what policies compile to; who watches objects and pods is above it"},
		{"pkg/reconcile", []string{"pkg/lb", "pkg/maps", "pkg/model", "pkg/phrase"}, "the only writer of the tables writes what lb wants, whatever the source"},
		{"pkg/netfilter", nil, "it reads the kernel's records; higher layers decide what to do with them"},
		{"pkg/hostfs", nil, "it finds and mounts file systems; higher layers decide what they put there"},
		{"pkg/devices", nil, "it attaches the programs that it is given; higher layers decide what they do and configure them"},
		{"pkg/ticks", []string{"pkg/maps"}, "it knows the time of the programs and writes since when routes and ranges hold; others say when they change"},
		{"pkg/flowtable", []string{"pkg/bpf", "pkg/maps", "pkg/model", "pkg/netfilter", "pkg/ticks"}, "it moves flows between the programs and the stack; a layer that knows the frontends says which"},
		{"pkg/trial", []string{"pkg/bpf", "pkg/devices", "pkg/maps"}, "it runs copies of the programs over copies of maps, and changes nothing"},
		{"pkg/datapath", []string{"pkg/phrase", "pkg/hostfs", "pkg/trial", "pkg/flowtable", "pkg/ticks", "pkg/devices", "pkg/maps", "pkg/bpf", "pkg/model"}, "programs and maps outlive the agent and work without Services; of the model they know addresses, names and ranges of ports"},
		{"pkg/bigtcp", []string{"pkg/devices"}, "it raises the packet size limits of devices; higher layers decide whether, and of which ones"},
		{"pkg/congestion", []string{"pkg/bpf"}, "it probes the kernel; higher layers decide for which pods, and act on the result"},
		{"pkg/queues", []string{"pkg/devices", "pkg/congestion"}, "it gives devices queues; higher layers decide whether, and which ones get them"},
		{"pkg/sysctl", nil, "it changes kernel settings and restores them; higher layers decide when"},
		{"pkg/routes", []string{"pkg/phrase"}, "it follows the kernel's routes and reports changes; higher layers decide who is told"},
		{"pkg/nodes", []string{"pkg/maps", "pkg/model"}, "it decides which addresses and sources belong to which node, from any source, and writes two maps"},
		{"pkg/optout", []string{"pkg/maps", "pkg/model"}, "it decides about pods from any source and writes one map"},
		{"pkg/sockmap", []string{"pkg/bpf", "pkg/model", "pkg/phrase"}, "its own maps and programs work without Services"},
		{"pkg/bugreport", []string{"pkg/devices"}, "it writes what functions give it, and what the kernel says about the machine and its devices"},
		{"pkg/preflight", []string{"pkg/devices"}, "it checks a machine on which nothing of ours may be installed yet"},
		{"pkg/phrase", nil, "it puts values into words, and knows nothing of what they are values of"},
		{"pkg/reasons", []string{"pkg/phrase", "pkg/maps", "pkg/bpf"}, "it describes why programs drop, and reads how often they did"},
		{"pkg/snapshot", []string{"pkg/phrase", "pkg/reasons", "pkg/lb", "pkg/maps", "pkg/model"}, "it only reads, even if no agent runs"},
		{"pkg/mapstats", []string{"pkg/phrase", "pkg/reasons", "pkg/snapshot", "pkg/maps", "pkg/bpf"}, "it only reads, even if no agent runs"},
		{"pkg/explain", []string{"pkg/phrase", "pkg/reasons", "pkg/snapshot", "pkg/lb", "pkg/maps", "pkg/bpf", "pkg/model"}, "it follows the steps of the programs in a snapshot, and changes nothing"},
		{"pkg/render", []string{"pkg/snapshot", "pkg/maps"}, "it writes text about a snapshot"},
		{"pkg/observe", []string{"pkg/phrase", "pkg/mapstats", "pkg/maps", "pkg/agent/life", "pkg/bigtcp", "pkg/conntrack", "pkg/datapath", "pkg/fabric", "pkg/masquerade", "pkg/model", "pkg/optout", "pkg/podnet", "pkg/policies", "pkg/queues", "pkg/reconcile", "pkg/routes", "pkg/sockmap", "pkg/source"}, "it composes what other packages know, and knows nothing by itself"},
		{"pkg/sockets", []string{"pkg/maps", "pkg/model"}, "it inspects and aborts sockets; a layer that knows the backends decides which"},
		{"pkg/conntrack", []string{"pkg/maps", "pkg/model", "pkg/phrase"}, "it deletes flows that have ended; a layer that knows the backends says which backends are gone"},
		{"pkg/monitor", []string{"pkg/maps", "pkg/reasons", "pkg/snapshot"}, "it passes on the events of the programs and tells them which to send"},
		{"pkg/health", nil, "it answers with what functions tell it, and knows neither maps nor objects"},
		{"pkg/metrics", []string{"pkg/reconcile", "pkg/optout", "pkg/podnet", "pkg/policies", "pkg/fabric", "pkg/sockets", "pkg/conntrack", "pkg/routes", "pkg/monitor", "pkg/mapstats", "pkg/reasons", "pkg/datapath", "pkg/model", "pkg/queues", "pkg/sockmap"}, "it counts what other packages do and know, and does nothing itself"},
		{"pkg/cni", nil, "the plugin links it and runs for every pod"},
		{"pkg/fabric", []string{"pkg/model", "pkg/devices"}, "it asks the kernel for its routes by way of devices, makes routes to nodes from any source, and knows neither programs nor pods"},
		{"pkg/cni/install", nil, "it installs files, and is told where and for which socket"},
		{"pkg/masquerade", nil, "it reads one file; higher layers apply it"},
		{"pkg/podnet", []string{"pkg/cni", "pkg/maps", "pkg/model", "pkg/devices"}, "it answers the plugin; functions tell it about the node"},
		{"pkg/api", []string{"pkg/model", "pkg/observe", "pkg/policies", "pkg/config", "pkg/cni", "pkg/explain", "pkg/monitor"}, "it listens as the plugin's socket does, publishes what other packages know, and must not be able to change anything but the log level and rows that differ from the objects"},
		{"pkg/agent/life", []string{"pkg/phrase", "pkg/preflight"}, "it starts and ends tasks and counts their starts, and does not know what they do"},
		{"pkg/agent/cluster", []string{"pkg/source/...", "pkg/config", "pkg/metrics", "pkg/model"}, "it fills the store and reports to the cluster, and knows neither programs nor maps"},
		{"pkg/agent/connections", []string{"pkg/flowtable", "pkg/ticks", "pkg/config", "pkg/conntrack", "pkg/datapath", "pkg/maps", "pkg/model", "pkg/netfilter", "pkg/routes", "pkg/sockets", "pkg/mapstats"},
			"it looks after rows that the programs write; a layer that knows the backends says which are gone"},
		{"pkg/agent/acceleration", []string{"pkg/agent/life", "pkg/cni", "pkg/config", "pkg/model", "pkg/optout", "pkg/sockmap", "pkg/source"}, "it works beside any proxy and pod network, so it knows nothing of Services"},
		{"pkg/agent/podnetwork", []string{"pkg/agent/life", "pkg/bigtcp", "pkg/cni", "pkg/cni/install", "pkg/config", "pkg/congestion", "pkg/datapath", "pkg/fabric", "pkg/maps", "pkg/masquerade", "pkg/metrics",
			"pkg/model", "pkg/nodes", "pkg/observe", "pkg/podnet", "pkg/policies", "pkg/queues", "pkg/reconcile", "pkg/source/file", "pkg/sysctl"}, "it wires what pods' network is made of, and knows nothing of Services"},
		{"pkg/agent", []string{"pkg/..."}, "the agent wires everything together, and nothing but a command imports it"},
		{"cmd/...", []string{"pkg/..."}, "commands have the agent run, ask it, and read the kernel; nothing imports a command"},
		{"deploy/...", []string{"deploy/..."}, "it packs what was built and is not part of it"},
		{"test/...", []string{"pkg/...", "deploy/...", "test/..."}, "tests may look everywhere but run commands as a user does"},
	}
}

// outsider says which packages may import packages of other modules.
type outsider struct {
	prefix string
	only   []string
	why    string
}

func outsiders() []outsider {
	return []outsider{
		{"k8s.io/", []string{"pkg/source/...", "cmd/...", "test/..."}, "only the sources know Kubernetes, and the agent works without it"},
		{"github.com/cilium/ebpf", []string{"pkg/bpf", "pkg/maps", "pkg/devices", "pkg/ticks", "pkg/flowtable", "pkg/trial", "pkg/datapath", "pkg/enforce", "pkg/congestion", "pkg/sockmap", "pkg/reasons", "pkg/snapshot", "pkg/mapstats", "pkg/explain", "test/..."},
			"code reaches maps and programs through our types, which have tests and fakes"},
		{"github.com/prometheus/", []string{"pkg/metrics"}, "what is counted does not depend on the form in which it is published"},
		{"github.com/spf13/cobra", []string{"cmd/..."}, "only the command line has commands"},
		{"testing", []string{"test/..."}, "it is for tests only"},
	}
}

// link says what must not be linked into a program, directly or indirectly.
type link struct {
	of     string
	prefix string
	why    string
}

func links() []link {
	return []link{
		{"cmd/fairlead-cni", "k8s.io", "the plugin runs for every pod and must start in milliseconds"},
		{"cmd/fairlead-cni", "github.com/cilium/ebpf", "the plugin must start in milliseconds"},
		{"cmd/fairlead-cni", "github.com/prometheus", "the plugin must start in milliseconds"},
		{"cmd/fairlead-cni", "github.com/spf13", "the plugin must start in milliseconds"},
		{"cmd/...", module + "/test", "it is for tests only"},
	}
}

// vague are package names that invite everything.
func vague() []string {
	return []string{"base", "common", "helper", "helpers", "manager", "managers", "misc", "shared", "types", "util", "utils"}
}

// node is a package as "go list -json" describes it.
type node struct {
	ImportPath                               string
	Imports, TestImports, XTestImports, Deps []string
}

// violations returns every import and package name in the graph that breaks a rule.
func violations(graph []node) []string {
	var found []string
	for _, n := range graph {
		name := ours(n.ImportPath)
		for _, element := range strings.Split(name, "/") {
			if slices.Contains(vague(), element) {
				found = append(found, fmt.Sprintf("%s: %q says nothing about what the package contains", name, element))
			}
		}
		found = append(found, inside(name, n)...)
		found = append(found, outside(name, n)...)
	}
	return found
}

// inside checks the imports of our own packages.
func inside(name string, n node) []string {
	at := slices.IndexFunc(rules(), func(r rule) bool { return within(name, r.of) })
	if at < 0 {
		return []string{name + ": has no rule; add it to the table with what it may import"}
	}
	r := rules()[at]
	var found []string
	for _, imported := range n.Imports {
		target := ours(imported)
		if target == "" || slices.ContainsFunc(r.may, func(may string) bool { return within(target, may) }) {
			continue
		}
		found = append(found, fmt.Sprintf("%s imports %s: %s", name, target, r.why))
	}
	for _, imported := range slices.Concat(n.TestImports, n.XTestImports) {
		if target := ours(imported); within(target, "cmd/...") && target != name {
			found = append(found, fmt.Sprintf("a test of %s imports %s: nothing imports a command", name, target))
		}
	}
	return found
}

// outside checks the imports of other modules' packages.
func outside(name string, n node) []string {
	var found []string
	for _, o := range outsiders() {
		if slices.ContainsFunc(o.only, func(only string) bool { return within(name, only) }) {
			continue
		}
		for _, imported := range n.Imports {
			if imported == o.prefix || strings.HasPrefix(imported, strings.TrimSuffix(o.prefix, "/")+"/") {
				found = append(found, fmt.Sprintf("%s imports %s: %s", name, imported, o.why))
			}
		}
	}
	for _, l := range links() {
		if !within(name, l.of) {
			continue
		}
		for _, dep := range n.Deps {
			if dep == l.prefix || strings.HasPrefix(dep, l.prefix+"/") {
				found = append(found, fmt.Sprintf("%s links %s: %s", name, dep, l.why))
			}
		}
	}
	return found
}

// ours returns the path of one of our packages relative to the module, and "" for any other
// package.
func ours(importPath string) string {
	name, ok := strings.CutPrefix(importPath, module+"/")
	if !ok {
		return ""
	}
	return name
}

func within(name, pattern string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == tree || strings.HasPrefix(name, tree+"/")
	}
	return name == pattern
}

func TestImports(t *testing.T) {
	graph := listPackages(t)
	if len(graph) < 5 {
		t.Fatalf("go list found only %d packages", len(graph))
	}
	for _, violation := range violations(graph) {
		t.Error(violation)
	}
}

// Every rule matches some package, so renaming a package cannot take it out of its rule unnoticed.
func TestRulesAreUsed(t *testing.T) {
	graph := listPackages(t)
	for _, r := range rules() {
		if !slices.ContainsFunc(graph, func(n node) bool { return within(ours(n.ImportPath), r.of) }) {
			t.Errorf("the rule for %s matches no package", r.of)
		}
		if r.why == "" {
			t.Errorf("the rule for %s has no reason", r.of)
		}
	}
}

func listPackages(t *testing.T) []node {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,Deps", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("list packages: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("list packages: %v", err)
	}
	var graph []node
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var n node
		if err := decoder.Decode(&n); errors.Is(err, io.EOF) {
			return graph
		} else if err != nil {
			t.Fatalf("read the list of packages: %v", err)
		}
		graph = append(graph, n)
	}
}

// A graph with one bad edge is refused for that edge and nothing else; without the edge it passes.
func TestPlantedImports(t *testing.T) {
	good := func() map[string]*node {
		return map[string]*node{
			"pkg/model":        {},
			"pkg/bpf":          {Imports: []string{"github.com/cilium/ebpf"}},
			"pkg/config":       {Imports: []string{"github.com/spf13/pflag"}},
			"pkg/source/kube":  {Imports: []string{"k8s.io/client-go/informers", "@pkg/model", "@pkg/source"}},
			"pkg/maps":         {Imports: []string{"github.com/cilium/ebpf", "@pkg/bpf", "@pkg/model"}},
			"pkg/lb":           {Imports: []string{"@pkg/model", "@pkg/maps"}},
			"pkg/reconcile":    {Imports: []string{"@pkg/lb", "@pkg/maps", "@pkg/model"}, TestImports: []string{"testing", "@test/rig"}},
			"pkg/datapath":     {Imports: []string{"github.com/cilium/ebpf/link", "@pkg/maps"}},
			"pkg/snapshot":     {Imports: []string{"@pkg/lb", "@pkg/maps"}},
			"pkg/observe":      {Imports: []string{"@pkg/mapstats"}},
			"pkg/api":          {Imports: []string{"@pkg/observe"}},
			"cmd/fairlead":     {Imports: []string{"@pkg/reconcile", "k8s.io/klog/v2", "github.com/spf13/cobra"}, Deps: []string{"k8s.io/client-go/rest"}},
			"cmd/fairlead-cni": {Imports: []string{"@pkg/api"}, Deps: []string{"github.com/containernetworking/cni/pkg/types"}},
			"test/rig":         {Imports: []string{"@pkg/maps", "testing"}},
		}
	}
	graphOf := func(packages map[string]*node) []node {
		var graph []node
		for name, n := range packages {
			for _, list := range []*[]string{&n.Imports, &n.TestImports, &n.XTestImports, &n.Deps} {
				for i, imported := range *list {
					(*list)[i] = strings.Replace(imported, "@", module+"/", 1)
				}
			}
			n.ImportPath = path.Join(module, name)
			graph = append(graph, *n)
		}
		return graph
	}
	if found := violations(graphOf(good())); len(found) > 0 {
		t.Fatalf("the good graph was refused: %q", found)
	}

	tests := []struct {
		of    string
		plant node
		want  string // the one violation begins with it
	}{
		{"pkg/model", node{Imports: []string{"@pkg/lb"}}, "pkg/model imports pkg/lb: "},
		{"pkg/bpf", node{Imports: []string{"@pkg/model"}}, "pkg/bpf imports pkg/model: "},
		{"pkg/config", node{Imports: []string{"@pkg/lb"}}, "pkg/config imports pkg/lb: "},
		{"pkg/source/kube", node{Imports: []string{"@pkg/lb"}}, "pkg/source/kube imports pkg/lb: "},
		{"pkg/source/kube", node{Imports: []string{"@pkg/source/file"}}, "pkg/source/kube imports pkg/source/file: "},
		{"pkg/maps", node{Imports: []string{"@pkg/lb"}}, "pkg/maps imports pkg/lb: "},
		{"pkg/lb", node{Imports: []string{"@pkg/reconcile"}}, "pkg/lb imports pkg/reconcile: "},
		{"pkg/reconcile", node{Imports: []string{"@pkg/datapath"}}, "pkg/reconcile imports pkg/datapath: "},
		{"pkg/reconcile", node{Imports: []string{"@pkg/source/kube"}}, "pkg/reconcile imports pkg/source/kube: "},
		{"pkg/datapath", node{Imports: []string{"@pkg/lb"}}, "pkg/datapath imports pkg/lb: "},
		{"pkg/api", node{Imports: []string{"@pkg/reconcile"}}, "pkg/api imports pkg/reconcile: "},
		{"pkg/health", node{Imports: []string{"@pkg/model"}}, "pkg/health imports pkg/model: "},
		{"pkg/metrics", node{Imports: []string{"@pkg/source/kube"}}, "pkg/metrics imports pkg/source/kube: "},
		{"pkg/observe", node{Imports: []string{"@cmd/fairlead"}}, "pkg/observe imports cmd/fairlead: "},
		{"pkg/lb", node{Imports: []string{"@test/rig"}}, "pkg/lb imports test/rig: "},
		{"test/rig", node{Imports: []string{"@cmd/fairlead"}}, "test/rig imports cmd/fairlead: "},
		{"pkg/api", node{TestImports: []string{"@cmd/fairlead"}}, "a test of pkg/api imports cmd/fairlead: "},
		{"test/rig", node{XTestImports: []string{"@cmd/fairlead"}}, "a test of test/rig imports cmd/fairlead: "},

		{"pkg/lb", node{Imports: []string{"k8s.io/api/core/v1"}}, "pkg/lb imports k8s.io/api/core/v1: "},
		{"pkg/reconcile", node{Imports: []string{"github.com/cilium/ebpf"}}, "pkg/reconcile imports github.com/cilium/ebpf: "},
		{"pkg/lb", node{Imports: []string{"github.com/cilium/ebpf/link"}}, "pkg/lb imports github.com/cilium/ebpf/link: "},
		{"pkg/api", node{Imports: []string{"github.com/spf13/cobra"}}, "pkg/api imports github.com/spf13/cobra: "},
		{"pkg/reconcile", node{Imports: []string{"github.com/prometheus/client_golang/prometheus"}},
			"pkg/reconcile imports github.com/prometheus/client_golang/prometheus: "},
		{"pkg/lb", node{Imports: []string{"testing"}}, "pkg/lb imports testing: "},
		{"cmd/fairlead-cni", node{Deps: []string{"k8s.io/client-go/rest"}}, "cmd/fairlead-cni links k8s.io/client-go/rest: "},
		{"cmd/fairlead", node{Deps: []string{"@test/rig"}}, "cmd/fairlead links " + module + "/test/rig: "},

		{"pkg/new", node{}, "pkg/new: has no rule"},
		{"pkg/source/util", node{}, `pkg/source/util: "util" says nothing`},
		{"cmd/common/fairlead", node{}, `cmd/common/fairlead: "common" says nothing`},
	}
	for _, tt := range tests {
		packages := good()
		n := packages[tt.of]
		if n == nil {
			n = &node{}
			packages[tt.of] = n
		}
		n.Imports = append(n.Imports, tt.plant.Imports...)
		n.TestImports = append(n.TestImports, tt.plant.TestImports...)
		n.XTestImports = append(n.XTestImports, tt.plant.XTestImports...)
		n.Deps = append(n.Deps, tt.plant.Deps...)
		found := violations(graphOf(packages))
		if len(found) != 1 || !strings.HasPrefix(found[0], tt.want) {
			t.Errorf("planted %s:\n%s", tt.want, cmp.Diff([]string{tt.want}, found))
		}
	}
}
