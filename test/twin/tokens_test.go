package twin

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// tokens is how many tokens a CPU has at most.
const tokens = 64

// setTokens sets how many ICMP errors may be sent: none for a moment, or as many as usual.
func (w *kernelNode) setTokens(none bool) error {
	if none == w.silent && !none {
		return nil
	}
	w.silent = none
	value := bpf.MapsAllowance{}
	if none {
		w.silentAt = coarse()
		value.Filled = w.silentAt
	}
	return w.maps.Allowances.Update(uint32(0), slices.Repeat([]bpf.MapsAllowance{value}, w.cpus), ebpf.UpdateAny)
}

// tokensTaken fails unless exactly one error was paid for.
func (w *kernelNode) tokensTaken() error {
	if w.silent {
		return nil
	}
	var perCPU []bpf.MapsAllowance
	if err := w.maps.Allowances.Lookup(uint32(0), &perCPU); err != nil {
		return err
	}
	w.silent = true // so that the next packet finds all tokens again
	for _, cpu := range perCPU {
		if cpu.Tokens == tokens-1 {
			return nil
		}
	}
	return fmt.Errorf("an error was sent without taking a token: %+v", perCPU)
}
