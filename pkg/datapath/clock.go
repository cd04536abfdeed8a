package datapath

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Clock tells the number of the current tick, as the programs of packets write it: a program reads it, since nobody else
// is told how many jiffies there were.
type Clock struct{ program *ebpf.Program }

// Clock returns the clock of the ticks; the caller closes it.
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

// Now returns the number of the current tick.
func (c *Clock) Now() (uint32, error) {
	const shortest = 14 // bytes of a packet
	now, _, err := c.program.Test(make([]byte, shortest))
	if err != nil {
		return 0, fmt.Errorf("read the programs' clock: %w", err)
	}
	return now, nil
}

// Close lets go of the clock.
func (c *Clock) Close() error { return c.program.Close() }

// Now returns the number of the current tick to whoever asks once.
func (t Tick) Now() (uint32, error) {
	clock, err := t.Clock()
	if err != nil {
		return 0, err
	}
	defer clock.Close()
	return clock.Now()
}
