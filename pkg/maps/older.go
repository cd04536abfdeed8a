package maps

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"syscall"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// older is a map that another version made. The programs of that version use it until this
// version's programs take over.
type older struct {
	name string
	m    *ebpf.Map
	was  *layoutText
}

func (m *Maps) olderOf(name string) *older {
	for i := range m.older {
		if m.older[i].name == name {
			return &m.older[i]
		}
	}
	return nil
}

// Older returns the names of the maps that replace maps of another version, which are still pinned.
func (m *Maps) Older() []string {
	var names []string
	for _, o := range m.older {
		names = append(names, o.name)
	}
	return names
}

// CopyScope says which rows CopyOlder copies.
type CopyScope int

// When rows are copied.
const (
	// AllRows copies everything, before anything else writes to the new maps.
	AllRows CopyScope = iota
	// RowsOfPrograms copies again all that programs have written, right before this version's
	// programs take over.
	RowsOfPrograms
	// LateRows copies what the other version's programs wrote until they ended, except where the
	// new map has a row already.
	LateRows
)

// CopyOlder copies the rows of older maps to the maps that replace them. It returns a description
// of everything that could not be copied.
func (m *Maps) CopyOlder(which CopyScope) (lost []string, err error) {
	for _, f := range m.fields() {
		o := m.olderOf(f.Name)
		if o == nil || which != AllRows && !f.onlyByPrograms() {
			continue
		}
		c, why, err := o.copierFor(f.Map, which)
		if c != nil {
			err = c.run()
			if c.full > 0 {
				why = fmt.Sprintf("there was no room for %d rows", c.full)
			}
		}
		if err != nil {
			return lost, fmt.Errorf("carry over rows of map %s: %w", f.Name, err)
		}
		if why != "" && (c != nil || which == AllRows) {
			lost = append(lost, f.Name+": "+why)
		}
	}
	return lost, nil
}

// onlyByPrograms reports whether only programs insert rows into the map. Rows that the agent
// inserts are already right.
func (f field) onlyByPrograms() bool {
	writers := strings.Split(f.WrittenBy, ", ")
	return !slices.ContainsFunc(writers, func(w string) bool {
		return !slices.Contains([]string{"sock", "tc", "xdp", "pod", "conntrack", "monitor"}, w)
	})
}

