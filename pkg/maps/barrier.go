package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// Barrier waits until every program that is now running has ended. After that no program holds a
// reference to anything unlinked before: a freed index may be reused and the memory of a deleted
// row rewritten. It uses two private, unpinned maps.
type Barrier struct {
	outer, inner *ebpf.Map
}

// NewBarrier returns a Barrier. The caller must close it.
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

// Wait returns once every program that was running has ended; programs that started meanwhile may
// still run. It takes a few milliseconds, more on a busy machine. It is safe for concurrent use.
//
// The kernel documents that updating a map in a map returns only after that. It is the only grace
// period that a process can ask for without further privileges.
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
