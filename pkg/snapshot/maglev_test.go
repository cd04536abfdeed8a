package snapshot

import (
	"bytes"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/goldenfile"
	"fairlead.io/fairlead/test/tables"
)

// tablesOf lays out services and returns the Maglev tables of the last one.
func tablesOf(t *testing.T, l *tables.Layout, list ...tables.Wants) []MaglevTable {
	t.Helper()
	for _, w := range list {
		l.Add(w)
	}
	s := take(t, l)
	for i := range s.Services {
		if s.Services[i].Name == list[len(list)-1].Name {
			tables, err := MaglevTables(&s.Services[i])
			if err != nil {
				t.Fatal(err)
			}
			return tables
		}
	}
	t.Fatal("the service is missing from the snapshot")
	return nil
}

// A fingerprint depends on which backends the slots lead to, and on nothing that differs between
// nodes.
func TestFingerprint(t *testing.T) {
	first := tablesOf(t, tables.NewLayout(), tables.Spread())[0].Fingerprint
	later := tables.NewLayout()
	later.NextBackend, later.Tag = 7, 9
	other := tablesOf(t, later, tables.Shop()[2], tables.Shop()[4], tables.Spread())[0].Fingerprint
	if first != other || len(first) != 16 {
		t.Errorf("the same table has fingerprint %q, and %q at another place in the maps", first, other)
	}
	here := tables.NewLayout()
	here.Add(tables.Spread())
	here.Backends[0].Flags = maps.BackendLocal
	s := take(t, here)
	if tables, err := MaglevTables(&s.Services[0]); err != nil || tables[0].Fingerprint != first || !tables[0].Backends[0].Local {
		t.Errorf("with a backend on this node: %+v, %v; want fingerprint %q", tables, err, first)
	}
	for name, change := range map[string]func(w *tables.Wants){
		"two slots changed hands": func(w *tables.Wants) { w.All[0], w.All[1] = w.All[1], w.All[0] },
		"a slot less":             func(w *tables.Wants) { w.All = w.All[:6] },
		"another port":            func(w *tables.Wants) { w.All[2], w.All[5] = "10.1.0.2:8081", "10.1.0.2:8081" },
		"affinity":                func(w *tables.Wants) { w.Affinity = 60 },
	} {
		w := tables.Spread()
		change(&w)
		if have := tablesOf(t, tables.NewLayout(), w)[0].Fingerprint; have == first {
			t.Errorf("%s: the fingerprint is the same", name)
		}
	}
}

func TestMaglevText(t *testing.T) {
	w := tables.Spread()
	w.Affinity, w.Local, w.Flags = 60, []string{"10.1.0.1:8080", "10.1.0.3:8080", "10.1.0.1:8080"}, maps.ExternalLocal
	l := tables.NewLayout()
	index := l.Add(w)
	l.Backends[0].Flags, l.Backends[1].Flags = maps.BackendLocal|maps.BackendTerminating, maps.BackendTerminating
	s := take(t, l)
	tables, err := MaglevTables(&s.Services[0])
	if err != nil || len(tables) != 2 {
		t.Fatalf("%d tables, %v", len(tables), err)
	}
	var out bytes.Buffer
	for i := range tables {
		if err := WriteMaglev(&out, &tables[i], "none"); err != nil {
			t.Fatal(err)
		}
	}
	goldenfile.Compare(t, "maglev.txt", out.String())

	at := maps.Word(l.Services[index].Words[maps.ScopeAll]).Off() + 3
	l.Slots[at] = maps.Slot{}
	s = take(t, l)
	if tables, err = MaglevTables(&s.Services[0]); err != nil || tables[0].Damage == "" {
		t.Fatalf("a damaged table: %+v, %v", tables, err)
	}
	out.Reset()
	if err := WriteMaglev(&out, &tables[0], ""); err != nil || !strings.Contains(out.String(), "damage: slot ") {
		t.Errorf("a damaged table is written as %q, %v", out.String(), err)
	}
}

// The error for a service without a table says why, and how to get one.
func TestNoMaglevTable(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(w *tables.Wants)
		want   string
	}{
		"another algorithm":  {func(w *tables.Wants) { w.Algorithm = 0 }, "its algorithm is random; annotate the Service with fairlead.io/algorithm=maglev"},
		"nobody outside":     {func(w *tables.Wants) { w.Frontends = map[string]uint32{"10.96.0.10:80": maps.ClusterIP} }, "reached by its ClusterIP alone"},
		"one backend":        {func(w *tables.Wants) { w.All = w.All[:1] }, "it has one backend"},
		"no backend":         {func(w *tables.Wants) { w.All = nil }, "it has no usable backend"},
		"an unknown number":  {func(w *tables.Wants) { w.Algorithm = 9 }, "its algorithm is algorithm(9)"},
		"one on this node":   {func(w *tables.Wants) { w.All, w.Local = nil, []string{"10.1.0.1:80"} }, "it has one backend"},
		"no frontend at all": {func(w *tables.Wants) { w.Frontends = nil }, "reached by its ClusterIP alone"},
	} {
		w := tables.Spread()
		tt.change(&w)
		l := tables.NewLayout()
		l.Add(w)
		s := take(t, l)
		if tables, err := MaglevTables(&s.Services[0]); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v; want %q", name, tables, err, tt.want)
		}
	}
}
