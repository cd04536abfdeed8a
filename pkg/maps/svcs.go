package maps

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/cilium/ebpf"
)

// svcBatch is how many rows one system call transfers. A bucket of the hash holds far fewer.
const svcBatch = 4096

// SvcTable is the hash of frontends. It does not own its map.
type SvcTable struct {
	m *ebpf.Map
}

// NewSvcTable returns a table over a map with the layout of svcs.
func NewSvcTable(m *ebpf.Map) *SvcTable { return &SvcTable{m} }

// Capacity returns how many rows fit.
func (t *SvcTable) Capacity() uint32 { return t.m.MaxEntries() }

// Insert writes rows[i] under keys[i] for all i. If it fails, some may have been written.
//
// The kernel reuses the memory of a deleted row for the next insert while programs may still read
// it, so there must be a Barrier between a Delete and an Insert.
func (t *SvcTable) Insert(keys []SvcKey, rows []Svc) error {
	if len(keys) != len(rows) {
		return fmt.Errorf("insert svcs: %d keys, %d rows", len(keys), len(rows))
	}
	for len(keys) > 0 {
		n := min(len(keys), svcBatch)
		done, err := t.m.BatchUpdate(keys[:n], rows[:n], nil)
		if errors.Is(err, ebpf.ErrNotSupported) {
			return t.insertSingly(keys, rows)
		}
		if err != nil {
			return fmt.Errorf("insert svcs: %d rows left: %w", len(keys)-done, err)
		}
		keys, rows = keys[n:], rows[n:]
	}
	return nil
}

func (t *SvcTable) insertSingly(keys []SvcKey, rows []Svc) error {
	for i := range keys {
		if err := t.Update(keys[i], rows[i]); err != nil {
			return err
		}
	}
	return nil
}

// Update writes one row. It replaces the memory of an existing row, like a Delete and an Insert.
func (t *SvcTable) Update(key SvcKey, row Svc) error {
	if err := t.m.Update(&key, &row, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("update svc %s: %w", AddrPort(key), err)
	}
	return nil
}

// Lookup returns the row for key and whether it exists.
func (t *SvcTable) Lookup(key SvcKey) (Svc, bool, error) {
	var row Svc
	err := t.m.Lookup(&key, &row)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return Svc{}, false, nil
	}
	if err != nil {
		return Svc{}, false, fmt.Errorf("look up svc %s: %w", AddrPort(key), err)
	}
	return row, true, nil
}

// Delete deletes rows, which need not exist. If it fails, some may have been deleted.
func (t *SvcTable) Delete(keys []SvcKey) error {
	for len(keys) > 0 {
		done, err := t.m.BatchDelete(keys, nil)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ebpf.ErrNotSupported):
			return t.deleteSingly(keys)
		case errors.Is(err, ebpf.ErrKeyNotExist) && done < len(keys):
			keys = keys[done+1:] // the batch stopped at a missing key
		default:
			return fmt.Errorf("delete svcs: %d rows left: %w", len(keys)-done, err)
		}
	}
	return nil
}

func (t *SvcTable) deleteSingly(keys []SvcKey) error {
	for _, key := range keys {
		if err := t.m.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete svc %s: %w", AddrPort(key), err)
		}
	}
	return nil
}

// Each calls visit with every row, in no order. Rows written meanwhile may be missed or come twice.
func (t *SvcTable) Each(visit func(SvcKey, Svc)) error {
	var cursor ebpf.MapBatchCursor
	size := min(int(t.m.MaxEntries()), svcBatch)
	keys, rows := make([]SvcKey, size), make([]Svc, size)
	for {
		n, err := t.m.BatchLookup(&cursor, keys, rows, nil)
		switch {
		case errors.Is(err, ebpf.ErrNotSupported):
			return t.eachSingly(visit)
		case errors.Is(err, syscall.ENOSPC) && size < int(t.m.MaxEntries()):
			size *= 2
			keys, rows = make([]SvcKey, size), make([]Svc, size)
			continue
		case err != nil && !errors.Is(err, ebpf.ErrKeyNotExist):
			return fmt.Errorf("list svcs: %w", err)
		}
		for i := range n {
			visit(keys[i], rows[i])
		}
		if err != nil {
			return nil
		}
	}
}

func (t *SvcTable) eachSingly(visit func(SvcKey, Svc)) error {
	var key SvcKey
	var row Svc
	rows := t.m.Iterate()
	for rows.Next(&key, &row) {
		visit(key, row)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("list svcs: %w", err)
	}
	return nil
}
