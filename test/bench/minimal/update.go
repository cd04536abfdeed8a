package minimal

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/minimal/limited"
)

// updateBatch is the number of updates between two readings of the clock.
const updateBatch = 16

// UpdateTimes are the nanoseconds of one update.
type UpdateTimes struct{ Min, Median, P99 float64 }

// TimeUpdates times updates of single rows in a hash with the given number of rows, with a key of
// 20 bytes and a value of 8, as for services. It times the system call and nothing around it: no
// program can change a row of a hash for less. It returns an error unless every written row has its
// last value.
func TimeUpdates(rows, updates int) (UpdateTimes, error) {
	if rows < 1 || updates < updateBatch {
		return UpdateTimes{}, fmt.Errorf("time updates: %d rows and %d updates are too few (use %d updates or more)",
			rows, updates, updateBatch)
	}
	var times []float64
	err := limited.Do(func() error {
		table, err := newUpdateTable(rows)
		if err != nil {
			return err
		}
		defer table.Close()
		times, err = table.time(updates)
		return err
	})
	if err != nil {
		return UpdateTimes{}, fmt.Errorf("time updates: %w", err)
	}
	slices.Sort(times)
	return UpdateTimes{Min: times[0], Median: times[len(times)/2], P99: times[len(times)*99/100]}, nil
}

type updateKey struct{ Word [5]uint32 }

// updateTable is a hash with rows, and the values that they should have.
type updateTable struct {
	*ebpf.Map
	want []uint64
}

func newUpdateTable(rows int) (*updateTable, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "updates", Type: ebpf.Hash, KeySize: uint32(binary.Size(updateKey{})), ValueSize: 8, MaxEntries: uint32(rows),
	})
	if err != nil {
		return nil, err
	}
	t := &updateTable{Map: m, want: make([]uint64, rows)}
	keys := make([]updateKey, rows)
	for i := range keys {
		keys[i] = keyOfRow(i)
	}
	if _, err := m.BatchUpdate(keys, t.want, nil); err != nil {
		m.Close()
		return nil, fmt.Errorf("fill the map: %w", err)
	}
	return t, nil
}

func keyOfRow(row int) updateKey { return updateKey{[5]uint32{uint32(row), 4: uint32(row)}} }

// updateCall is the part of the kernel's union bpf_attr that an update reads.
type updateCall struct {
	fd    uint32
	_     uint32
	key   unsafe.Pointer
	value unsafe.Pointer
	flags uint64
}

// time updates rows all over the table.
func (t *updateTable) time(updates int) ([]float64, error) {
	var key updateKey
	var value uint64
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&key)
	pinned.Pin(&value)
	attr := updateCall{fd: uint32(t.FD()), key: unsafe.Pointer(&key), value: unsafe.Pointer(&value), flags: uint64(ebpf.UpdateExist)}
	times := make([]float64, 0, updates/updateBatch)
	row, stride := 0, len(t.want)*618/1000|1
	for range updates / updateBatch {
		start := time.Now()
		for range updateBatch {
			row = (row + stride) % len(t.want)
			key, value = keyOfRow(row), value+1
			_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_UPDATE_ELEM, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			if errno != 0 {
				return nil, fmt.Errorf("update row %d: %w", row, errno)
			}
			t.want[row] = value
		}
		times = append(times, float64(time.Since(start))/updateBatch)
	}
	return times, t.check()
}

func (t *updateTable) check() error {
	for row, want := range t.want {
		var have uint64
		if want == 0 {
			continue
		}
		if err := t.Lookup(keyOfRow(row), &have); err != nil || have != want {
			return fmt.Errorf("row %d holds %d, want %d (%v)", row, have, want, err)
		}
	}
	return nil
}
