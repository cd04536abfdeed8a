package maps

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/test/rig"
)

// remake replaces a pinned map by one as another version would have made it, and returns that.
func remake(t *testing.T, dir, name string, change func(*ebpf.MapSpec)) *ebpf.Map {
	t.Helper()
	specs, err := bpf.LoadMaps()
	if err != nil {
		t.Fatal(err)
	}
	spec := specs.Maps[name]
	if spec.MaxEntries == 1 {
		spec.MaxEntries = 4096
	}
	change(spec)
	for at, size := range map[btf.Type]*uint32{spec.Key: &spec.KeySize, spec.Value: &spec.ValueSize} {
		if at != nil {
			n, err := btf.Sizeof(at)
			if err != nil {
				t.Fatal(err)
			}
			*size = uint32(n)
		}
	}
	l, err := layoutOf(spec, specs.Types)
	if err != nil {
		t.Fatal(err)
	}
	plain := spec.Copy()
	if spec.Type != ebpf.SkStorage { // the kernel needs its types
		plain.Key, plain.Value = nil, nil
	}
	m, err := ebpf.NewMap(plain)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	layouts, err := ebpf.LoadPinnedMap(filepath.Join(dir, layoutsPin), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer layouts.Close()
	text, err := l.text()
	id, idErr := mapID(m)
	path := filepath.Join(dir, name)
	if err := errors.Join(err, idErr, layouts.Put(id, text), os.Remove(path), pin(m, path)); err != nil {
		t.Fatal(err)
	}
	return m
}

// shuffle returns the struct with its fields in reverse order, after a field of before bytes.
func shuffle(of btf.Type, before uint32) *btf.Struct {
	from := btf.UnderlyingType(of).(*btf.Struct)
	to := &btf.Struct{Name: from.Name}
	at := before
	for _, member := range slices.Backward(from.Members) {
		size, _ := btf.Sizeof(member.Type)
		to.Members = append(to.Members, btf.Member{Name: member.Name, Type: member.Type, Offset: btf.Bits(8 * at)})
		at += uint32(size)
	}
	if before > 0 {
		unknown := &btf.Int{Name: "byte", Size: 1}
		to.Members = append(to.Members, btf.Member{Name: "of_long_ago", Type: &btf.Array{Index: unknown, Type: unknown, Nelems: before}})
	}
	to.Size = (at + 7) &^ 7
	return to
}

// turned returns row in the layout that shuffle makes.
func turned(of btf.Type, before uint32, row []byte) []byte {
	from := btf.UnderlyingType(of).(*btf.Struct)
	out := slices.Repeat([]byte{0xee}, int(before))
	for _, member := range slices.Backward(from.Members) {
		size, _ := btf.Sizeof(member.Type)
		out = append(out, row[member.Offset.Bytes():][:size]...)
	}
	return append(out, make([]byte, -len(out)&7)...)
}

// numbered returns a row whose bytes depend on n, with zeros in the padding.
func numbered(of btf.Type, n int) []byte {
	from := btf.UnderlyingType(of).(*btf.Struct)
	row := make([]byte, from.Size)
	for _, member := range from.Members {
		size, _ := btf.Sizeof(member.Type)
		for i := range size {
			row[int(member.Offset.Bytes())+i] = byte(n + i*7 + int(member.Offset.Bytes()) + 1)
		}
	}
	return row
}

// CopyOlder copies what another version has written, matching fields by name, for every kind of
// map: hashes whose keys changed too, arrays and per-CPU arrays. The new map is at least as large
// as the old one.
func TestOlderIsCopied(t *testing.T) {
	rig.Root(t)
	m, _ := create(t, Sizes{})
	specs, err := bpf.LoadMaps()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		keys bool
	}{{"ct", true}, {"ct_pending", true}, {"affinity", true}, {"backends", false}, {"conn_origins", false}, {"pods", false}} {
		t.Run(tt.name, func(t *testing.T) {
			dir := rig.BPFFS(t)
			if err := m.Pin(dir); err != nil {
				t.Fatal(err)
			}
			spec := specs.Maps[tt.name]
			old := remake(t, dir, tt.name, func(s *ebpf.MapSpec) {
				s.Value = shuffle(s.Value, 12)
				if tt.keys {
					s.Key = shuffle(s.Key, 4)
				}
			})
			const rows = 300
			put := func(n int, with []byte) {
				t.Helper()
				key := keyFor(spec, n)
				if tt.keys {
					key = turned(spec.Key, 4, key)
				}
				if err := old.Put(key, turned(spec.Value, 12, with)); err != nil {
					t.Fatal(err)
				}
			}
			for n := range rows {
				put(n, numbered(spec.Value, n))
			}
			if _, err := Open(dir, true); !errors.Is(err, ErrIncompatible) || !strings.Contains(err.Error(), tt.name) {
				t.Errorf("read-only: %v", err)
			}
			opened, err := Open(dir, false)
			if err != nil {
				t.Fatal(err)
			}
			defer opened.Close()
			if have := opened.Older(); !slices.Equal(have, []string{tt.name}) {
				t.Fatalf("older maps are %q", have)
			}
			carry := func(which CopyScope) {
				t.Helper()
				if lost, err := opened.CopyOlder(which); err != nil || len(lost) > 0 {
					t.Fatalf("lost %q, %v", lost, err)
				}
			}
			now := find(opened, tt.name)
			expect := func(when string, n int, want []byte) {
				t.Helper()
				have, err := now.LookupBytes(keyFor(spec, n))
				if err != nil || !slices.Equal(have, want) {
					t.Fatalf("%s: row %d is % x, want % x: %v", when, n, have, want, err)
				}
			}
			carry(AllRows)
			for n := range rows {
				expect("after AllRows", n, numbered(spec.Value, n))
			}
			if min(old.MaxEntries(), 131072) > now.MaxEntries() {
				t.Errorf("there is room for %d rows, was for %d", now.MaxEntries(), old.MaxEntries())
			}
			if !fieldOf(opened, tt.name).onlyByPrograms() {
				put(0, numbered(spec.Value, 77))
				carry(RowsOfPrograms)
				carry(LateRows)
				expect("a map that the agent writes", 0, numbered(spec.Value, 0))
				return
			}
			put(0, numbered(spec.Value, 77))
			carry(RowsOfPrograms)
			expect("after RowsOfPrograms", 0, numbered(spec.Value, 77))
			put(0, numbered(spec.Value, 88))
			put(rows, numbered(spec.Value, 99))
			carry(LateRows)
			expect("after LateRows, a row that exists", 0, numbered(spec.Value, 77))
			expect("after LateRows, a new row", rows, numbered(spec.Value, 99))
		})
	}
}

