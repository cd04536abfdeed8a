package main

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/render"
	"fairlead.io/fairlead/test/rig"
)

// shop is a store with one Service.
func shop() *model.Store {
	addrs := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	web := model.Name{Namespace: "shop", Name: "web"}
	slice := &model.Slice{
		Name: model.Name{Namespace: "shop", Name: "web-1"}, Service: "web", Family: model.IPv4, Weight: 1,
		Ports: []model.SlicePort{{Name: "http", Port: 8080, Protocol: model.TCP}},
	}
	for _, addr := range addrs("10.1.0.1", "10.1.0.2") {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Conditions: model.Ready | model.Serving})
	}
	store := model.NewStore("worker-1")
	store.ReplaceServices([]*model.Service{{
		Name: web, UID: "1", ClusterIPs: addrs("10.96.0.10", "fd96::10"),
		Ports: []model.Port{{Name: "http", Port: 80, NodePort: 30080, Protocol: model.TCP}},
	}})
	store.ReplaceSlices([]*model.Slice{slice})
	store.ReplaceNodes(nil)
	store.ReplaceNamespaces(nil)
	store.ReplacePods(nil)
	return store
}

// deadNode is a node whose agent has ended. Its programs, maps and rows are pinned on a BPF file
// system of the test's own, and its programs are attached to a cgroup of the test's own.
func deadNode(t *testing.T) (bpffs string) {
	t.Helper()
	rig.Root(t)
	bpffs = rig.BPFFS(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	path, err := datapath.Open(datapath.Config{BPFFS: bpffs, CgroupRoot: rig.NewCgroup(t).Path(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer path.Close()
	t.Cleanup(func() {
		if _, err := datapath.Cleanup(bpffs); err != nil {
			t.Error(err)
		}
	})
	if err := path.Create(maps.MinSizes()); err != nil {
		t.Fatal(err)
	}
	if err := path.Attach(); err != nil {
		t.Fatal(err)
	}
	tables := path.Tables()
	r, err := reconcile.New(reconcile.Config{
		Store: shop(), Facts: lb.Facts{ExternalIPs: lb.ExternalIPsAll}, Log: log,
		Tables: &reconcile.Tables{
			Frontends: tables.Svcs, Ranges: tables.Ranges, Services: tables.Services, Slots: tables.Slots, Backends: tables.Backends, Names: tables.Names,
		},
		Barrier: func() error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	return bpffs
}

// golden compares got with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got), run with -update if this is right:\n%s", path, diff)
	}
}

func TestCommandsOnADeadNode(t *testing.T) {
	bpffs := deadNode(t)
	dead := []string{"--bpffs", bpffs, "--state-dir", t.TempDir()}
	run := func(t *testing.T, code int, args ...string) string {
		t.Helper()
		got := fairlead(t, append(args, dead...)...)
		if got.code != code {
			t.Fatalf("%q: %+v, want exit code %d", args, got, code)
		}
		return got.stdout
	}
	for name, args := range map[string][]string{
		"service-list.txt": {"service", "list"},
		"service-get.txt":  {"service", "get", "shop/web"},
		"backend-list.txt": {"backend", "list"},
		"map-dump.txt":     {"map", "dump", "svcs"},
		"explain.txt":      {"explain", "10.1.0.7", "10.96.0.10:80"},
		"explain-none.txt": {"explain", "node", "[fd96::10]:80"},
		"explain-near.txt": {"explain", "10.1.0.7", "10.96.0.10:8080"},
	} {
		t.Run(name, func(t *testing.T) { golden(t, name, run(t, exitOK, args...)) })
	}
	if out := run(t, exitOK, "drops"); !strings.Contains(out, "nothing was dropped") {
		t.Errorf("drops: %s", out)
	}
	for _, name := range render.Names() {
		for _, format := range formats() {
			run(t, exitOK, "map", "dump", name, "-o", format)
		}
	}
	var explained explain.Explanation
	if err := json.Unmarshal([]byte(run(t, exitOK, "explain", "node", "127.0.0.1:30080", "-o", "json")), &explained); err != nil {
		t.Fatal(err)
	}
	if explained.Outcome != explain.ToBackend || explained.Service != "shop/web:http/tcp4" || len(explained.Candidates) != 2 {
		t.Errorf("explain: %+v", explained)
	}
	if out := run(t, exitOK, "service", "get", "shop/web:http/tcp6"); strings.Contains(out, "tcp4") {
		t.Errorf("one port in one family: %s", out)
	}
	if got := fairlead(t, append([]string{"service", "get", "shop/we"}, dead...)...); got.code != exitError ||
		!strings.Contains(got.stderr, `no service "shop/we" in the maps`) {
		t.Errorf("a service that is not there: %+v", got)
	}
	var list []mapstats.Map
	if err := json.Unmarshal([]byte(run(t, exitOK, "map", "list", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if m.Name == "svcs" && (m.Entries == nil || *m.Entries != 4 || m.Memory == 0 || m.Schema != "v1" ||
			m.Pin != filepath.Join(bpffs, "fairlead/v1/maps/svcs")) {
			t.Errorf("svcs: %+v", m)
		}
	}
	if len(list) != len((&maps.Maps{}).All()) {
		t.Errorf("%d maps are listed", len(list))
	}
	var status observe.Status
	if err := json.Unmarshal([]byte(run(t, exitUnreachable, "status", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	if status.Services != 2 || status.Frontends != 4 || status.Backends != 2 || len(status.Datapath.Programs) == 0 ||
		len(status.Degraded) != 1 {
		t.Errorf("status: %+v", status)
	}
}

// TestServiceListAsksTheAgent checks that the list shows problems that only the agent knows.
func TestServiceListAsksTheAgent(t *testing.T) {
	bpffs := deadNode(t)
	stateDir, _ := startAgent(t, healthyStatus)
	got := fairlead(t, "service", "list", "--bpffs", bpffs, "--state-dir", stateDir)
	if strings.Count(got.stdout, "FrontendConflict") != 2 {
		t.Errorf("%+v", got)
	}
	got = fairlead(t, "service", "get", "shop/web:http/tcp4", "--bpffs", bpffs, "--state-dir", stateDir)
	if !strings.Contains(got.stdout, "problem FrontendConflict: 10.96.0.9:80/tcp belongs to shop/old") {
		t.Errorf("%+v", got)
	}
}

func TestExplainAsksTheAgent(t *testing.T) {
	bpffs := deadNode(t)
	stateDir, _ := startAgent(t, healthyStatus)
	got := fairlead(t, "explain", "node", "10.96.0.10:80", "--bpffs", bpffs, "--state-dir", stateDir)
	if got.code != exitOK || !strings.Contains(got.stdout, "problem FrontendConflict: 10.96.0.9:80/tcp belongs to shop/old") {
		t.Errorf("%+v", got)
	}
}

// TestExplainWithoutPrograms checks that an explanation says that no program reads the maps, if the
// connection would need one.
func TestExplainWithoutPrograms(t *testing.T) {
	bpffs := deadNode(t)
	for _, name := range []string{"sock_connect4", "sock_sendmsg6"} {
		if err := os.Remove(filepath.Join(bpffs, "fairlead/v1/links", name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		to, protocol, missing string
	}{
		{"10.96.0.10:80", "tcp", "sock_connect4"},
		{"10.96.0.10:80", "udp", "sock_connect4"},
		{"[fd96::10]:80", "tcp", ""},
		{"[fd96::10]:80", "udp", "sock_sendmsg6"},
	} {
		got := fairlead(t, "explain", "node", tt.to, "--protocol", tt.protocol, "--bpffs", bpffs, "--state-dir", t.TempDir())
		want := exitOK
		if tt.missing != "" {
			want = exitDegraded
		}
		if got.code != want || !strings.Contains(got.stdout, tt.missing) {
			t.Errorf("%s of %s: %+v, want exit code %d and %q", tt.protocol, tt.to, got, want, tt.missing)
		}
	}
}

func TestCleanup(t *testing.T) {
	bpffs := deadNode(t)
	stateDir, _ := startAgent(t, healthyStatus)
	args := []string{"cleanup", "--bpffs", bpffs, "--state-dir", stateDir}
	if got := fairlead(t, args...); got.code != exitError || got.stdout != "" {
		t.Errorf("beside an agent: %+v", got)
	}
	if _, err := mapstats.Read(datapath.MapsDir(bpffs)); err != nil {
		t.Fatalf("a refused cleanup: %v", err)
	}
	got := fairlead(t, append(args, "--force")...)
	if got.code != exitOK || !strings.Contains(got.stdout, "removed map svcs\n") ||
		!strings.Contains(got.stdout, "detached program sock_connect4\n") {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(bpffs, "fairlead")); !os.IsNotExist(err) {
		t.Errorf("pins are left: %v", err)
	}
	if got := fairlead(t, "explain", "node", "10.96.0.10:80", "--bpffs", bpffs); got.code != exitError {
		t.Errorf("explain without maps: %+v", got)
	}
	if got := fairlead(t, append(args, "--force")...); got.code != exitOK || !strings.HasPrefix(got.stdout, "nothing was pinned") {
		t.Errorf("the second time: %+v", got)
	}
}
