package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Barrier waits until every program that is running has ended. After it nobody holds what was unlinked before: a freed
// index may be reused and a deleted row's memory rewritten. It has two private, unpinned maps.
type Barrier struct {
	outer, inner *ebpf.Map
}

// NewBarrier returns a Barrier; the caller closes it.
func NewBarrier() (*Barrier, error) {
	slot := &ebpf.MapSpec{Name: "barrier_slot", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	inner, err := ebpf.NewMap(slot)
	if err != nil {
		return nil, fmt.Errorf("create barrier: %w", err)
	}
	outer, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "barrier", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: slot,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create barrier: %w", err), inner.Close())
	}
	return &Barrier{outer: outer, inner: inner}, nil
}

// Wait returns after every program that was running has ended; programs that started meanwhile may still run. It takes
// a few milliseconds, more on a busy machine. It may be called from several goroutines.
//
// The update of a map in a map is documented to return only after that: it is the one grace period that a process
// without further privileges can ask for.
func (b *Barrier) Wait() error {
	if err := b.outer.Update(uint32(0), b.inner, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("wait for running programs: %w", err)
	}
	return nil
}

// Close frees the maps.
func (b *Barrier) Close() error {
	return errors.Join(b.outer.Close(), b.inner.Close())
}
