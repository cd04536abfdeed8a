package ticks

import (
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Clock reads the current tick as the packet programs see it. It runs a program for that, since the
// kernel exposes jiffies in no other way.
type Clock struct{ program *ebpf.Program }

// Clock returns a clock for these ticks. The caller must close it.
func (t Tick) Clock() (*Clock, error) {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "tick_now", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.FnJiffies64.Call(),
			asm.RSh.Imm(asm.R0, int32(t.Shift)),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("open the programs' clock: %w", err)
	}
	return &Clock{program}, nil
}

// Now returns the current tick.
func (c *Clock) Now() (uint32, error) {
	const shortest = 14 // minimum length of a test packet
	now, _, err := c.program.Test(make([]byte, shortest))
	if err != nil {
		return 0, fmt.Errorf("read the programs' clock: %w", err)
	}
	return now, nil
}

// Close closes the clock's program.
func (c *Clock) Close() error { return c.program.Close() }

// Now returns the current tick, for callers that need it only once.
func (t Tick) Now() (uint32, error) {
	clock, err := t.Clock()
	if err != nil {
		return 0, err
	}
	defer clock.Close()
	return clock.Now()
}

// Mark stores and returns a tick that is not earlier than any recorded so far: everything recorded
// up to now counts as older.
func (c *Clock) mark(word *uint32) (uint32, error) {
	now, err := c.Now()
	for err == nil {
		written := now + kernelLagTicks
		atomic.StoreUint32(word, written)
		if now, err = c.Now(); err == nil && int32(now-written) <= 0 {
			return written, nil
		}
	}
	return 0, err
}
