package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// oldestKernel is the oldest Linux release on which fairlead is tested. An older kernel may do if
// its distribution backported what is missing, so it is not refused for its number.
const oldestKernel = "6.1"

// ErrKernel is wrapped by the error of Open if the kernel lacks something that the programs
// require.
var ErrKernel = errors.New("the kernel is too old")

// need is a kernel feature that the programs require.
type need struct {
	what  string // description for error messages
	since string // the Linux release that introduced it
	probe func() error
}

// needs returns the features that differ between the kernels in use. Without this check, the error
// would be the verifier's. Optional features are in Features.
func needs() []need {
	return []need{
		{"atomic instructions that return the old value, used to balance connections round robin", "5.12", probeAtomicFetch},
		{"the identity of a network namespace (SO_NETNS_COOKIE), which tells the node from its pods", "5.14", probeNetnsCookie},
		{"its own type information (CONFIG_DEBUG_INFO_BTF), with which programs find the fields of a socket", "5.4", probeTypes},
	}
}

// ProbeKernel checks that the running kernel has what the programs require, and returns which
// optional features it has. It needs the privileges to load programs, and attaches nothing.
func ProbeKernel() (Features, error) {
	if err := checkKernel(needs()); err != nil {
		return Features{}, err
	}
	return probe()
}

// checkKernel returns an error that lists everything that is missing.
func checkKernel(needs []need) error {
	var missing []string
	for _, n := range needs {
		err := n.probe()
		if errors.Is(err, ebpf.ErrNotSupported) {
			missing = append(missing, fmt.Sprintf("%s (Linux %s)", n.what, n.since))
		} else if err != nil {
			return fmt.Errorf("probe the kernel for %s: %w", n.what, err)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s lacks %s; fairlead needs Linux %s or newer", ErrKernel, kernelRelease(),
		strings.Join(missing, ", and "), oldestKernel)
}

func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "it"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// probeAtomicFetch loads a program with an atomic fetch-and-add on its stack.
func probeAtomicFetch() error {
	fetchAdd := asm.FetchAdd.Mem(asm.RFP, asm.R1, asm.DWord, -8)
	// The library encodes this field unchanged and leaves it 0, which is a plain add.
	fetchAdd.Constant = int64(asm.FetchAdd >> 8)
	return probeInstructions(asm.Instructions{
		asm.Mov.Imm(asm.R0, 1),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		fetchAdd,
		asm.Return(),
	})
}

// probeSetRetval calls bpf_set_retval as the programs do. The library's own probe passes an
// uninitialized register, and takes the answer of Linux 7.2 to that for an unexpected error.
func probeSetRetval() error {
	return probeInstructions(asm.Instructions{
		asm.Mov.Imm(asm.R1, -int32(unix.ECONNREFUSED)),
		asm.FnSetRetval.Call(),
		asm.Mov.Imm(asm.R0, 1),
		asm.Return(),
	})
}

// probeInstructions returns an error that wraps ebpf.ErrNotSupported if the verifier rejects the
// instructions.
func probeInstructions(instructions asm.Instructions) error {
	prog, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "Dual BSD/GPL",
		Instructions: instructions,
	}, ebpf.ProgramOptions{LogDisabled: true})
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
	}
	if err != nil {
		return err
	}
	return prog.Close()
}

func probeTypes() error {
	_, err := os.Stat("/sys/kernel/btf/vmlinux")
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
	}
	return err
}

func probeNetnsCookie() error {
	_, err := HostNetns()
	if errors.Is(err, unix.ENOPROTOOPT) {
		return fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
	}
	return err
}
