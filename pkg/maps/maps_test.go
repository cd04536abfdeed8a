package maps

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/test/rig"
)

// Every map of the object has a field in Maps and an entry in its list, and the reverse.
func TestAllMapsListed(t *testing.T) {
	var specs, fields, listed []string
	for field := range reflect.TypeFor[bpf.MapsMapSpecs]().Fields() {
		specs = append(specs, field.Tag.Get("ebpf"))
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[Maps]()) {
		if field.Type == reflect.TypeFor[*ebpf.Map]() && field.IsExported() {
			fields = append(fields, snake(field.Name))
		}
	}
	for _, info := range (&Maps{}).All() {
		listed = append(listed, info.Name)
		if info.Row == "" || info.WrittenBy == "" || info.ReadBy == "" {
			t.Errorf("%s is not described", info.Name)
		}
	}
	for _, list := range [][]string{specs, fields, listed} {
		slices.Sort(list)
	}
	if diff := cmp.Diff(specs, fields); diff != "" {
		t.Errorf("fields of Maps (-object +Maps):\n%s", diff)
	}
	if diff := cmp.Diff(specs, listed); diff != "" {
		t.Errorf("All (-object +list):\n%s", diff)
	}
}

func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

func TestRound(t *testing.T) {
	for _, test := range []struct {
		name       string
		have, want Sizes
	}{
		{"nothing", Sizes{}, MinSizes()},
		{"one more than the least", Sizes{4097, 1025, 65537, 4097, 131073}, Sizes{8192, 2048, 131072, 8192, 262144}},
		{"powers stay", Sizes{8192, 2048, 131072, 8192, 262144}, Sizes{8192, 2048, 131072, 8192, 262144}},
		{"the most", MaxSizes(), MaxSizes()},
	} {
		if got, err := test.have.Round(); err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", test.name, got, err, test.want)
		}
	}
	most := MaxSizes()
	for _, over := range []Sizes{
		{Svcs: most.Svcs + 1}, {Services: most.Services + 1}, {Slots: most.Slots + 1}, {Backends: most.Backends + 1},
		{Flows: most.Flows + 1},
	} {
		if got, err := over.Round(); err == nil {
			t.Errorf("%+v was rounded to %+v", over, got)
		}
	}
}

func TestRoundIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := MaxSizes()
		draw := func(name string, limit uint32) uint32 { return rapid.Uint32Range(0, limit).Draw(t, name) }
		want := Sizes{draw("svcs", most.Svcs), draw("services", most.Services), draw("slots", most.Slots), draw("backends", most.Backends), draw("flows", most.Flows)}
		got, err := want.Round()
		if err != nil {
			t.Fatal(err)
		}
		if got.AtLeast(want) != got || got.AtLeast(MinSizes()) != got || most.AtLeast(got) != most {
			t.Fatalf("%+v for %+v", got, want)
		}
		if again, err := got.Round(); err != nil || again != got {
			t.Fatalf("%+v rounds to %+v, %v", got, again, err)
		}
	})
}

func create(t *testing.T, sizes Sizes) (*Maps, *Tables) {
	t.Helper()
	rig.Root(t)
	m, err := Create(sizes)
	if err != nil {
		t.Fatal(err)
	}
	return m, tablesOf(t, m)
}

func tablesOf(t *testing.T, m *Maps) *Tables {
	t.Helper()
	tables, err := m.Tables()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(tables.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	return tables
}

func key(i int) SvcKey {
	return KeyOf(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), uint16(i), model.TCP)
}

func TestOpenFindsWhatWasPinned(t *testing.T) {
	m, tables := create(t, Sizes{Backends: 5000})
	dir := rig.BPFFS(t)
	if _, err := Open(dir, false); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Open with no pins: %v", err)
	}
	if err := m.Pin(dir); err != nil {
		t.Fatal(err)
	}
	tables.Backends[8191] = BackendOf(netip.MustParseAddr("fd00::1"), 8080, model.TCP)
	if err := tables.Svcs.Insert([]SvcKey{key(1)}, []Svc{{Service: 9}}); err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []bool{false, true} {
		opened, err := Open(dir, readOnly)
		if err != nil {
			t.Fatal(err)
		}
		seen := tablesOf(t, opened)
		if opened.Sizes() != m.Sizes() || seen.Backends[8191] != tables.Backends[8191] {
			t.Errorf("read-only %v: not the same maps", readOnly)
		}
		if row, ok, err := seen.Svcs.Lookup(key(1)); err != nil || !ok || row.Service != 9 {
			t.Errorf("read-only %v: row %+v, %v, %v", readOnly, row, ok, err)
		}
		if err := seen.Svcs.Update(key(2), Svc{}); (err != nil) != readOnly {
			t.Errorf("read-only %v: update: %v", readOnly, err)
		}
		if readOnly {
			if _, _, err := opened.Grown(double(opened.Sizes())); err == nil {
				t.Error("read-only maps grew")
			}
		}
	}
}

