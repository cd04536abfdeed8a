package rig

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// MapIterators is Root, and skips the test on a kernel that refuses programs that look through maps, which socket
// acceleration has. It fails the test instead where FAIRLEAD_REQUIRE has the word "map-iterators".
func MapIterators(t T) {
	t.Helper()
	Root(t)
	if why := LacksMapIterators(); why != "" {
		Lacking(t, "map-iterators", why)
	}
}

// LacksMapIterators returns why programs cannot look through maps, or "" if they can. Only a refusal counts: any
// other error is for the test itself to meet.
func LacksMapIterators() string {
	for _, maps := range []string{"bpf_map_elem", "sockmap", "bpf_sk_storage_map"} {
		program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter, AttachTo: maps, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
		})
		if errors.Is(err, unix.EPERM) {
			return fmt.Sprintf("this kernel refuses programs that look through maps: iter/%s: %v", maps, err)
		}
		if err == nil {
			_ = program.Close()
		}
	}
	return ""
}