// ForgetOlder closes the maps of the other version and deletes the layouts of maps that no longer
// exist.
func (m *Maps) ForgetOlder() error {
	errs := []error{m.closeOlder()}
	live := map[uint32]bool{}
	for _, f := range m.fields() {
		id, err := mapID(f.Map)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		live[id] = true
	}
	var id uint32
	var text layoutText
	var gone []uint32
	rows := m.layouts.Iterate()
	for rows.Next(&id, &text) {
		if !live[id] {
			gone = append(gone, id)
		}
	}
	errs = append(errs, rows.Err())
	for _, id := range gone {
		if err := m.layouts.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (m *Maps) closeOlder() error {
	var errs []error
	for _, o := range m.older {
		errs = append(errs, o.m.Close())
	}
	m.older = nil
	return errors.Join(errs...)
}

// olderCopier copies rows from one map to another.
type olderCopier struct {
	from, to *ebpf.Map
	key, row []move
	which    CopyScope
	full     int // rows that found no room
}

// copierFor returns an olderCopier for the rows of o. It returns nil if the map has no rows or none that
// can be copied, and says why in the latter case.
func (o *older) copierFor(to *ebpf.Map, which CopyScope) (c *olderCopier, why string, err error) {
	was, err := o.was.layout()
	if err != nil {
		return nil, "", fmt.Errorf("read its recorded layout: %w", err)
	}
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, "", fmt.Errorf("read map specs: %w", err)
	}
	now, err := layoutOf(specs.Maps[o.name], specs.Types)
	switch {
	case err != nil:
		return nil, "", err
	case was.Numbers != now.Numbers:
		return nil, "its rows are numbered differently, and start from zero", nil
	case missesSealed(now.Value, was.Value):
		return nil, "its rows have another checksum, and are forgotten", nil
	case to.Type() == ebpf.SkStorage:
		return nil, "what existing sockets dialed is lost", nil
	case to.Type() == ebpf.RingBuf:
		return nil, "", nil
	}
	return &olderCopier{from: o.m, to: to, which: which, key: moves(now.Key, was.Key, 0, 0), row: moves(now.Value, was.Value, 0, 0)}, "", nil
}

// missesSealed reports whether rows have a checksum, and those of another shape lack a field that it covers,
// or the checksum itself: programs would take such a row for one that is being written, and drop its packets.
func missesSealed(now, was shape) bool {
	has := func(s shape, name string) bool {
		return slices.ContainsFunc(s.Parts, func(part shape) bool { return part.Name == name })
	}
	return has(now, "checksum") && slices.ContainsFunc(now.Parts, func(part shape) bool {
		return !slices.Contains(writtenInPlace(), part.Name) && !has(was, part.Name)
	})
}

// writtenInPlace are the fields of rows that no checksum covers, see struct ct_entry, and a second name of one
// that it does.
func writtenInPlace() []string {
	return []string{"seen", "expected_ack", "state", "seq_hi", "syn_hi", "pad", "created"}
}

func (c *olderCopier) run() error {
	if c.which == RowsOfPrograms {
		if err := c.clear(); err != nil {
			return err
		}
	}
	if c.from.Type() == ebpf.PerCPUArray {
		if c.which == LateRows {
			return nil
		}
		return c.perCPU()
	}
	bring := c.bringAll
	if c.which == LateRows {
		bring = c.bringLate
	}
	var to rawRows
	return eachRawRow(c.from, func(from rawRows) error {
		to.grow(c.to, from.len())
		to := to.first(from.len())
		for i := range from.len() {
			fill(to.key(i), c.key, from.key(i))
			fill(to.row(i), c.row, from.row(i))
		}
		return bring(to)
	})
}

// clear deletes the rows of a hash. Those of an array are overwritten.
func (c *olderCopier) clear() error {
	if c.to.Type() == ebpf.Array || c.to.Type() == ebpf.PerCPUArray {
		return nil
	}
	return eachRawRow(c.to, func(rows rawRows) error {
		for i := range rows.len() {
			if err := c.to.Delete(rows.key(i)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
		}
		return nil
	})
}

func fill(to []byte, list []move, from []byte) {
	clear(to)
	for _, m := range list {
		copy(to[m.to:m.to+m.size], from[m.from:m.from+m.size])
	}
}

// bringAll writes rows to the new map.
func (c *olderCopier) bringAll(rows rawRows) error {
	_, err := c.to.BatchUpdate(rows.keys.Interface(), rows.rows.Interface(), nil)
	if !errors.Is(err, syscall.E2BIG) {
		return err
	}
	for i := range rows.len() {
		if err := c.put(rows, i, ebpf.UpdateAny); err != nil {
			return err
		}
	}
	return nil
}

// bringLate writes those rows that the new map lacks. An array has every row, so there a row of
// zeros counts as missing.
func (c *olderCopier) bringLate(rows rawRows) error {
	flags, zero := ebpf.UpdateNoExist, make([]byte, c.to.ValueSize())
	for i := range rows.len() {
		if c.to.Type() == ebpf.Array {
			if slices.Equal(rows.row(i), zero) {
				continue
			}
			there, err := c.to.LookupBytes(rows.key(i))
			if err != nil {
				return err
			}
			if there != nil && !slices.Equal(there, zero) {
				continue
			}
			flags = ebpf.UpdateAny
		}
		if err := c.put(rows, i, flags); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return err
		}
	}
	return nil
}

func (c *olderCopier) put(rows rawRows, i int, flags ebpf.MapUpdateFlags) error {
	err := c.to.Update(rows.key(i), rows.row(i), flags)
	if errors.Is(err, syscall.E2BIG) {
		c.full++
		return nil
	}
	return err
}

func (c *olderCopier) perCPU() error {
	for i := range min(c.from.MaxEntries(), c.to.MaxEntries()) {
		var rows [][]byte
		if err := c.from.Lookup(i, &rows); err != nil {
			return err
		}
		for cpu, row := range rows {
			rows[cpu] = make([]byte, c.to.ValueSize())
			fill(rows[cpu], c.row, row)
		}
		if err := c.to.Put(i, rows); err != nil {
			return err
		}
	}
	return nil
}

// rawRows are keys and rows of any layout, in the form that the library needs: slices of byte
// arrays.
type rawRows struct{ keys, rows reflect.Value }

func (r *rawRows) grow(m *ebpf.Map, size int) {
	if r.keys.IsValid() && r.len() >= size {
		return
	}
	room := func(bytes uint32) reflect.Value {
		return reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(int(bytes), reflect.TypeFor[byte]())), size, size)
	}
	r.keys, r.rows = room(m.KeySize()), room(m.ValueSize())
}

func (r rawRows) first(n int) rawRows { return rawRows{r.keys.Slice(0, n), r.rows.Slice(0, n)} }
func (r rawRows) len() int            { return r.keys.Len() }
func (r rawRows) key(i int) []byte    { return r.keys.Index(i).Bytes() }
func (r rawRows) row(i int) []byte    { return r.rows.Index(i).Bytes() }

// eachRawRow is eachRow for a map of any layout.
func eachRawRow(m *ebpf.Map, visit func(rawRows) error) error {
	var cursor ebpf.MapBatchCursor
	var buffer rawRows
	most := int(m.MaxEntries())
	buffer.grow(m, min(flowBatch, most))
	for {
		n, err := m.BatchLookup(&cursor, buffer.keys.Interface(), buffer.rows.Interface(), nil)
		switch {
		case errors.Is(err, syscall.ENOSPC) && buffer.len() < most: // too small for one bucket
			buffer.grow(m, min(2*buffer.len(), most))
			continue
		case err != nil && !errors.Is(err, ebpf.ErrKeyNotExist):
			return fmt.Errorf("list rows: %w", err)
		}
		if n > 0 {
			if visitErr := visit(buffer.first(n)); visitErr != nil {
				return visitErr
			}
		}
		if err != nil {
			return nil
		}
	}
}
