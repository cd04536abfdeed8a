package maps

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
)

// layout describes the rows of a map well enough to copy them to a map of another version, field by
// field, by the fields' names. A field whose meaning changes must therefore get a new name.
//
// The kernel also keeps the types of maps, but shows them only to processes with CAP_SYS_ADMIN.
type layout struct {
	Key, Value shape
	// Numbers are the names of an array's indexes, if those are numbers that the programs define.
	Numbers string `json:",omitempty"`
}

// shape describes a field and its parts, or a whole row.
type shape struct {
	Name     string `json:",omitempty"`
	At, Size uint32
	Times    uint32  `json:",omitempty"` // number of elements, if it is an array of structs
	Parts    []shape `json:",omitempty"`
}

// layoutOf returns the layout of the maps that spec describes. types are the types of its object.
func layoutOf(spec *ebpf.MapSpec, types *btf.Spec) (l layout, err error) {
	if l.Key, err = shapeOf(spec.Key, spec.KeySize); err != nil {
		return l, fmt.Errorf("describe keys of map %s: %w", spec.Name, err)
	}
	if l.Value, err = shapeOf(spec.Value, spec.ValueSize); err != nil {
		return l, fmt.Errorf("describe rows of map %s: %w", spec.Name, err)
	}
	if spec.Name == "counters" {
		l.Numbers, err = numbers(types, "hook", "reason")
	}
	return l, err
}

func numbers(types *btf.Spec, enums ...string) (string, error) {
	var names []string
	for _, name := range enums {
		var enum *btf.Enum
		if err := types.TypeByName(name, &enum); err != nil {
			return "", fmt.Errorf("find enum %s: %w", name, err)
		}
		for _, value := range enum.Values {
			names = append(names, value.Name)
		}
	}
	return strings.Join(names, " "), nil
}

// shapeOf returns the shape of a key or a row, which may have no type at all.
func shapeOf(of btf.Type, size uint32) (shape, error) {
	if of == nil {
		return shape{Size: size}, nil
	}
	if _, ok := btf.UnderlyingType(of).(*btf.Void); ok {
		return shape{Size: size}, nil
	}
	return partOf("", 0, of)
}

func partOf(name string, at uint32, of btf.Type) (s shape, err error) {
	size, err := btf.Sizeof(of)
	if err != nil {
		return s, err
	}
	s = shape{Name: name, At: at, Size: uint32(size)}
	switch t := btf.UnderlyingType(of).(type) {
	case *btf.Struct:
		for _, member := range membersOf(t) {
			if member.BitfieldSize != 0 || member.Name == "" {
				return s, fmt.Errorf("struct %s has bit fields, or fields without a name", t.Name)
			}
			part, err := partOf(member.Name, member.Offset.Bytes(), member.Type)
			if err != nil {
				return s, err
			}
			s.Parts = append(s.Parts, part)
		}
	case *btf.Array:
		element, err := partOf(name, at, t.Type)
		if err == nil && element.Parts != nil {
			element.Times = t.Nelems
			return element, nil
		}
		return s, err
	}
	return s, nil
}

// membersOf returns the members of a struct. Those of a union without a name, of which a row has one, are
// among them, at the same place.
func membersOf(t *btf.Struct) (list []btf.Member) {
	for _, member := range t.Members {
		union, ok := btf.UnderlyingType(member.Type).(*btf.Union)
		if member.Name != "" || !ok {
			list = append(list, member)
			continue
		}
		for _, one := range union.Members {
			one.Offset += member.Offset
			list = append(list, one)
		}
	}
	return list
}

// move copies some bytes of a row to a row of another layout.
type move struct{ to, from, size uint32 }

// moves returns the moves that fill a row from one of another shape, by fields of the same name. If
// a field is longer now, its rest is zero, which is right for the existing lists and little-endian
// numbers; if it is shorter, its end is lost.
func moves(now, was shape, to, from uint32) (list []move) {
	if now.Parts == nil && was.Parts == nil {
		return []move{{to, from, min(now.Size, was.Size)}}
	}
	for i := range max(1, min(now.Times, was.Times)) {
		for _, part := range now.Parts {
			for _, old := range was.Parts {
				if old.Name == part.Name {
					list = append(list, moves(part, old, to+i*now.Size+part.At, from+i*was.Size+old.At)...)
				}
			}
		}
	}
	return list
}

// layoutText is a layout as the map of layouts stores it.
type layoutText [4096]byte

// newLayouts creates the map that holds the layouts of the other maps, by map id. No program uses
// it.
func newLayouts() (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: layoutsPin, Type: ebpf.Hash, KeySize: 4, ValueSize: uint32(len(layoutText{})), MaxEntries: 4096, Flags: unix.BPF_F_NO_PREALLOC,
	})
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", layoutsPin, err)
	}
	return m, nil
}

// describe records that a map has this version's layout.
func (m *Maps) describe(name string, of *ebpf.Map) error {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return fmt.Errorf("read map specs: %w", err)
	}
	text, err := currentLayout(specs, name)
	if err != nil {
		return err
	}
	id, err := mapID(of)
	if err == nil {
		err = m.layouts.Put(id, text)
	}
	if err != nil {
		return fmt.Errorf("record layout of map %s: %w", name, err)
	}
	return nil
}

func currentLayout(specs *ebpf.CollectionSpec, name string) (*layoutText, error) {
	l, err := layoutOf(specs.Maps[name], specs.Types)
	if err != nil {
		return nil, err
	}
	return l.text()
}

func (l layout) text() (*layoutText, error) {
	var text layoutText
	content, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	if copy(text[:], content) < len(content) {
		return nil, fmt.Errorf("the layout takes %d bytes, more than %d", len(content), len(text))
	}
	return &text, nil
}

func (t *layoutText) layout() (l layout, err error) {
	err = json.Unmarshal(bytes.TrimRight(t[:], "\x00"), &l)
	return l, err
}

// noted returns the recorded layout of a map, nil if there is none.
func (m *Maps) noted(of *ebpf.Map) (*layoutText, error) {
	if m.layouts == nil {
		return nil, nil
	}
	id, err := mapID(of)
	if err != nil {
		return nil, err
	}
	var text layoutText
	if err := m.layouts.Lookup(id, &text); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("look up layout: %w", err)
	}
	return &text, nil
}

func mapID(m *ebpf.Map) (uint32, error) {
	info, err := m.Info()
	if err != nil {
		return 0, fmt.Errorf("ask for the id of %s: %w", m, err)
	}
	id, ok := info.ID()
	if !ok {
		return 0, fmt.Errorf("ask for the id of %s: the kernel does not report it", m)
	}
	return uint32(id), nil
}
