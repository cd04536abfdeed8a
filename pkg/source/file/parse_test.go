package file

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// dedent removes the blank first line and the tabs by which texts in this file are indented.
func dedent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimPrefix(text, "\n")) {
		b.WriteString(strings.TrimLeft(line, "\t"))
	}
	return b.String()
}

func service(name, clusterIP string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: %s, ports: [{port: 80}]}\n", name, clusterIP)
}

// places lists objects as "line: key", with "-" before those that the agent ignores.
func places(objects []object) []string {
	var list []string
	for _, o := range objects {
		ignored := ""
		if o.value == nil {
			ignored = "-"
		}
		list = append(list, fmt.Sprintf("%d: %s%s", o.line, ignored, o.key))
	}
	return list
}

func TestParse(t *testing.T) {
	tests := []struct {
		name string
		file string
		text string
		want []string
	}{
		{"nothing", "a.yaml", "", nil},
		{"comments", "a.yaml", "# one\n---\n# two\n---\n\n...\n", nil},
		{"one document", "a.yaml", service("web", "10.0.0.1"), []string{"1: Service default/web"}},
		{
			"several documents",
			"a.yaml",
			"# a comment\n---\n" + service("a", "10.0.0.1") + "---   # another\n\n" + service("b", "10.0.0.2") + "...\n---\n---\n" + service("c", "10.0.0.3"),
			[]string{"3: Service default/a", "9: Service default/b", "16: Service default/c"},
		},
		{
			"content behind the marker, and Windows line ends",
			"a.yml",
			"--- {apiVersion: v1, kind: Namespace, metadata: {name: a}}\r\n---\r\napiVersion: v1\r\nkind: Namespace\r\nmetadata:\r\n  name: b\r\n",
			[]string{"1: Namespace a", "3: Namespace b"},
		},
		{
			"a directive",
			"a.yaml",
			"%YAML 1.1\n---\n" + service("a", "10.0.0.1") + "---\n" + service("b", "10.0.0.1"),
			[]string{"3: Service default/a", "8: Service default/b"},
		},
		{
			"a directive that the document needs, and one for the second",
			"a.yaml",
			"%TAG !k! tag:yaml.org,2002:\n---\nkind: !k!str Namespace\napiVersion: v1\nmetadata: {name: a}\n...\n" +
				"# two\n%TAG !l! tag:yaml.org,2002:\n---\nkind: !l!str Namespace\napiVersion: v1\nmetadata: {name: b}\n",
			[]string{"3: Namespace a", "10: Namespace b"},
		},
		{
			"an end without a beginning behind it",
			"a.yaml",
			service("a", "10.0.0.1") + "... # the end\n" + service("b", "10.0.0.2"),
			[]string{"1: Service default/a", "6: Service default/b"},
		},
		{
			"a marker inside a value",
			"a.yaml",
			"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: a\n  annotations:\n    text: |\n      ---\n      ...\n",
			[]string{"1: Namespace a"},
		},
		{
			"old Mac line ends, which the decoder knows too",
			"a.yaml",
			"kind: Namespace\rapiVersion: v1\rmetadata: {name: a}\r---\rkind: Namespace\rapiVersion: v1\rmetadata: {name: b}\r",
			[]string{"1: Namespace a", "5: Namespace b"},
		},
		{
			"a List",
			"a.yaml",
			dedent(`
			apiVersion: v1
			kind: List
			metadata: {resourceVersion: ""}
			items:
			- apiVersion: v1
			  kind: Namespace
			  metadata: {name: a}
			- apiVersion: v1
			  kind: Namespace
			  metadata: {name: b}
			`),
			[]string{"5: Namespace a", "8: Namespace b"},
		},
		{
			"JSON",
			"a.json",
			"{\"apiVersion\": \"v1\", \"kind\": \"Namespace\", \"metadata\": {\"name\": \"a\"}}\n\n" +
				"{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [\n{\"apiVersion\": \"v1\", \"kind\": \"Namespace\", \"metadata\": {\"name\": \"b\"}},\n" +
				"{\"apiVersion\": \"v1\", \"kind\": \"Namespace\", \"metadata\": {\"name\": \"c\"}}]}",
			[]string{"1: Namespace a", "4: Namespace b", "5: Namespace c"},
		},
		{
			"every kind, and what is not for the agent",
			"a.yaml",
			dedent(`
			{apiVersion: v1, kind: Node, metadata: {name: n1, namespace: x}}
			---
			{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
			---
			{apiVersion: v1, kind: Pod, metadata: {name: here, namespace: shop}, spec: {nodeName: n1, containers: []}}
			---
			{apiVersion: v1, kind: Pod, metadata: {name: unscheduled}, spec: {containers: []}}
			---
			{apiVersion: v1, kind: Pod, metadata: {name: elsewhere}, spec: {nodeName: n2, containers: []}}
			---
			{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None}}
			---
			{apiVersion: v1, kind: Service, metadata: {name: name}, spec: {type: ExternalName, externalName: example.com}}
			---
			{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, endpoints: []}
			---
			{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: nobody}, addressType: IPv4, endpoints: []}
			---
			{apiVersion: fairlead.io/v1alpha1, kind: SocketAcceleration, metadata: {name: a, namespace: shop}, spec: {from: [{podSelector: {}}], to: [{node: true}]}}
			`),
			[]string{
				"1: Node n1", "3: Namespace shop", "5: Pod shop/here", "7: Pod default/unscheduled", "9: -Pod default/elsewhere",
				"11: -Service default/headless", "13: -Service default/name",
				"15: EndpointSlice default/s", "17: -EndpointSlice default/nobody", "19: SocketAcceleration shop/a",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			objects, err := parse(test.file, []byte(test.text), target{self: "n1"})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, places(objects)); diff != "" {
				t.Errorf("objects differ (-want +got):\n%s", diff)
			}
		})
	}
}