func fieldOf(m *Maps, name string) field {
	fields := m.fields()
	return fields[slices.IndexFunc(fields, func(f field) bool { return f.Name == name })]
}

func find(m *Maps, name string) *ebpf.Map { return fieldOf(m, name).Map }

func keyFor(spec *ebpf.MapSpec, n int) []byte {
	if spec.KeySize == 4 {
		return binary.NativeEndian.AppendUint32(nil, uint32(n))
	}
	key := make([]byte, spec.KeySize)
	binary.NativeEndian.PutUint32(key, uint32(n)*2654435761)
	return key
}

// RowsOfPrograms removes rows that the programs deleted since AllRows.
func TestOlderForgets(t *testing.T) {
	rig.Root(t)
	m, _ := create(t, Sizes{})
	dir := rig.BPFFS(t)
	if err := m.Pin(dir); err != nil {
		t.Fatal(err)
	}
	old := remake(t, dir, "ct", func(s *ebpf.MapSpec) { s.Value = shuffle(s.Value, 0) })
	var rows [2][40]byte
	rows[1][0] = 1
	for _, key := range rows {
		if err := old.Put(key[:], make([]byte, old.ValueSize())); err != nil {
			t.Fatal(err)
		}
	}
	opened, err := Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	_, err = opened.CopyOlder(AllRows)
	err = errors.Join(err, old.Delete(rows[0][:]))
	_, again := opened.CopyOlder(RowsOfPrograms)
	if err := errors.Join(err, again); err != nil {
		t.Fatal(err)
	}
	for i, key := range rows {
		if row, _ := opened.Ct.LookupBytes(key[:]); (row != nil) != (i == 1) {
			t.Errorf("row %d: % x", i, row)
		}
	}
	if err := opened.ForgetOlder(); err != nil || len(opened.Older()) > 0 {
		t.Errorf("%q, %v", opened.Older(), err)
	}
}

// Rows that programs would take for torn are forgotten: those of a version whose checksum, or a field that it
// covers, had another name. What programs write in place may be new.
func TestOlderChecksum(t *testing.T) {
	rig.Root(t)
	m, _ := create(t, Sizes{})
	for field, forgotten := range map[string]bool{"checksum": true, "ifindex": true, "kind": true, "seq_hi": false, "expected_ack": false} {
		t.Run(field, func(t *testing.T) {
			dir := rig.BPFFS(t)
			if err := m.Pin(dir); err != nil {
				t.Fatal(err)
			}
			old := remake(t, dir, "ct", func(s *ebpf.MapSpec) {
				of := shuffle(s.Value, 0)
				for i := range of.Members {
					if of.Members[i].Name == field {
						of.Members[i].Name = "of_long_ago"
					}
				}
				s.Value = of
			})
			var key [40]byte
			if err := old.Put(key[:], make([]byte, old.ValueSize())); err != nil {
				t.Fatal(err)
			}
			opened, err := Open(dir, false)
			if err != nil {
				t.Fatal(err)
			}
			defer opened.Close()
			lost, err := opened.CopyOlder(AllRows)
			if said := strings.Contains(strings.Join(lost, " "), "ct: its rows have another checksum"); err != nil || said != forgotten {
				t.Errorf("lost %q, %v", lost, err)
			}
			if row, _ := opened.Ct.LookupBytes(key[:]); (row == nil) != forgotten {
				t.Errorf("the row is % x", row)
			}
		})
	}
}