func TestOpenCompletesAnOlderSet(t *testing.T) {
	m, tables := create(t, Sizes{Services: 3000})
	dir := rig.BPFFS(t)
	if err := m.Pin(dir); err != nil {
		t.Fatal(err)
	}
	tables.Services[2999].Words[0] = 1
	if err := errors.Join(os.Remove(filepath.Join(dir, "names")), os.Remove(filepath.Join(dir, "counters"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, true); !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), "names") {
		t.Errorf("read-only Open of a part: %v", err)
	}
	for range 2 {
		opened, err := Open(dir, false)
		if err != nil {
			t.Fatal(err)
		}
		if seen := tablesOf(t, opened); seen.Services[2999].Words[0] != 1 {
			t.Error("not the pinned services")
		}
	}
}

func TestOpenRefusesIncompatible(t *testing.T) {
	m, _ := create(t, Sizes{})
	spec := func(change func(*ebpf.MapSpec)) *ebpf.MapSpec {
		s := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE}
		change(s)
		return s
	}
	for name, wrong := range map[string]*ebpf.MapSpec{
		"type":       spec(func(s *ebpf.MapSpec) { s.Type, s.Flags = ebpf.Hash, 0 }),
		"value size": spec(func(s *ebpf.MapSpec) { s.ValueSize = 16 }),
		"flags":      spec(func(s *ebpf.MapSpec) { s.Flags = 0 }),
	} {
		t.Run(name, func(t *testing.T) {
			dir := rig.BPFFS(t)
			if err := m.Pin(dir); err != nil {
				t.Fatal(err)
			}
			other, err := ebpf.NewMap(wrong)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			path := filepath.Join(dir, "slots")
			if err := errors.Join(os.Remove(path), other.Pin(path)); err != nil {
				t.Fatal(err)
			}
			_, err = Open(dir, false)
			if !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), path) ||
				!strings.Contains(err.Error(), "fairlead cleanup") {
				t.Errorf("Open: %v", err)
			}
		})
	}
}

func double(s Sizes) Sizes {
	return Sizes{Svcs: 2 * s.Svcs, Services: 2 * s.Services, Slots: 2 * s.Slots, Backends: 2 * s.Backends, Flows: s.Flows}
}

func TestGrownHasTheSameRows(t *testing.T) {
	m, tables := create(t, Sizes{})
	want := map[SvcKey]Svc{}
	for i := range 4096 {
		want[key(i)] = Svc{Service: uint32(i), Kind: NodePort}
	}
	for k, row := range want {
		if err := tables.Svcs.Update(k, row); err != nil {
			t.Fatal(err)
		}
	}
	for i := range tables.Slots {
		tables.Slots[i].Value = rand.Uint64()
	}
	tables.Services[1023].Turn, tables.Names[1023].Text[191], tables.Backends[4095].Port = 5, 6, 7

	grown, names, err := m.Grown(double(m.Sizes()))
	if err != nil {
		t.Fatal(err)
	}
	seen := tablesOf(t, grown)
	if diff := cmp.Diff([]string{"svcs", "services", "slots", "backends", "names"}, names); diff != "" {
		t.Error(diff)
	}
	if grown.Sizes() != double(m.Sizes()) || !slices.Equal(seen.Slots[:len(tables.Slots)], tables.Slots) ||
		!slices.Equal(seen.Services[:1024], tables.Services) || !slices.Equal(seen.Names[:1024], tables.Names) ||
		!slices.Equal(seen.Backends[:4096], tables.Backends) {
		t.Error("arrays differ")
	}
	got := map[SvcKey]Svc{}
	if err := seen.Svcs.Each(func(k SvcKey, row Svc) { got[k] = row }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("svcs differ")
	}
	part, names, err := m.Grown(Sizes{Slots: 65537})
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if diff := cmp.Diff([]string{"slots"}, names); diff != "" {
		t.Error(diff)
	}
	if same, names, err := m.Grown(m.Sizes()); same != nil || names != nil || err != nil {
		t.Errorf("nothing to grow: %v, %v, %v", same, names, err)
	}
}

