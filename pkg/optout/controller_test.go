package optout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	stdmaps "maps"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) {
	os.Exit(rig.Main(m, rig.Funcs{"wait": func([]string) int { _, _ = io.Copy(io.Discard, os.Stdin); return 0 }}))
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// table is the map, in memory.
type table struct {
	mu     sync.Mutex
	rows   map[maps.OptoutKey]maps.Optout
	writes int
	err    error
	wrote  chan struct{} // if not nil, gets a value for each write
}

func (m *table) SetOptouts(want map[maps.OptoutKey]maps.Optout, remove bool) (changed int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return 0, m.err
	}
	m.writes++
	was := stdmaps.Clone(m.rows)
	stdmaps.Copy(m.rows, want)
	if remove {
		stdmaps.DeleteFunc(m.rows, func(key maps.OptoutKey, _ maps.Optout) bool { _, ok := want[key]; return !ok })
	}
	if m.wrote != nil {
		m.wrote <- struct{}{}
	}
	for key := range m.rows {
		if row, ok := was[key]; !ok || row != m.rows[key] {
			changed++
		}
		delete(was, key)
	}
	return changed + len(was), nil
}

func (m *table) Optouts() (map[maps.OptoutKey]maps.Optout, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return stdmaps.Clone(m.rows), m.err
}

// pods returns the names of the pods in the map.
func (m *table) pods() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[string]bool{}
	for _, row := range m.rows {
		name, _ := maps.OptoutPod(row)
		names[name] = true
	}
	return strings.Trim(fmt.Sprint(names), "map[]")
}

// fail makes the map return err; nil makes it work again.
func (m *table) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// registry is an Identity that knows pods by UID.
type registry map[string]uint64

func (r registry) Find(pod *model.Pod) ([]maps.OptoutKey, error) {
	if id, ok := r[pod.LocalUID]; ok {
		return []maps.OptoutKey{{Id: id, Kind: maps.OptoutNetns}}, nil
	}
	return nil, fmt.Errorf("%w: nobody knows %s", ErrUnknown, pod.LocalUID)
}

func (r registry) Refresh()       {}
func (r registry) Dirs() []string { return nil }

// fixture is a Controller and what it works with.
type fixture struct {
	*Controller
	store *model.Store
	table *table
	known registry
	log   *strings.Builder
	stop  func() error
}