// TestParseErrors checks that each invalid file is rejected, with the right line and a message that
// names the mistake.
func TestParseErrors(t *testing.T) {
	good := service("good", "10.0.0.9") // four lines
	tests := []struct {
		name string
		file string
		text string
		line int
		says string
	}{
		{"a policy with a field that it has not", "a.yaml", "apiVersion: fairlead.io/v1alpha1\nkind: SocketAcceleration\nmetadata: {name: a}\nspec:\n  form: []\n", 5, "form"},
		{"a port that is no number", "a.yaml", "apiVersion: fairlead.io/v1alpha1\nkind: SocketAcceleration\nmetadata: {name: a}\nspec:\n  ports: [http]\n", 5, "must be a number"},
		{"not UTF-8", "a.yaml", "a: \xff", 0, "UTF-8"},
		{"UTF-16", "a.yaml", "\xff\xfea\x00", 0, "UTF-8"},
		{"not an object", "a.yaml", good + "---\n# x\n- a\n", 7, "not an object"},
		{"null", "a.yaml", "---\n~\n", 2, "not an object"},
		{"text", "a.json", "\n\"x\"", 2, "not an object"},
		{"no kind", "a.yaml", "metadata:\n  name: a\n", 1, "apiVersion or kind is missing"},
		{"a kind that is no text", "a.yaml", "apiVersion: v1\nkind: 5\n", 2, `field "kind" is a number: it must be a string, put it in quotes`},
		{"kind of others", "a.yaml", good + "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n", 7, `kind "Deployment" of apiVersion "apps/v1"`},
		{"old version", "a.yaml", "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n", 2, "discovery.k8s.io/v1beta1"},
		{"no name", "a.yaml", "apiVersion: v1\nkind: Service\nmetadata:\n  namespace: x\nspec: {}\n", 3, "metadata.name is missing"},
		{"no metadata", "a.yaml", "apiVersion: v1\nkind: Service\nspec: {}\n", 1, "metadata.name is missing"},
		{
			"unknown field", "a.yaml",
			good + "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: x\nspec:\n  ports:\n  - port: 1\n  - port: 2\n    prot: TCP\n",
			14, `unknown field "spec.ports[1].prot"`,
		},
		{
			"field in the wrong case", "a.yaml",
			"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  ClusterIP: 10.0.0.1\n",
			5, `unknown field "spec.ClusterIP"`,
		},
		{
			"several unknown fields", "a.yaml",
			"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  a: 1\n  b: 2\n",
			5, "and 1 more such errors",
		},
		{
			"field twice", "a.yaml",
			good + "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: x\n  name: y\n",
			10, `key "name" already set`,
		},
		{
			"field of the wrong type", "a.yaml",
			"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  ports:\n  - name: a\n    port: http\n",
			7, `field "spec.ports[0].port" is a string: it must be a number`,
		},
		{
			"number too large", "a.yaml",
			"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  ports:\n  - name: a\n    port: 99999999999\n",
			7, "99999999999",
		},
		{
			"list instead of an object", "a.yaml",
			"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec:\n  - ports\n",
			4, `field "spec" is an array: it must be an object`,
		},
		{
			"unquoted annotation", "a.yaml",
			"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: x\n  annotations:\n    fairlead.io/weight: 5\n",
			6, "is a number: it must be a string",
		},
		{
			"a type that decodes itself", "a.yaml",
			"apiVersion: v1\nkind: Service\nmetadata:\n  name: x\n  creationTimestamp: 5\n",
			5, "metadata.creationTimestamp",
		},
		{
			"a time that is none", "a.yaml",
			good + "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: x\n  creationTimestamp: yesterday\n",
			6, "yesterday",
		},
		{
			"item of a List", "a.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Namespace\n  metadata:\n    name: a\n- apiVersion: v1\n  kind: Namespace\n  metadata:\n    nam: b\n",
			11, `unknown field "metadata.nam"`,
		},
		{"kind in a List", "a.yaml", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n", 5, "ConfigMap"},
		{"List in a List", "a.yaml", "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  items: []\n", 5, "List"},
		{"field of a List", "a.yaml", "apiVersion: v1\nkind: List\nitem: []\n", 3, `unknown field "item"`},
		{
			"same object twice", "a.yaml", good + "---\n" + good,
			6, "Service default/good is also at a.yaml:1",
		},
		{
			"same object twice, the namespace once unsaid", "a.yaml",
			good + "---\napiVersion: v1\nkind: Service\nmetadata: {name: good, namespace: default}\n",
			6, "also at a.yaml:1",
		},
		{
			"same object twice in a List", "a.yaml",
			"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace, metadata: {name: a}}\n- {apiVersion: v1, kind: Namespace, metadata: {name: a}}\n",
			5, "also at a.yaml:4",
		},
		{"tab", "a.yaml", good + "---\na:\n\t- b\n", 7, "cannot start any token"},
		{"grammar", "a.yaml", good + "---\nx: 1\n- y\n", 7, "did not find expected key"},
		{"open bracket", "a.yaml", good + "---\nx: [1\ny: 2\n", 7, "did not find expected ','"},
		{"open brace at the end", "a.yaml", "x: {y: z\n\n\n", 1, "did not find expected"},
		{"unknown anchor", "a.yaml", good + "---\na: *x\n", 6, "unknown anchor"},
		{"anchor in itself", "a.yaml", "&a [*a]", 1, "contains itself"},
		{"more behind braces", "a.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: a}}\napiVersion: v1\n", 1, "more follows"},
		{
			"JSON without markers in YAML", "a.yaml",
			"{\"apiVersion\": \"v1\", \"kind\": \"Namespace\", \"metadata\": {\"name\": \"a\"}}\n{\"apiVersion\": \"v1\"}\n", 1, "more follows",
		},
		{"JSON that ends early", "a.json", "{\"kind\":\n\"x\",\n\n", 2, "parse JSON"},
		{"YAML in JSON", "a.json", "\nkind: List\n", 2, "parse JSON"},
		{
			"unknown field in JSON", "a.json",
			"{\"apiVersion\": \"v1\",\n\"kind\": \"Service\",\n\"metadata\": {\"name\": \"x\"},\n\"spec\": {\"ports\": [{},\n{\"prot\": 1}]}}",
			5, `spec.ports[1].prot`,
		},
		{
			"wrong type in JSON", "a.json",
			"\n{\"apiVersion\": \"v1\",\n\"kind\": \"Service\",\n\"metadata\": {\"name\": \"x\"},\n\"spec\": {\"ports\": [{},\n{\"port\": true}]}}",
			6, `field "spec.ports[1].port" is a bool`,
		},
		{
			"field twice in JSON", "a.json",
			"{\"apiVersion\": \"v1\", \"kind\": \"Service\",\n\"metadata\": {\"name\": \"x\", \"name\": \"y\"}}",
			2, `duplicate field "metadata.name"`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			objects, err := parse(test.file, []byte(test.text), target{self: "n1"})
			if err == nil {
				t.Fatalf("got objects %q, want an error", places(objects))
			}
			var at *FileError
			line := 0
			if errors.As(err, &at) {
				line = at.Line
			}
			if line != test.line || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got line %d, %v\nwant line %d and an error that says %q", line, err, test.line, test.says)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has several lines: %v", err)
			}
		})
	}
}