func TestMapArrayChecksLayout(t *testing.T) {
	m, _ := create(t, Sizes{})
	if _, err := MapArray[Backend](m.Slots, true); err == nil {
		t.Error("mapped 24-byte rows over 8-byte values")
	}
	if _, err := MapArray[Counter](m.Counters, true); err == nil {
		t.Error("mapped a per-CPU array")
	}
	if _, err := MapArray[uint32](m.Slots, true); err == nil {
		t.Error("mapped 4-byte rows over 8-byte values")
	}
	rows, err := MapArray[Slot](m.Slots, true)
	if err != nil {
		t.Fatal(err)
	}
	atomic.StoreUint64(&rows.Rows()[5].Value, 42)
	var slot Slot
	if err := m.Slots.Lookup(uint32(5), &slot); err != nil || slot.Value != 42 {
		t.Errorf("slot 5 = %v, %v", slot, err)
	}
	if err := errors.Join(rows.Close(), rows.Close()); err != nil {
		t.Error(err)
	}
}

func TestSvcTable(t *testing.T) {
	_, tables := create(t, Sizes{Svcs: 10000})
	svcs := tables.Svcs
	if svcs.Capacity() != 16384 {
		t.Errorf("capacity %d", svcs.Capacity())
	}
	const n = 9000 // more than two batches
	var keys []SvcKey
	var rows []Svc
	for i := range n {
		keys, rows = append(keys, key(i)), append(rows, Svc{Service: uint32(i)})
	}
	if err := svcs.Insert(keys, rows[1:]); err == nil {
		t.Error("inserted a key without a row")
	}
	if err := errors.Join(svcs.Insert(nil, nil), svcs.Insert(keys, rows), svcs.Delete(nil)); err != nil {
		t.Fatal(err)
	}
	seen := map[SvcKey]Svc{}
	each := func() {
		clear(seen)
		if err := svcs.Each(func(k SvcKey, row Svc) { seen[k] = row }); err != nil {
			t.Fatal(err)
		}
	}
	if each(); len(seen) != n || seen[key(8999)].Service != 8999 {
		t.Errorf("%d rows", len(seen))
	}
	// The missing keys come first, in the middle and last.
	gone := append(append([]SvcKey{key(20000)}, keys[:4000]...), key(20001), keys[4000], key(20002))
	if err := errors.Join(svcs.Delete(gone), svcs.Delete(gone)); err != nil {
		t.Fatal(err)
	}
	if each(); len(seen) != n-4001 {
		t.Errorf("%d rows after delete", len(seen))
	}
	if _, ok, err := svcs.Lookup(key(3)); ok || err != nil {
		t.Errorf("lookup of a deleted row: %v, %v", ok, err)
	}
	// The fallbacks for older kernels do the same.
	if err := errors.Join(svcs.insertSingly(keys, rows), svcs.deleteSingly(gone)); err != nil {
		t.Fatal(err)
	}
	count := 0
	if err := svcs.eachSingly(func(SvcKey, Svc) { count++ }); err != nil || count != n-4001 {
		t.Errorf("%d rows singly, %v", count, err)
	}
	for i := range 20000 {
		keys, rows = append(keys, key(30000+i)), append(rows, Svc{})
	}
	if err := svcs.Insert(keys, rows); !errors.Is(err, unix.E2BIG) {
		t.Errorf("insert into a full table: %v", err)
	}
}

func TestBarrier(t *testing.T) {
	rig.Root(t)
	b, err := NewBarrier()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Wait(), b.Wait(), b.Close()); err != nil {
		t.Error(err)
	}
	if err := b.Wait(); err == nil {
		t.Error("waited on a closed barrier")
	}
}

// The list names exactly the hooks whose programs use a map.
func TestHooksOfMaps(t *testing.T) {
	uses := map[string]map[string]bool{}
	for hook, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"sock": bpf.LoadSock, "tc": bpf.LoadTc, "xdp": bpf.LoadXdp, "pod": bpf.LoadPod,
	} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for _, program := range spec.Programs {
			for _, ins := range program.Instructions {
				if name := ins.Reference(); ins.IsLoadFromMap() && spec.Maps[name] != nil {
					if uses[name] == nil {
						uses[name] = map[string]bool{}
					}
					uses[name][hook] = true
				}
			}
		}
	}
	for _, info := range (&Maps{}).All() {
		said := info.WrittenBy + ", " + info.ReadBy
		for _, hook := range []string{"sock", "tc", "xdp", "pod"} {
			if have := regexp.MustCompile(`\b` + hook + `\b`).MatchString(said); have != uses[info.Name][hook] {
				t.Errorf("%s: the list says %q, want it to name the hook (%t): %s", info.Name, said, !have, hook)
			}
		}
	}
}
