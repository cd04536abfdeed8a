package bpf

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// cleanBatch is how many rows of a map one system call reads.
const cleanBatch = 4096

// clean deletes the rows of a map, or zeroes them, and returns how many there were.
func clean(m *ebpf.Map) (rows int, err error) {
	switch {
	case m.Type() == ebpf.Hash, m.Type() == ebpf.LRUHash:
		return cleanHash(m)
	case m.Type() == ebpf.LPMTrie:
		return cleanTrie(m)
	case m.Type() == ebpf.Array && m.Flags()&unix.BPF_F_MMAPABLE != 0:
		return cleanMemory(m)
	case m.Type() == ebpf.Array, m.Type() == ebpf.PerCPUArray:
		return cleanArray(m)
	case m.Type() == ebpf.RingBuf:
		return cleanRing(m)
	case m.Type() == ebpf.SkStorage:
		return 0, nil // its rows belong to sockets, and go with them
	}
	return 0, fmt.Errorf("clean: unknown map type %s", m.Type())
}

// raw returns a slice of n values of size bytes.
func raw(n, size int) any {
	of := reflect.SliceOf(reflect.ArrayOf(size, reflect.TypeFor[byte]()))
	return reflect.MakeSlice(of, n, n).Interface()
}

// bytesOf returns the content of such a slice.
func bytesOf(values any) []byte {
	v := reflect.ValueOf(values)
	return unsafe.Slice((*byte)(v.UnsafePointer()), v.Len()*int(v.Type().Elem().Size()))
}

func cleanHash(m *ebpf.Map) (rows int, err error) {
	keys, values := raw(cleanBatch, int(m.KeySize())), raw(cleanBatch, int(m.ValueSize()))
	for cursor := (ebpf.MapBatchCursor{}); ; {
		n, err := m.BatchLookupAndDelete(&cursor, keys, values, nil)
		rows += n
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return rows, nil
		}
		if err != nil {
			return rows, err
		}
	}
}

func cleanTrie(m *ebpf.Map) (rows int, err error) {
	key := make([]byte, m.KeySize())
	for {
		if err := m.NextKey(nil, key); errors.Is(err, ebpf.ErrKeyNotExist) {
			return rows, nil
		} else if err != nil {
			return rows, err
		}
		if err := m.Delete(key); err != nil {
			return rows, err
		}
		rows++
	}
}

// cleanMemory does not write to what is zero already, which is nearly everything.
func cleanMemory(m *ebpf.Map) (rows int, err error) {
	size := (int(m.ValueSize()) + 7) / 8 * 8
	page := os.Getpagesize()
	mem, err := unix.Mmap(m.FD(), 0, (size*int(m.MaxEntries())+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	none := make([]byte, page)
	for at := 0; at < len(mem); at += page {
		if part := mem[at : at+page]; !bytes.Equal(part, none) {
			clear(part)
			rows++
		}
	}
	return rows, unix.Munmap(mem)
}

func cleanArray(m *ebpf.Map) (rows int, err error) {
	size, none := int(m.ValueSize()), any(make([]byte, m.ValueSize()))
	if m.Type() == ebpf.PerCPUArray {
		cpus, err := ebpf.PossibleCPU()
		if err != nil {
			return 0, err
		}
		none = raw(cpus, size)
		size = (size + 7) / 8 * 8 * cpus
	}
	batch := min(cleanBatch, int(m.MaxEntries()))
	keys, values := make([]uint32, batch), raw(batch, size)
	have := bytesOf(values)
	zero := make([]byte, size)
	for cursor := (ebpf.MapBatchCursor{}); ; {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return rows, err
		}
		for i, key := range keys[:n] {
			if bytes.Equal(have[i*size:][:size], zero) {
				continue
			}
			if err := m.Put(key, none); err != nil {
				return rows, err
			}
			rows++
		}
		if err != nil {
			return rows, nil
		}
	}
}

// cleanRing consumes all events. The next event then starts at another place in the ring, which
// makes no difference to readers.
func cleanRing(m *ebpf.Map) (unread int, err error) {
	page := os.Getpagesize()
	read, err := unix.Mmap(m.FD(), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, err
	}
	written, err := unix.Mmap(m.FD(), int64(page), page, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, errors.Join(err, unix.Munmap(read))
	}
	at := func(mem []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(mem))) }
	end := atomic.LoadUint64(at(written))
	if unread = int(end - atomic.LoadUint64(at(read))); unread > 0 {
		atomic.StoreUint64(at(read), end)
	}
	return unread, errors.Join(unix.Munmap(read), unix.Munmap(written))
}