// CopyOlder reports what it cannot copy: what existing sockets dialed, and rows whose numbers now
// mean something else.
func TestOlderIsLost(t *testing.T) {
	rig.Root(t)
	m, _ := create(t, Sizes{})
	dir := rig.BPFFS(t)
	if err := m.Pin(dir); err != nil {
		t.Fatal(err)
	}
	remake(t, dir, "sock_origins", func(s *ebpf.MapSpec) { s.Value = shuffle(s.Value, 0); s.MaxEntries = 0 })
	counters := remake(t, dir, "counters", func(s *ebpf.MapSpec) { s.Value = shuffle(s.Value, 0) })
	for n := range counters.MaxEntries() {
		if err := counters.Put(n, slices.Repeat([][]byte{slices.Repeat([]byte{1}, 16)}, ebpf.MustPossibleCPU())); err != nil {
			t.Fatal(err)
		}
	}
	opened, err := Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	lost, err := opened.CopyOlder(AllRows)
	if err != nil || len(lost) != 1 || !strings.Contains(lost[0], "sock_origins") {
		t.Errorf("lost %q, %v", lost, err)
	}
	var each [][]byte
	if err := opened.Counters.Lookup(uint32(9), &each); err != nil || !slices.Equal(each[0], slices.Repeat([]byte{1}, 16)) {
		t.Errorf("the counters of every CPU are % x, %v", each, err)
	}
	was, err := opened.olderOf("counters").was.layout()
	if err != nil {
		t.Fatal(err)
	}
	was.Numbers += " REASON_OF_LONG_AGO"
	if opened.olderOf("counters").was, err = was.text(); err != nil {
		t.Fatal(err)
	}
	lost, err = opened.CopyOlder(AllRows)
	if err != nil || len(lost) != 2 || !strings.Contains(strings.Join(lost, " "), "counters: its rows are numbered differently") {
		t.Errorf("lost %q, %v", lost, err)
	}
}

// Fields become longer or shorter, lists get more or fewer elements, and fields turn into structs.
func TestMoves(t *testing.T) {
	leaf := func(name string, at, size uint32) shape { return shape{Name: name, At: at, Size: size} }
	list := func(times uint32, size uint32, parts ...shape) shape {
		return shape{Name: "list", At: 0, Size: size, Times: times, Parts: parts}
	}
	for name, tt := range map[string]struct {
		now, was   shape
		from, want []byte
	}{
		"longer":    {shape{Parts: []shape{leaf("a", 0, 4)}}, shape{Parts: []shape{leaf("a", 1, 2)}}, []byte{9, 1, 2, 9}, []byte{1, 2, 0, 0}},
		"shorter":   {shape{Parts: []shape{leaf("a", 0, 1)}}, shape{Parts: []shape{leaf("a", 0, 4)}}, []byte{1, 2, 3, 4}, []byte{1}},
		"unknown":   {shape{Parts: []shape{leaf("b", 0, 2)}}, shape{Parts: []shape{leaf("a", 0, 2)}}, []byte{1, 2}, []byte{0, 0}},
		"structure": {shape{Parts: []shape{{Name: "a", Size: 2, Parts: []shape{leaf("x", 0, 2)}}}}, shape{Parts: []shape{leaf("a", 0, 2)}}, []byte{1, 2}, []byte{0, 0}},
		"plain":     {leaf("", 0, 2), leaf("", 0, 2), []byte{1, 2}, []byte{1, 2}},
		"more": {shape{Parts: []shape{list(3, 2, leaf("x", 1, 1))}}, shape{Parts: []shape{list(2, 3, leaf("x", 0, 1), leaf("y", 1, 2))}},
			[]byte{1, 9, 9, 2, 9, 9}, []byte{0, 1, 0, 2, 0, 0}},
		"fewer": {shape{Parts: []shape{list(1, 1, leaf("x", 0, 1))}}, shape{Parts: []shape{list(2, 1, leaf("x", 0, 1))}}, []byte{1, 2}, []byte{1}},
	} {
		have := slices.Repeat([]byte{0xff}, len(tt.want))
		fill(have, moves(tt.now, tt.was, 0, 0), tt.from)
		if !slices.Equal(have, tt.want) {
			t.Errorf("%s: % x, want % x", name, have, tt.want)
		}
	}
}

// Every layout fits, with room for twice as many fields, and covers every byte that a program could
// use.
func TestLayouts(t *testing.T) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		t.Fatal(err)
	}
	for name, spec := range specs.Maps {
		l, err := layoutOf(spec, specs.Types)
		if err != nil {
			t.Error(err)
			continue
		}
		text, err := l.text()
		if err != nil || text[len(text)/2] != 0 {
			t.Errorf("%s takes more than half of the room for a layout: %v", name, err)
		}
		for _, of := range []shape{l.Key, l.Value} {
			row := make([]byte, of.Size)
			fill(row, moves(of, of, 0, 0), bytes.Repeat([]byte{1}, len(row)))
			if bytes.Contains(row, []byte{0}) {
				t.Errorf("%s: the layout covers these of %d bytes: % x", name, of.Size, row)
			}
		}
	}
}
