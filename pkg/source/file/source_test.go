package file

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
)

func TestLoad(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.write("b.yml", "# nothing yet\n")
	r.write("c.json", `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "c"}, "spec": {"clusterIP": "10.0.0.3"}}`)
	r.write("empty.yaml", "")
	r.write(".hidden.yaml", service("hidden", "10.0.0.9"))
	r.write("notes.txt", service("text", "10.0.0.9"))
	r.must(os.Mkdir(r.path("below"), 0o755))
	r.write("below/d.yaml", service("below", "10.0.0.9"))
	r.scan()
	r.want("a=10.0.0.1 c=10.0.0.3", "")
	if !r.synced() {
		t.Errorf("the store still waits for %q", r.store.Unsynced())
	}
}

func TestEveryKindIsDelivered(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("all.yaml", dedent(`
	{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
	---
	{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
	---
	{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: []}}
	---
	{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.0.0.1}}
	---
	{apiVersion: v1, kind: Service, metadata: {name: headless}, spec: {clusterIP: None}}
	---
	{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, endpoints: []}
	---
	{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {name: kubernetes}, spec: {cidrs: [10.96.0.0/12]}}
	---
	{apiVersion: fairlead.io/v1alpha1, kind: SocketAcceleration, metadata: {name: a}, spec: {from: [{podSelector: {matchLabels: {app: web}}}], to: [{node: true}], ports: [80]}}
	`))
	r.scan()
	want := Objects{Services: 1, EndpointSlices: 1, Nodes: 1, Namespaces: 1, Pods: 1, SocketAccelerations: 1, ServiceCIDRs: 1, Ignored: 1}
	if got := r.source.Status().Objects; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, slices := r.store.Service(model.Name{Namespace: "default", Name: "web"}); len(slices) != 1 {
		t.Errorf("got %d slices, want 1", len(slices))
	}
	if got := r.store.Self().Addrs; !slices.Equal(got, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) {
		t.Errorf("got node addresses %v", got)
	}
	if list, _ := r.store.ServiceCIDRs(); len(list) != 1 || fmt.Sprint(list[0].CIDRs) != "[10.96.0.0/12]" {
		t.Errorf("got ServiceCIDRs %v", list)
	}
	if r.store.Pod(model.Name{Namespace: "default", Name: "p"}) == nil {
		t.Error("the pod is missing")
	}
	policies, all := r.store.Accelerations()
	if !all || len(policies) != 1 || policies[0].String() != "default/a" || !policies[0].To[0].Node || !slices.Equal(policies[0].Ports, []uint16{80}) {
		t.Errorf("got policies %v, all of them: %v", policies, all)
	}
	r.write("all.yaml", "# none\n")
	r.scan()
	if got := r.source.Status().Objects; got != (Objects{}) {
		t.Errorf("got %+v after everything went", got)
	}
	if policies, _ := r.store.Accelerations(); len(policies) != 0 || len(r.store.Keys()) != 0 || len(r.store.Self().Addrs) != 0 {
		t.Errorf("the store still has %v and %v", r.store.Keys(), r.store.Self())
	}
}

func TestAnEmptyDirectoryIsSynced(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.scan()
	r.want("", "")
	if !r.synced() {
		t.Error("the store is not synced")
	}
}

func TestABadFileKeepsItsLastGoodObjects(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1")+"---\n"+service("a2", "10.0.0.11"))
	r.write("b.yaml", service("b", "10.0.0.2"))
	r.scan()
	r.write("a.yaml", service("a", "10.0.0.3")+"---\nkind: Service\napiVersion: v1\nmetadata: {name: x}\nspec:\n  foo: 1\n")
	r.write("b.yaml", service("b", "10.0.0.4"))
	r.scan()
	r.want("a=10.0.0.1 a2=10.0.0.11 b=10.0.0.4", "a.yaml:10")
	since := r.source.Status().Errors[0].Since
	r.scan()
	if again := r.source.Status().Errors[0].Since; !again.Equal(since) || since.IsZero() {
		t.Errorf("the error is since %v, then since %v", since, again)
	}
	r.write("a.yaml", service("a", "10.0.0.3"))
	r.scan()
	r.want("a=10.0.0.3 b=10.0.0.4", "")
}

func TestARemovedFileTakesItsObjects(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.write("b.yaml", service("b", "10.0.0.2"))
	r.scan()
	r.must(os.Remove(r.path("a.yaml")))
	r.scan()
	r.want("b=10.0.0.2", "")
	r.write("b.yaml", "nonsense")
	r.scan()
	r.must(os.Remove(r.path("b.yaml")))
	r.scan()
	r.want("", "")
}

// TestNothingIsDeletedUntilAllWasRight covers the start: objects that may be in an invalid file
// must not be deleted, whether an earlier agent left them or they moved between files.
func TestNothingIsDeletedUntilAllWasRight(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.store.SetService(&model.Service{Name: model.Name{Namespace: "default", Name: "old"}})
	r.write("a.yaml", service("a", "10.0.0.1")+"---\n"+service("moved", "10.0.0.5"))
	r.write("b.yaml", "kind: Service\n")
	r.scan()
	r.want("a=10.0.0.1 moved=10.0.0.5 old=none", "b.yaml:1")
	r.write("a.yaml", service("a", "10.0.0.2"))
	r.scan()
	r.want("a=10.0.0.2 moved=10.0.0.5 old=none", "b.yaml:1")
	if r.synced() || r.source.Status().Synced {
		t.Error("synced although one file has never been valid")
	}
	r.write("b.yaml", service("b", "10.0.0.3"))
	r.scan()
	r.want("a=10.0.0.2 b=10.0.0.3", "")
	if !r.synced() || !r.source.Status().Synced {
		t.Error("not synced although all files are valid")
	}
	r.write("c.yaml", "kind: Service\n")
	r.write("a.yaml", "# empty\n")
	r.scan()
	r.want("b=10.0.0.3", "c.yaml:1")
}

func TestRemovingTheBadFileSyncs(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.write("b.yaml", "nonsense")
	r.scan()
	if r.synced() {
		t.Fatal("synced although a file is invalid")
	}
	r.must(os.Remove(r.path("b.yaml")))
	r.scan()
	r.want("a=10.0.0.1", "")
	if !r.synced() {
		t.Error("not synced although all files are valid")
	}
}

func TestStatusAsJSON(t *testing.T) {
	r := newRig(t, t.TempDir())
	data, err := json.Marshal(r.source.Status())
	r.must(err)
	want := fmt.Sprintf(`{"path":%q,"synced":false,"watching":false,"files":0,`+
		`"objects":{"services":0,"endpointSlices":0,"nodes":0,"namespaces":0,"pods":0,"socketAccelerations":0,"serviceCIDRs":0,"networkPolicies":0,"ignored":0}}`, r.dir)
	if diff := cmp.Diff(want, string(data)); diff != "" {
		t.Errorf("before the first scan (-want +got):\n%s", diff)
	}
	r.write("a.yaml", "a: b\n")
	r.scan()
	data, err = json.Marshal(r.source.Status())
	r.must(err)
	for _, part := range []string{`"watching":true`, `"files":1`, `"lastReload":"`, `"errors":[{"file":"a.yaml","line":1,"message":"`, `"since":"`} {
		if !strings.Contains(string(data), part) {
			t.Errorf("%s is not in %s", part, data)
		}
	}
}
