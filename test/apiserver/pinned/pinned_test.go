package pinned

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestFind(t *testing.T) {
	set, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, b := range set.All() {
		names = append(names, b.Name)
	}
	if diff := cmp.Diff([]string{"etcd", "kube-apiserver"}, names); diff != "" {
		t.Errorf("without names (-want +have):\n%s", diff)
	}
	if set, err = Find("kubectl", "e2e.test"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubectl", "e2e.test"} {
		b, err := set.Binary(name)
		if err != nil || !strings.Contains(b.Path, name+"-"+set.KubernetesVersion()+"-") {
			t.Errorf("%s: %+v, %v", name, b, err)
		}
	}
	if _, err := set.Binary("etcd"); err == nil {
		t.Error("etcd is in a set although the caller did not name it")
	}
	if set.Etcd.Name != "etcd" || set.APIServer.Name != "kube-apiserver" {
		t.Errorf("the API server's programs of the set are %q and %q", set.Etcd.Name, set.APIServer.Name)
	}
	if _, err := Find("kubectl", "kubefed"); err == nil {
		t.Error("found a program that is not pinned")
	}
}

// Only Kubernetes' own programs come from the older minor.
func TestFindMinor(t *testing.T) {
	find := func(minor string) *Set {
		t.Helper()
		t.Setenv("KUBERNETES_MINOR", minor)
		set, err := Find()
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	newest, oldest := find(""), find("1.30")
	if !strings.HasPrefix(oldest.KubernetesVersion(), "v1.30.") || oldest.APIServer.Version != oldest.KubernetesVersion() {
		t.Errorf("1.30 is %s with an API server %s", oldest.KubernetesVersion(), oldest.APIServer.Version)
	}
	if oldest.APIServer.Path == newest.APIServer.Path || oldest.Etcd != newest.Etcd {
		t.Errorf("1.30 has %+v and %+v, the newest %+v and %+v", oldest.APIServer, oldest.Etcd, newest.APIServer, newest.Etcd)
	}
	for _, wrong := range []string{"1.2", "../1.30"} {
		t.Setenv("KUBERNETES_MINOR", wrong)
		if _, err := Find(); err == nil || !strings.Contains(err.Error(), "KUBERNETES_MINOR") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// Images returns the images that the specs run, sorted and without duplicates.
func TestImages(t *testing.T) {
	set, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	names, err := set.Images(&log)
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	ours := func(name string) bool { return strings.HasPrefix(name, "registry.k8s.io/e2e-test-images/agnhost:2.") }
	if !slices.ContainsFunc(names, ours) || !slices.IsSorted(names) || len(slices.Compact(names)) != len(names) {
		t.Errorf("names %q", names)
	}
}

func TestOutput(t *testing.T) {
	have := map[string]string{}
	for _, p := range programs() {
		b := Binary{Name: p.name, pkg: p.pkg, test: p.test}
		have[p.name] = b.output()
	}
	for name, want := range map[string]string{"etcd": "server", "kubectl": "kubectl", "coredns": "coredns", "e2e.test": "e2e.test"} {
		if have[name] != want {
			t.Errorf("%s is built as %s, want %s", name, have[name], want)
		}
	}
	if names := Names(); len(names) != len(have) || !slices.Contains(names, "kubelet") {
		t.Errorf("names %q", names)
	}
}

// Changing anything that a program is made of must change its name.
func TestKey(t *testing.T) {
	key := func(change string) string {
		t.Helper()
		tree := fstest.MapFS{"go.mod": {}, "go.sum": {Data: []byte("a")}, "coredns/main.go": {Data: []byte("b")}, "notes": {Data: []byte("c")}}
		if change != "" {
			tree[change] = &fstest.MapFile{Data: []byte("changed")}
		}
		m, err := readModule(tree, "go.mod")
		if err != nil {
			t.Fatal(err)
		}
		return m.key
	}
	for change, same := range map[string]bool{"": true, "notes": true, "go.sum": false, "coredns/main.go": false, "coredns/other.go": false} {
		if (key(change) == key("")) != same {
			t.Errorf("after a change of %q: the same key: %t, want %t", change, !same, same)
		}
	}
}

func TestVersionOf(t *testing.T) {
	const gomod = "require (\n\tk8s.io/kubernetes v1.36.3\n\tk8s.io/kube v0.1.0 // indirect\n)\nrequire example.com/x v1.2.3-rc.1\n"
	for module, want := range map[string]string{"k8s.io/kubernetes": "v1.36.3", "k8s.io/kube": "v0.1.0", "example.com/x": "v1.2.3-rc.1", "k8s.io": ""} {
		have, err := versionOf([]byte(gomod), module)
		if have != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", module, have, err)
		}
	}
}

func TestLinkerFlags(t *testing.T) {
	flags := (&Set{version: "v1.36.3"}).linkerFlags()
	for _, want := range []string{".gitVersion=v1.36.3 ", ".gitMajor=1 ", ".gitMinor=36"} {
		if strings.Count(flags+" ", want) < 2 {
			t.Errorf("%q is not in %q twice", want, flags)
		}
	}
}
