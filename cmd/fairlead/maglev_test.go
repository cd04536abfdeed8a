package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/snapshot"
)

// maglevServices returns the services that an agent writes for a few Services.
func maglevServices(t *testing.T) []snapshot.Service {
	t.Helper()
	store, tables := shop(), reconcile.NewMemory(maps.Sizes{Svcs: 64, Services: 64, Slots: 1 << 16, Backends: 256})
	name := func(n string) model.Name { return model.Name{Namespace: "shop", Name: n} }
	for i, n := range []string{"spread", "two"} {
		s := &model.Service{Name: name(n), UID: n, Algorithm: "maglev",
			ClusterIPs: []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.96.1.", i)), netip.MustParseAddr(fmt.Sprint("fd96::1:", i))},
			Ports:      []model.Port{{Name: "http", Port: 80, NodePort: uint16(30100 + i), Protocol: model.TCP}}}
		if n == "two" {
			s.Ports = append(s.Ports, model.Port{Name: "admin", Port: 81, NodePort: 30200, Protocol: model.TCP})
		}
		store.SetService(s)
		for _, first := range []string{"10.1.0.0", "fd01::"} {
			addr := netip.MustParseAddr(first)
			slice := &model.Slice{Name: name(n + first), Service: n, Family: model.FamilyOf(addr), Weight: 1,
				Ports: []model.SlicePort{{Name: "http", Port: 8080, Protocol: model.TCP}}}
			for range 10 {
				addr = addr.Next()
				slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: addr, Conditions: model.Ready | model.Serving})
			}
			store.SetSlice(slice)
		}
	}
	r, err := reconcile.New(reconcile.Config{
		Store: store, Tables: tables, Facts: lb.Facts{ExternalIPs: lb.ExternalIPsAll}, Barrier: func() error { return nil },
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Drain(); err != nil {
		t.Fatal(err)
	}
	s, err := snapshot.Take(snapshot.Tables{
		Frontends: tables.Frontends, Services: tables.Services, Slots: tables.Slots, Backends: tables.Backends, Names: tables.Names,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.Services
}

func TestMaglevNames(t *testing.T) {
	services := maglevServices(t)
	for name, tt := range map[string]struct {
		tables string // services, separated by spaces
		err    string
		usage  bool
	}{
		"shop/spread":           {tables: "shop/spread:http/tcp4 shop/spread:http/tcp6"},
		"shop/spread:http":      {tables: "shop/spread:http/tcp4 shop/spread:http/tcp6"},
		"shop/spread:http/tcp":  {tables: "shop/spread:http/tcp4 shop/spread:http/tcp6"},
		"shop/spread:http/tcp6": {tables: "shop/spread:http/tcp6"},
		"shop/two:http":         {tables: "shop/two:http/tcp4 shop/two:http/tcp6"},
		"shop/two":              {err: "has several ports: name one of shop/two:admin/tcp, shop/two:http/tcp", usage: true},
		"shop/two:admin":        {err: "has no usable backend"},
		"shop/web":              {err: "its algorithm is random; annotate the Service"},
		"shop/none":             {err: `no service "shop/none" in the maps: "fairlead service list"`},
		"shop/spread:https":     {err: "no service"},
		"spread":                {err: "write NAMESPACE/NAME, such as default/spread", usage: true},
		"":                      {err: "write NAMESPACE/NAME", usage: true},
	} {
		view, err := maglevOf(services, name)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) || (exitCode(err) == exitUsage) != tt.usage {
				t.Errorf("%q: %v, want %q", name, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		var names []string
		for _, table := range view.Tables {
			names = append(names, table.Service)
			if table.Slots != 1021 || len(table.Backends) != 10 || table.Scope != "all" || table.Even != 102.1 {
				t.Errorf("%q: %+v", name, table)
			}
		}
		if have := strings.Join(names, " "); have != tt.tables {
			t.Errorf("%q: tables of %q, want %q", name, have, tt.tables)
		}
	}
}

// TestMaglevDamagedName checks that a damaged name does not make the command fail.
func TestMaglevDamagedName(t *testing.T) {
	for _, name := range []string{"4", "x", "6/6", "/", "//tcp4"} {
		if _, err := maglevOf([]snapshot.Service{{Name: name}}, name); err == nil {
			t.Errorf("%q has a table", name)
		}
	}
}

// TestMaglevShow checks that the command works on a node whose agent is dead.
func TestMaglevShow(t *testing.T) {
	bpffs := deadNode(t)
	got := fairlead(t, "maglev", "show", "shop/web", "--bpffs", bpffs, "--state-dir", t.TempDir())
	if got.code != exitError || !strings.Contains(got.stderr, "shop/web:http/tcp6 has no Maglev table: its algorithm is random") {
		t.Errorf("%+v", got)
	}
	view := &maglevView{HashSeed: "none"}
	var err error
	if view.Tables, err = snapshot.MaglevTables(&maglevServices(t)[0]); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := view.write(&out); err != nil || !strings.Contains(out.String(), "\n  10.1.0.10:8080/tcp  ") || view.damage() != nil {
		t.Errorf("%v, %v: %s", err, view.damage(), out.String())
	}
	if text, err := json.Marshal(view); err != nil || !strings.Contains(string(text), `"hashSeed":"none","tables":[{"service":"shop/spread:http/tcp4"`) {
		t.Errorf("%s, %v", text, err)
	}
	view.Tables[0].Damage = "slot 7 is odd"
	if err := view.damage(); exitCode(err) != exitDegraded || !strings.Contains(err.Error(), "slot 7 is odd") {
		t.Errorf("damage: %v", err)
	}
}

func TestHashSeed(t *testing.T) {
	stateDir, _ := startAgent(t, healthyStatus)
	for dir, want := range map[string]string{stateDir: "none", t.TempDir(): ""} {
		have, err := hashSeed(t.Context(), &config.Config{StateDir: dir})
		if err != nil || have != want {
			t.Errorf("the seed is %q, %v; want %q", have, err, want)
		}
	}
}