// start runs a Controller in a synctest bubble and returns once it is idle. Call synctest.Wait to wait
// for what it does later.
func start(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{
		store: model.NewStore("node"), known: registry{}, log: &strings.Builder{},
		table: &table{rows: map[maps.OptoutKey]maps.Optout{}},
	}
	w.Controller = New(Config{
		Store: w.store, Rules: Rules{Runtimes: []string{"kata*"}, Meshes: []string{"istio"}}, Identities: []Identity{w.known},
		Table: w.table, Log: slog.New(slog.NewTextHandler(w.log, nil)),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.run(ctx, &watch{log: w.cfg.Log}) }()
	w.stop = func() error { cancel(); return <-done }
	synctest.Wait()
	return w
}

func (w *fixture) sync() {
	w.store.ReplaceServices(nil)
	w.store.ReplaceSlices(nil)
	w.store.ReplaceNodes(nil)
	w.store.ReplaceNamespaces(nil)
	w.store.ReplacePods(w.store.Pods())
}

func podOf(name string, change func(*model.Pod)) *model.Pod {
	pod := &model.Pod{Name: model.Name{Namespace: "shop", Name: name}, UID: name, LocalUID: name, Addrs: addrs("10.1.0.7")}
	change(pod)
	return pod
}

func TestController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		off := func(p *model.Pod) { p.SocketLB = model.SocketLBOff }
		plain := func(*model.Pod) {}
		stale := maps.OptoutKey{Id: 99, Kind: maps.OptoutNetns}
		w.table.rows[stale] = maps.MakeOptout("old/pod", nil, maps.OptoutByPod)
		w.known["a"], w.known["b"] = 1, 2
		for _, step := range []struct {
			name string
			do   func()
			want string
		}{
			{"a plain pod", func() { w.store.SetPod(podOf("a", plain)) }, "old/pod:true"},
			{"it opts out", func() { w.store.SetPod(podOf("a", off)) }, "old/pod:true shop/a:true"},
			{"everything is known: what is stale goes", w.sync, "shop/a:true"},
			{"it opts in", func() { w.store.SetPod(podOf("a", plain)) }, ""},
			{"its namespace opts out", func() {
				w.store.SetNamespace(&model.Namespace{Name: "shop", SocketLB: model.SocketLBOff})
			}, "shop/a:true"},
			{"another pod there", func() { w.store.SetPod(podOf("b", plain)) }, "shop/a:true shop/b:true"},
			{"that says on", func() {
				w.store.SetPod(podOf("b", func(p *model.Pod) { p.SocketLB = model.SocketLBOn }))
			}, "shop/a:true"},
			{"the namespace is plain again", func() { w.store.SetNamespace(&model.Namespace{Name: "shop"}) }, ""},
			{"a sandboxed pod", func() {
				w.store.SetPod(podOf("b", func(p *model.Pod) { p.Runtime = "kata-qemu" }))
			}, "shop/b:true"},
			{"it has ended", func() {
				w.store.SetPod(podOf("b", func(p *model.Pod) { p.Runtime, p.Finished, p.Addrs = "kata-qemu", true, nil }))
			}, ""},
			{"a pod of a mesh", func() { w.store.SetPod(podOf("b", func(p *model.Pod) { p.Mesh = "istio" })) }, "shop/b:true"},
			{"it is deleted", func() { w.store.DeletePod(model.Name{Namespace: "shop", Name: "b"}) }, ""},
		} {
			before := time.Now()
			step.do()
			synctest.Wait()
			if got := w.table.pods(); got != step.want {
				t.Errorf("%s: the pods opted out are %q, want %q", step.name, got, step.want)
			}
			if took := time.Since(before); took != 0 {
				t.Errorf("%s: it took %s", step.name, took)
			}
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestControllerStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		off := func(p *model.Pod) { p.SocketLB = model.SocketLBOff }
		w.known["a"] = 1
		w.store.SetNamespace(&model.Namespace{Name: "shop", Problems: []model.Problem{{Reason: "InvalidSocketLB", Message: "maybe is nothing"}}})
		w.store.SetPod(podOf("a", off))
		w.store.SetPod(podOf("new", func(p *model.Pod) { off(p); p.Addrs = nil }))
		for i := range maxUncovered + 5 {
			w.store.SetPod(podOf(fmt.Sprintf("x%02d", i), off))
		}
		synctest.Wait()
		s := w.Status()
		if s.Pods != 1 || s.Waiting != 1 || s.NotCovered != maxUncovered+5 || len(s.Uncovered) != maxUncovered {
			t.Errorf("status is %+v", s)
		}
		want := Uncovered{"shop/x00", "annotation of the pod", "not covered: nobody knows x00"}
		if len(s.Uncovered) > 0 && s.Uncovered[0] != want {
			t.Errorf("the first is %+v, want %+v", s.Uncovered[0], want)
		}
		if len(w.Problems()["shop"]) != 1 {
			t.Errorf("problems of namespaces: %v", w.Problems())
		}
		w.store.SetPod(podOf("b", off)) // causes another pass
		synctest.Wait()
		for _, text := range []string{"nobody knows x00", "maybe is nothing"} {
			if n := strings.Count(w.log.String(), text); n != 1 {
				t.Errorf("%q was logged %d times", text, n)
			}
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

// The addresses of a pod in the node's network namespace are the node's, so they must not identify
// the pod.
func TestControllerRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.known["a"], w.known["b"] = 1, 2
		w.store.SetPod(podOf("a", func(p *model.Pod) { p.Mesh = "istio" }))
		w.store.SetPod(podOf("b", func(p *model.Pod) { p.SocketLB, p.HostNetwork = model.SocketLBOff, true }))
		synctest.Wait()
		want := map[maps.OptoutKey]maps.Optout{
			{Id: 1, Kind: maps.OptoutNetns}: maps.MakeOptout("shop/a", addrs("10.1.0.7"), maps.OptoutByMesh),
			{Id: 2, Kind: maps.OptoutNetns}: maps.MakeOptout("shop/b", nil, maps.OptoutByPod),
		}
		if rows, _ := w.table.Optouts(); !stdmaps.Equal(rows, want) {
			t.Errorf("rows are %v", rows)
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

// If a pod claims to be another one, neither is covered.
func TestControllerAmbiguousPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.known["a"] = 1
		w.store.SetPod(podOf("a", func(*model.Pod) {}))
		w.store.SetPod(podOf("thief", func(p *model.Pod) { p.LocalUID, p.SocketLB = "a", model.SocketLBOff }))
		synctest.Wait()
		if got, s := w.table.pods(), w.Status(); got != "" || s.NotCovered != 1 {
			t.Errorf("the pods opted out are %q, status %+v", got, s)
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestControllerRetriesAndRepairs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		w.known["a"] = 1
		w.sync()
		synctest.Wait()
		w.table.fail(errors.New("no memory"))
		w.store.SetPod(podOf("a", func(p *model.Pod) { p.SocketLB = model.SocketLBOff }))
		synctest.Wait()
		w.table.fail(nil)
		time.Sleep(retryAfter)
		synctest.Wait()
		if got := w.table.pods(); got != "shop/a:true" {
			t.Errorf("after the error: %q", got)
		}
		writes := w.table.writes
		w.store.SetNamespace(&model.Namespace{Name: "other"})
		synctest.Wait()
		if w.table.writes != writes {
			t.Error("the Controller wrote the map although nothing changed")
		}
		damage := func() {
			synctest.Wait()
			w.table.mu.Lock()
			defer w.table.mu.Unlock()
			clear(w.table.rows)
			w.table.rows[maps.OptoutKey{Id: 5, Kind: maps.OptoutCgroup}] = maps.MakeOptout("b/ad", nil, 0)
		}
		damage()
		for _, repair := range []bool{false, true} {
			found, err := w.Verify(t.Context(), repair)
			if err != nil || len(found) != 2 || found[0].Where != "cgroup 5" || found[1].Want != `"shop/a" 10.1.0.7` || found[1].Mended != repair {
				t.Errorf("repair %t: found %+v, %v", repair, found, err)
			}
		}
		if got := w.table.pods(); got != "shop/a:true" {
			t.Errorf("after a repair: %q", got)
		}
		damage()
		time.Sleep(checkEvery)
		synctest.Wait()
		if got, s := w.table.pods(), w.Status(); got != "shop/a:true" || s.Damage != 6 || s.Mended != 4 {
			t.Errorf("after the Controller's own check: %q, %+v", got, s)
		}
		if err := w.stop(); err != nil {
			t.Error(err)
		}
		if _, err := w.Verify(t.Context(), false); !errors.Is(err, ErrEnded) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// latecomer is an Identity that knows a pod only from the second call of Find on.
type latecomer struct {
	registry
	dir   string
	asked bool
}

func (l *latecomer) Find(pod *model.Pod) ([]maps.OptoutKey, error) {
	if !l.asked {
		l.asked = true
		return nil, ErrUnknown
	}
	return l.registry.Find(pod)
}

func (l *latecomer) Dirs() []string { return []string{l.dir} }

// An event in a directory between the look into it and the start of the watch is not lost.
func TestControllerScansAgain(t *testing.T) {
	store := model.NewStore("node")
	m := &table{rows: map[maps.OptoutKey]maps.Optout{}}
	k := New(Config{
		Store: store, Identities: []Identity{&latecomer{registry: registry{"a": 1}, dir: t.TempDir()}}, Table: m,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	k.watch = newWatch(k.cfg.Log)
	defer k.watch.close()
	store.SetPod(podOf("a", func(p *model.Pod) { p.SocketLB = model.SocketLBOff }))
	if err := k.pass(); err != nil || m.pods() != "shop/a:true" {
		t.Errorf("%v, the pods opted out are %q", err, m.pods())
	}
}

// A pod's CNI result may appear after the pod. The Controller notices it through the directory, even if
// that did not exist at first.
func TestControllerFollowsDirectories(t *testing.T) {
	rig.Root(t)
	r := newRuntime(t)
	ns := rig.NewNetns(t, "pod")
	r.bind("cni-1", ns)
	r.results += "/cni/results"
	c, tells := newCNI(t, r)
	if !tells {
		return
	}
	store := model.NewStore("node")
	m := &table{rows: map[maps.OptoutKey]maps.Optout{}, wrote: make(chan struct{}, 8)}
	k := New(Config{Store: store, Identities: []Identity{c}, Table: m, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	pod := web()
	pod.SocketLB = model.SocketLBOff
	store.SetPod(pod)
	<-store.PodsChanged() // so that only the directory can cause a second look
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	<-m.wrote
	watch := rig.NewStopwatch(t)
	if err := os.MkdirAll(r.results, 0o700); err != nil {
		t.Fatal(err)
	}
	r.write("net-c1-eth0", result(pod, "/run/netns/cni-1"))
	select {
	case <-m.wrote:
	case <-time.After(10 * time.Second):
	}
	took := watch.Took()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := m.pods(); got != "shop/web:true" || took > time.Second {
		t.Errorf("after %s the pods opted out are %q", took, got)
	}
}
