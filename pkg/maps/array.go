package maps

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Array is an array map mapped into memory: reading or writing a row takes no system call, and
// programs see a write at once. Fields that programs load while they change must be stored
// atomically.
type Array[T any] struct {
	mem  []byte
	rows []T
}

// MapArray maps the rows of m. T must have the layout of the map's values and hold no pointers, and
// its size must be a multiple of 8, to which the kernel rounds the distance between rows. Writing to
// a mapping that is not writable faults. The mapping outlives m.
func MapArray[T any](m *ebpf.Map, writable bool) (*Array[T], error) {
	var row T
	size := int(unsafe.Sizeof(row))
	if m.Type() != ebpf.Array || m.Flags()&unix.BPF_F_MMAPABLE == 0 {
		return nil, fmt.Errorf("map rows of %s: it is not an array that can be mapped into memory", m)
	}
	if size%8 != 0 || size != int(m.ValueSize()) {
		return nil, fmt.Errorf("map rows of %s: a row has %d bytes, a value %d", m, size, m.ValueSize())
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	page := os.Getpagesize()
	length := (size*int(m.MaxEntries()) + page - 1) / page * page
	mem, err := unix.Mmap(m.FD(), 0, length, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map rows of %s: %w", m, err)
	}
	rows := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), int(m.MaxEntries()))
	return &Array[T]{mem: mem, rows: rows}, nil
}

// Rows returns all rows. They must not be used after Close.
func (a *Array[T]) Rows() []T { return a.rows }

// Close unmaps the rows. It may be called twice.
func (a *Array[T]) Close() error {
	if a.mem == nil {
		return nil
	}
	mem := a.mem
	a.mem, a.rows = nil, nil
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap rows: %w", err)
	}
	return nil
}
