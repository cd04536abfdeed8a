package datapath

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

func TestCheckKernel(t *testing.T) {
	has := need{"wheels", "5.1", func() error { return nil }}
	lacks := func(what, since string) need {
		return need{what, since, func() error { return fmt.Errorf("%w: no %s", ebpf.ErrNotSupported, what) }}
	}
	forbidden := need{"doors", "5.2", func() error { return unix.EPERM }}
	for _, test := range []struct {
		name  string
		needs []need
		want  string // in the error; "" for none
		is    error
	}{
		{"all there", []need{has, has}, "", nil},
		{"one missing", []need{has, lacks("wings", "5.3")}, " lacks wings (Linux 5.3); fairlead needs Linux 6.1 or newer", ErrKernel},
		{"two missing", []need{lacks("wings", "5.3"), has, lacks("fins", "5.4")}, " lacks wings (Linux 5.3), and fins (Linux 5.4); ", ErrKernel},
		{"cannot tell", []need{forbidden}, "probe the kernel for doors: operation not permitted", unix.EPERM},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := checkKernel(test.needs)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("have %v, want %q", err, test.want)
			}
			if errors.Is(err, ErrKernel) && !strings.Contains(err.Error(), kernelRelease()) {
				t.Errorf("%v does not name the kernel", err)
			}
		})
	}
}

// A probe tells instructions that this kernel supports from those that no kernel does.
func TestProbeInstructions(t *testing.T) {
	rig.Root(t)
	if err := errors.Join(checkKernel(needs()), probeSetRetval()); err != nil {
		t.Error(err)
	}
	unknown := asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord), asm.Return()}
	unknown[1].Constant = 99 // such a store has no constant
	if err := probeInstructions(unknown); !errors.Is(err, ebpf.ErrNotSupported) {
		t.Errorf("unknown instructions: %v", err)
	}
}