// TestParseLongList checks that finding the lines of a List's items does not parse the whole List
// for each.
func TestParseLongList(t *testing.T) {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	const items = 5000
	for i := range items {
		fmt.Fprintf(&b, "- {apiVersion: v1, kind: Namespace, metadata: {name: n%d}}\n", i)
	}
	start := time.Now()
	objects, err := parse("a.yaml", []byte(b.String()), target{})
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) != items || objects[items-1].line != items+3 {
		t.Errorf("got %d objects, the last on line %d", len(objects), objects[len(objects)-1].line)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestAliasBomb checks that a document that multiplies itself is rejected and not expanded.
func TestAliasBomb(t *testing.T) {
	text := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'i'; c++ {
		text += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 9), ","))
	}
	if _, err := parse("a.yaml", []byte(text), target{}); err == nil || !strings.Contains(err.Error(), "aliasing") {
		t.Errorf("got %v, want an error about aliasing", err)
	}
}

func FuzzDocument(f *testing.F) {
	for _, seed := range []string{
		"", service("web", "10.0.0.1"), "---\n...\n%YAML 1.1\n---\n{a: b}\nc: d",
		"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  spec: {containers: [{ports: [{hostPort: 1, hostIP: x}]}]}\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {loadBalancerSourceRanges: [::ffff:1.2.3.4/1], sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {}}}",
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a, labels: {kubernetes.io/service-name: b}}\naddressType: IPv4\nports: [{}]\nendpoints: [{addresses: []}, {addresses: [1.2.3.4], hints: {forZones: [{name: a}]}}]",
		"apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {podCIDRs: [x/y]}\nstatus: {addresses: [{type: InternalIP, address: 1}]}",
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"ports":[{"port":"x"}],"foo":1}}`,
		"apiVersion: v1\nkind: Service\nspec: &a {x: *a}\n", "a: &a {<<: *a}", "? !!binary x : y", "\u2028---\u0085", "{\"\":[{\"\":1}]}",
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, yaml bool) {
		name := "a.json"
		if yaml {
			name = "a.yaml"
		}
		objects, err := parse(name, data, target{"n1", true})
		var at *FileError
		switch {
		case err == nil:
			for _, o := range objects {
				if o.key.name.Name == "" || o.line < 1 || o.line > 1+len(data) {
					t.Errorf("object %q on line %d", o.key, o.line)
				}
			}
		case objects != nil:
			t.Errorf("got objects with the error %v", err)
		case errors.As(err, &at) && (at.Line < 1 || at.Line > 1+len(data) || at.Message == ""):
			t.Errorf("error on line %d: %q", at.Line, at.Message)
		}
		if again, errAgain := parse(name, data, target{"n1", true}); fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Errorf("parsed once more: %v, then %v (%d objects)", err, errAgain, len(again))
		}
	})
}
