package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/lb"
)

// value is a value of values.yaml, with the comment above it.
type value struct{ path, standard, says string }

// described reads values.yaml line by line, because a YAML parser drops comments. Each line is a
// key, or a comment that describes the next key.
func described(t testing.TB) (all []value) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(folder, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	key := regexp.MustCompile(`^( *)([A-Za-z0-9]+):(?: (.*))?$`)
	var above []string
	says := ""
	for i, line := range strings.Split(strings.TrimSuffix(string(content), "\n"), "\n") {
		if comment, ok := strings.CutPrefix(strings.TrimSpace(line), "# -- "); ok {
			says = comment
			continue
		}
		found := key.FindStringSubmatch(line)
		if found == nil {
			if line != "" {
				t.Fatalf("values.yaml:%d is neither a key nor a description: %s", i+1, line)
			}
			continue
		}
		depth := len(found[1]) / 2
		above = append(above[:depth], found[2])
		if found[3] != "" {
			all = append(all, value{strings.Join(above, "."), found[3], says})
		}
		says = ""
	}
	return all
}

// leaves adds the paths of the values in a tree to into.
func leaves(tree values, above string, into map[string]any) {
	for name, v := range tree {
		if below, ok := v.(values); ok && len(below) > 0 && name != "nodeSelector" && name != "labels" {
			leaves(below, above+name+".", into)
			continue
		}
		into[above+name] = v
	}
}

func standard(t testing.TB) map[string]any {
	t.Helper()
	var tree values
	readYAML(t, "values.yaml", &tree)
	all := map[string]any{}
	leaves(tree, "", all)
	return all
}

func TestValuesAreDescribed(t *testing.T) {
	t.Parallel()
	var have []string
	for _, v := range described(t) {
		have = append(have, v.path)
		if !strings.HasSuffix(v.says, ".") {
			t.Errorf("the description of %s is not a sentence: %q", v.path, v.says)
		}
	}
	slices.Sort(have)
	if diff := cmp.Diff(slices.Sorted(maps.Keys(standard(t))), have); diff != "" {
		t.Errorf("values.yaml (-values +described):\n%s", diff)
	}
}

// schema is the part of values.schema.json that the tests look at.
type schema struct {
	Type                 any
	Properties           map[string]schema
	AdditionalProperties any
	Enum, Items          any
	AnyOf                []schema
}

// The schema knows every value and no other, and refuses every other name.
func TestSchema(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var root schema
	if err := json.Unmarshal(content, &root); err != nil {
		t.Fatal(err)
	}
	var refused []refusal
	readYAML(t, "refused.yaml", &refused)
	want := standard(t)
	for _, r := range refused {
		name, _, _ := strings.Cut(r.Value, ".")
		if _, ok := want[r.Value]; !ok && root.Properties[name].Properties == nil {
			want[name] = nil // as a whole: refused.yaml says what is below
		} else if !ok {
			want[r.Value] = nil
		}
	}
	want["global"] = nil // helm's
	have := map[string]any{}
	var walk func(s schema, path string)
	walk = func(s schema, path string) {
		if s.Properties == nil {
			have[path] = nil
			return
		}
		if s.AdditionalProperties != false {
			t.Errorf("%s: allows unknown names", path)
		}
		for name, below := range s.Properties {
			walk(below, strings.TrimPrefix(path+"."+name, "."))
		}
	}
	walk(root, "")
	// Objects that are empty by default have the names below them only in the schema.
	for _, path := range []string{"ipMasqAgent.config", "resources.limits", "updateStrategy.rollingUpdate", "resources.requests", "controller.resources.limits", "controller.resources.requests"} {
		for name := range have {
			if strings.HasPrefix(name, path+".") {
				delete(have, name)
			}
		}
		for name := range want {
			if strings.HasPrefix(name, path+".") {
				delete(want, name)
			}
		}
		delete(have, path)
		delete(want, path)
	}
	delete(have, "resources.claims")
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(have))); diff != "" {
		t.Errorf("values.schema.json (-values +schema):\n%s", diff)
	}
	for _, r := range rows(t) {
		if _, ok := want[r.Value]; r.Value != "" && !ok {
			t.Errorf("option %s is set by %s, which is not a value", r.Option, r.Value)
		}
	}
}

