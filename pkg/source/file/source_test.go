package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"github.com/google/go-cmp/cmp"
)

// rig is a Source, its Store and the directory that it reads.
type rig struct {
	*testing.T
	dir    string
	store  *model.Store
	source *Source
	scans  chan struct{} // signalled after a scan
}

// newRig returns a rig whose Source reads whatever is there at once.
func newRig(t *testing.T, dir string) *rig {
	t.Helper()
	store := model.NewStore("n1")
	r := &rig{T: t, dir: dir, store: store, scans: make(chan struct{}, 1)}
	r.source = New(dir, store, slog.New(slog.NewTextHandler(t.Output(), nil)))
	r.source.settle = 0
	r.source.scanned = func() {
		select {
		case r.scans <- struct{}{}:
		default:
		}
	}
	return r
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, name) }

func (r *rig) write(name, text string) {
	r.Helper()
	if err := os.WriteFile(r.path(name), []byte(text), 0o644); err != nil {
		r.Fatal(err)
	}
}

// replace renames a new file over the old one.
func (r *rig) replace(name, text string) {
	r.Helper()
	r.write("."+name+".new", text)
	r.must(os.Rename(r.path("."+name+".new"), r.path(name)))
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// scan makes one scan as Run does.
func (r *rig) scan() {
	r.Helper()
	r.must(os.MkdirAll(filepath.Dir(r.dir), 0o755))
	if wait := r.source.scan(true); wait != 0 {
		r.Fatalf("the scan wants to wait %v", wait)
	}
	r.source.publish(true)
}

// services lists the Services in the store as "name=ClusterIP".
func (r *rig) services() string {
	var list []string
	for _, key := range r.store.Keys() {
		if key.Kind != model.KindService {
			continue
		}
		service, _ := r.store.Service(key.Name)
		addr := "none"
		if len(service.ClusterIPs) > 0 {
			addr = service.ClusterIPs[0].String()
		}
		list = append(list, service.Name.Name+"="+addr)
	}
	return strings.Join(list, " ")
}

// errors lists the errors as "file:line".
func (r *rig) errors() string {
	var list []string
	for _, e := range r.source.Status().Errors {
		list = append(list, fmt.Sprintf("%s:%d", filepath.Base(e.File), e.Line))
	}
	return strings.Join(list, " ")
}

func (r *rig) synced() bool {
	select {
	case <-r.store.Synced():
		return true
	default:
		return false
	}
}

func (r *rig) want(services, errors string) {
	r.Helper()
	if got := r.services(); got != services {
		r.Errorf("got services %q, want %q", got, services)
	}
	if got := r.errors(); got != errors {
		r.Errorf("got errors %q, want %q: %v", got, errors, r.source.Status().Errors)
	}
}

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
	`))
	r.scan()
	want := Objects{Services: 1, EndpointSlices: 1, Nodes: 1, Namespaces: 1, Pods: 1, Ignored: 1}
	if got := r.source.Status().Objects; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, slices := r.store.Service(model.Name{Namespace: "default", Name: "web"}); len(slices) != 1 {
		t.Errorf("got %d slices, want 1", len(slices))
	}
	if got := r.store.Self().Addrs; !slices.Equal(got, []netip.Addr{netip.MustParseAddr("192.0.2.1")}) {
		t.Errorf("got node addresses %v", got)
	}
	if r.store.Pod(model.Name{Namespace: "default", Name: "p"}) == nil {
		t.Error("the pod is missing")
	}
	r.write("all.yaml", "# none\n")
	r.scan()
	if got := r.source.Status().Objects; got != (Objects{}) {
		t.Errorf("got %+v after everything went", got)
	}
	if len(r.store.Keys()) != 0 || len(r.store.Self().Addrs) != 0 {
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

// TestNothingIsDeletedUntilAllWasRight holds the rule of the start: what may be in a wrong file must not be deleted,
// be it from an agent before this one or because it moved between files.
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
		t.Error("synced although one file has never been right")
	}
	r.write("b.yaml", service("b", "10.0.0.3"))
	r.scan()
	r.want("a=10.0.0.2 b=10.0.0.3", "")
	if !r.synced() || !r.source.Status().Synced {
		t.Error("not synced although all files are right")
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
		t.Fatal("synced although a file is wrong")
	}
	r.must(os.Remove(r.path("b.yaml")))
	r.scan()
	r.want("a=10.0.0.1", "")
	if !r.synced() {
		t.Error("not synced although all files are right")
	}
}

func TestSameObjectInTwoFiles(t *testing.T) {
	type files map[string]string
	x1, x2, v, z := service("x", "10.0.0.1"), service("x", "10.0.0.2"), service("v", "10.0.0.3"), service("z", "10.0.0.4")
	tests := []struct {
		name     string
		before   files
		after    files
		services string
		errors   string
		says     string
	}{
		{
			"at the start the first by name has it",
			nil, files{"a.yaml": x1, "b.yaml": x2 + "---\n" + v},
			"x=10.0.0.1", "b.yaml:1", "Service default/x is also at a.yaml:1",
		},
		{
			"who served it keeps it",
			files{"b.yaml": v + "---\n" + x1}, files{"a.yaml": x2 + "---\n" + z},
			"v=10.0.0.3 x=10.0.0.1", "a.yaml:1", "is also at b.yaml:6",
		},
		{
			"the newcomer keeps what it had",
			files{"a.yaml": z, "b.yaml": x1}, files{"a.yaml": v + "---\n" + x2},
			"x=10.0.0.1 z=10.0.0.4", "a.yaml:6", "is also at b.yaml:1",
		},
		{
			"even if the owner changes at the same time",
			files{"b.yaml": x1}, files{"a.yaml": x2, "b.yaml": x2 + "---\n" + v},
			"v=10.0.0.3 x=10.0.0.2", "a.yaml:1", "is also at b.yaml:1",
		},
		{
			"a wrong file does not give it away",
			files{"b.yaml": x1}, files{"a.yaml": x2, "b.yaml": "nonsense"},
			"x=10.0.0.1", "a.yaml:1 b.yaml:1", "is also at b.yaml:1",
		},
		{
			"it moves in one change",
			files{"a.yaml": x1 + "---\n" + v, "b.yaml": z}, files{"a.yaml": v, "b.yaml": z + "---\n" + x2},
			"v=10.0.0.3 x=10.0.0.2 z=10.0.0.4", "", "",
		},
		{
			"two are exchanged in one change",
			files{"a.yaml": x1, "b.yaml": v}, files{"a.yaml": v, "b.yaml": x1},
			"v=10.0.0.3 x=10.0.0.1", "", "",
		},
		{
			"falling back takes along who took over",
			files{"a.yaml": x1, "b.yaml": v, "c.yaml": z}, files{"a.yaml": v, "b.yaml": z, "c.yaml": "nonsense"},
			"v=10.0.0.3 x=10.0.0.1 z=10.0.0.4", "a.yaml:1 b.yaml:1 c.yaml:1", "is also at b.yaml:1",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, t.TempDir())
			for name, text := range test.before {
				r.write(name, text)
			}
			if test.before != nil {
				r.scan()
			}
			for name, text := range test.after {
				r.write(name, text)
			}
			r.scan()
			r.want(test.services, test.errors)
			if errs := r.source.Status().Errors; len(errs) > 0 && !strings.Contains(errs[0].Error(), test.says) {
				t.Errorf("got error %q, want it to say %q", errs[0].Error(), test.says)
			}
			r.scan()
			r.want(test.services, test.errors)
		})
	}
}

// TestConflictEnds resolves a conflict by a change of the file that was right.
func TestConflictEnds(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("x", "10.0.0.1"))
	r.scan()
	r.write("b.yaml", service("x", "10.0.0.2"))
	r.scan()
	r.want("x=10.0.0.1", "b.yaml:1")
	r.must(os.Remove(r.path("a.yaml")))
	r.scan()
	r.want("x=10.0.0.2", "")
}

func TestAnEmptiedFileKeepsItsObjects(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.scan()
	r.write("a.yaml", "")
	r.scan()
	r.want("a=10.0.0.1", "a.yaml:0")
	r.write("a.yaml", service("a", "10.0.0.2"))
	r.scan()
	r.want("a=10.0.0.2", "")
}

func TestRefusedFiles(t *testing.T) {
	tests := []struct {
		name string
		make func(path string) error
		says string
	}{
		{"directory", func(path string) error { return os.Mkdir(path, 0o755) }, "it is a directory"},
		{"pipe", func(path string) error { return syscall.Mkfifo(path, 0o644) }, "not a regular file (p---"},
		{"device", func(path string) error { return os.Symlink("/dev/zero", path) }, "not a regular file (D"},
		{"dangling link", func(path string) error { return os.Symlink("nowhere", path) }, "no such file"},
		{"link to itself", func(path string) error { return os.Symlink("bad.yaml", path) }, "too many levels"},
		{"huge file", func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, maxSize+1))
		}, "more than the limit of 268435456"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, t.TempDir())
			r.write("a.yaml", service("a", "10.0.0.1"))
			r.must(test.make(r.path("bad.yaml")))
			r.scan()
			r.want("a=10.0.0.1", "bad.yaml:0")
			if got := r.source.Status().Errors[0].Error(); !strings.Contains(got, test.says) {
				t.Errorf("got error %q, want it to say %q", got, test.says)
			}
			if r.synced() {
				t.Error("synced although a file was not read")
			}
			r.must(os.Remove(r.path("bad.yaml")))
			r.scan()
			r.want("a=10.0.0.1", "")
		})
	}
}

func TestAMissingPathKeepsEverything(t *testing.T) {
	r := newRig(t, filepath.Join(t.TempDir(), "manifests"))
	r.scan()
	r.want("", "manifests:0")
	if r.synced() {
		t.Error("synced without a directory")
	}
	r.must(os.Mkdir(r.dir, 0o755))
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.scan()
	r.want("a=10.0.0.1", "")
	r.must(os.Rename(r.dir, r.dir+".old"))
	r.scan()
	r.want("a=10.0.0.1", "manifests:0")
	r.must(os.Mkdir(r.dir, 0o755))
	r.write("b.yaml", service("b", "10.0.0.2"))
	r.scan()
	r.want("b=10.0.0.2", "")
}

// TestYoungFilesHoldUpDelivery wants a change of several files to be seen as one.
func TestYoungFilesHoldUpDelivery(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.write("b.yaml", service("b", "10.0.0.2"))
	r.scan()
	r.source.settle = time.Hour
	old := time.Now().Add(-2 * time.Hour)
	r.write("a.yaml", service("a", "10.0.0.3"))
	r.must(os.Chtimes(r.path("a.yaml"), old, old))
	r.write("b.yaml", service("b", "10.0.0.4"))
	if wait := r.source.scan(true); wait <= 0 {
		t.Error("the scan does not wait for the file that is young")
	}
	r.want("a=10.0.0.1 b=10.0.0.2", "")
	r.must(os.Chtimes(r.path("b.yaml"), old, old))
	r.scan()
	r.want("a=10.0.0.3 b=10.0.0.4", "")
}

// TestARestlessFileDoesNotHoldUpTheOthersForEver lets time pass by moving the start of the wait.
func TestARestlessFileDoesNotHoldUpTheOthersForEver(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.source.settle = time.Hour
	old := time.Now().Add(-2 * time.Hour)
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.must(os.Chtimes(r.path("a.yaml"), old, old))
	r.write("restless.yaml", service("b", "10.0.0.2"))
	if r.source.scan(true) == 0 {
		t.Fatal("the scan does not wait for the file that is young")
	}
	r.want("", "")
	r.source.unsettled = time.Now().Add(-settleMax)
	if r.source.scan(true) == 0 {
		t.Error("the scan forgets the file that is young")
	}
	r.want("a=10.0.0.1", "")
	r.source.publish(true)
	r.want("a=10.0.0.1", "restless.yaml:0")
	if r.synced() {
		t.Error("synced although a file was not read")
	}
	r.must(os.Chtimes(r.path("restless.yaml"), old, old))
	r.scan()
	r.want("a=10.0.0.1 b=10.0.0.2", "")
	if !r.synced() {
		t.Error("not synced although all files are right")
	}
}

// TestAFileThatIsAwayForAMoment is what editors do that move the old file away before they write the new one.
func TestAFileThatIsAwayForAMoment(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.scan()
	r.source.settle = time.Hour
	r.must(os.Rename(r.path("a.yaml"), r.path("a.yaml~")))
	if wait := r.source.scan(true); wait <= 0 {
		t.Error("the scan does not wait for the file to come back")
	}
	r.want("a=10.0.0.1", "")
	r.source.files["a.yaml"].missing = time.Now().Add(-2 * time.Hour)
	r.scan()
	r.want("", "")
}

// TestUnchangedFilesAreNotReadAgain puts other contents behind an unchanged stamp.
func TestUnchangedFilesAreNotReadAgain(t *testing.T) {
	r := newRig(t, t.TempDir())
	r.write("a.yaml", service("a", "10.0.0.1"))
	r.scan()
	f := r.source.files["a.yaml"]
	before := &f.parsed[0]
	r.write("a.yaml", service("a", "10.0.0.2"))
	info, err := os.Stat(r.path("a.yaml"))
	r.must(err)
	f.stamp = stampOf(info)
	r.source.scan(false)
	r.want("a=10.0.0.1", "")
	r.scan() // a full one believes no stamp
	r.want("a=10.0.0.2", "")
	if &f.parsed[0] == before {
		t.Error("the objects are still the old ones")
	}
	before = &f.parsed[0]
	r.scan()
	if &f.parsed[0] != before {
		t.Error("unchanged contents were parsed again")
	}
}

func TestStatusAsJSON(t *testing.T) {
	r := newRig(t, t.TempDir())
	data, err := json.Marshal(r.source.Status())
	r.must(err)
	want := fmt.Sprintf(`{"path":%q,"synced":false,"watching":false,"files":0,`+
		`"objects":{"services":0,"endpointSlices":0,"nodes":0,"namespaces":0,"pods":0,"ignored":0}}`, r.dir)
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

// start runs the Source until the test ends.
func (r *rig) start() {
	r.source.settle = settleTime
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.source.Run(ctx) }()
	r.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				r.Errorf("Run returned %v", err)
			}
		case <-time.After(20 * time.Second):
			r.Error("Run does not return")
		}
	})
}

// eventually waits for the Services and errors after one of the scans to come.
func (r *rig) eventually(services, errors string) {
	r.Helper()
	deadline := time.After(20 * time.Second)
	for r.services() != services || r.errors() != errors {
		select {
		case <-r.scans:
		case <-deadline:
			r.want(services, errors)
			r.FailNow()
		}
	}
}
