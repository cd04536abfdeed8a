package rig

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// CPU is the CPU on which a test runs programs that use per-CPU maps: each run finds what the one
// before left in that CPU's rows.
type CPU int

// NextCPU returns the usable CPUs in turn, so that parallel tests spread over all of them.
func NextCPU() (CPU, error) {
	cpus, err := usable()
	if err != nil {
		return 0, err
	}
	return cpus[int(taken.Add(1))%len(cpus)], nil
}

var taken atomic.Uint32

// usable is evaluated before any thread is pinned to a CPU.
var usable = sync.OnceValues(func() (cpus []CPU, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the CPUs of the process: %w", err)
	}
	for cpu := 0; len(cpus) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, CPU(cpu))
		}
	}
	return cpus, nil
})

// Do calls f on a thread pinned to the CPU.
func (c CPU) Do(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, here unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("read the CPUs of the thread: %w", err)
	}
	here.Set(int(c))
	if err := unix.SchedSetaffinity(0, &here); err != nil {
		return fmt.Errorf("pin a thread to CPU %d: %w", c, err)
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &before)) }()
	return f()
}