// Where an option takes one of several words, its value takes the same words: an agent that refuses
// its configuration does not start, on any node.
func TestWords(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join(folder, "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var root schema
	if err := json.Unmarshal(content, &root); err != nil {
		t.Fatal(err)
	}
	by := map[string]row{}
	for _, r := range rows(t) {
		by[r.Option] = r
	}
	checked := 0
	for _, o := range config.Options() {
		words, r := o.Values, by[o.Name]
		if o.Name == "algorithm" {
			words = lb.AlgorithmNames() // the option passes these on
		}
		if len(words) == 0 || r.Value == "" || slices.Equal(words, []string{"true", "false"}) {
			continue
		}
		at := root
		for name := range strings.SplitSeq(r.Value, ".") {
			at = at.Properties[name]
		}
		have := []string{}
		if len(at.AnyOf) > 0 {
			at = at.AnyOf[0] // the alternatives are refused with a message
		}
		list, _ := at.Enum.([]any)
		for _, word := range list {
			if word == nil && r.Default == nil { // the option's default, which depends on others
				continue
			}
			text := fmt.Sprint(word)
			if r.Words != nil {
				text = r.Words[text]
			}
			have = append(have, text)
		}
		if r.Otherwise != "" && !slices.Contains(have, r.Otherwise) {
			have = append(have, r.Otherwise)
		}
		words = slices.Sorted(slices.Values(words))
		slices.Sort(have)
		if diff := cmp.Diff(words, have); diff != "" {
			t.Errorf("%s (-words of --%s +schema):\n%s", r.Value, o.Name, diff)
		}
		checked++
	}
	if checked < 8 {
		t.Errorf("only %d values have words", checked)
	}
}

// cell escapes a text for a table cell.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// The chart's README lists all values.
func TestReadme(t *testing.T) {
	t.Parallel()
	text := "<!-- Generated from values.yaml: go test ./test/chart -update -->\n\n" + readme
	for _, v := range described(t) {
		text += fmt.Sprintf("| `%s` | `%s` | %s |\n", v.path, cell(v.standard), cell(v.says))
	}
	hold(t, "charts/fairlead/README.md", text)
}

const readme = "# The fairlead chart\n" + `
This chart installs fairlead on every node of a cluster, in place of kube-proxy and the CNI plugin: an agent, its permissions and its
configuration.

    helm install fairlead fairlead-chart.tgz --namespace kube-system

` + "`make image`" + ` writes this archive together with the image that it installs. If you install the chart from its directory, name an image with
` + "`image.tag`" + `.

You need Kubernetes 1.30 or later, Linux 6.1 or later, helm 3 or 4, and preferably nodes without kube-proxy and without another CNI plugin:
` + "`kubeadm init --skip-phases=addon/kube-proxy`" + `, ` + "`k3s server --flannel-backend=none --disable-kube-proxy --disable-network-policy`" + `. If the
cluster was not created by kubeadm, tell the chart where the API server is, by an address that every node reaches without Services:

    helm install fairlead fairlead-chart.tgz --namespace kube-system --set k8sServiceHost=192.0.2.1 --set k8sServicePort=6443

NetworkPolicies and ClusterNetworkPolicies are enforced, unless another plugin gives pods their network. ` + "`--set policies=audit`" + ` only reports
what they deny, ` + "`--set policies=off`" + ` ignores them.

- Values have the names that users of Cilium know if they mean the same. ` + "`docs/values.md`" + ` lists the option of the agent that each one sets.
- An unknown or invalid value is refused before anything changes. Only the agent looks at what ` + "`extraArgs`" + ` and ` + "`extraEnv`" + ` set its options to.
- A null value leaves the agent's default, which ` + "`docs/configuration.md`" + ` lists, or is refused where the chart itself needs the value.
- When values change, pods are replaced node by node, and connections continue.

## Values

| value | default | what it decides |
| --- | --- | --- |
`

// docs/values.md lists every name of an option.
func TestNamesOfOptions(t *testing.T) {
	t.Parallel()
	text := "<!-- Generated from charts/fairlead/options.yaml and the agent's options: go test ./test/chart -update -->\n\n" + names
	by := map[string]row{}
	for _, r := range rows(t) {
		by[r.Option] = r
	}
	code := func(list string) string {
		if list == "" {
			return ""
		}
		return "`" + strings.Join(strings.Split(list, ", "), "`, `") + "`"
	}
	for _, o := range config.Options() {
		r := by[o.Name]
		set := code(r.Value)
		if set == "" {
			set = "set by the chart: " + r.Why
		}
		if r.While != "" {
			set += fmt.Sprintf(", if `%s` is `%s`", r.While, r.Is)
		}
		text += fmt.Sprintf("| `--%s` | `%s` | %s | %s |\n", o.Name, o.Env(), cell(set), code(r.Known))
	}
	text += "\n" + refusals
	var refused []refusal
	readYAML(t, "refused.yaml", &refused)
	for _, r := range refused {
		but := code(r.But)
		text += fmt.Sprintf("| `%s` | %s | %s |\n", r.Value, but, cell(strings.ToUpper(r.Why[:1])+r.Why[1:]+"."))
	}
	hold(t, "docs/values.md", text)
}

const names = "# Names of options\n" + `
An option of the agent is a flag, an environment variable and, in a cluster, a value of the chart with a key in the chart's ConfigMap. The
last column has the name that users of Cilium know it by; some values differ there. [configuration.md](configuration.md) and
[the chart's README](../charts/fairlead/README.md) say what each option decides.

| flag | environment variable | value of the chart | known to users of Cilium as |
| --- | --- | --- | --- |
`

const refusals = "## Refused values\n" + `
The chart refuses these values, which Cilium's chart has or which are often tried, and says what to do instead. It accepts them only if they
ask for what is the case anyway.

| value | accepted | instead |
| --- | --- | --- |
`
