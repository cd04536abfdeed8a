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

// oldestKernel is the oldest release of Linux that fairlead is tested on. An older one may be good enough, if its
// distribution has added what is missing: it is not refused for its number.
const oldestKernel = "6.1"

// ErrKernel is wrapped by Open's error when the kernel lacks what the programs cannot do without.
var ErrKernel = errors.New("the kernel is too old")

// need is something that the programs cannot do without.
type need struct {
	what  string // as a reader of the error understands it
	since string // the release of Linux that brought it
	probe func() error
}

// needs lists what makes the difference between the kernels that people run; without it the error would be that of the
// verifier. What is merely better to have is in Features.
func needs() []need {
	return []need{
		{"atomic instructions that return the old value, by which connections take turns", "5.12", probeAtomicFetch},
		{"the identity of a network namespace (SO_NETNS_COOKIE), by which the node is told from its pods", "5.14", probeNetnsCookie},
		{"its own type information (CONFIG_DEBUG_INFO_BTF), by which programs find what a socket has", "5.4", probeTypes},
	}
}

// ProbeKernel says whether the running kernel has what the programs cannot do without, and what of it is merely better to
// have. It takes what loading programs takes; nothing is attached.
func ProbeKernel() (Features, error) {
	if err := checkKernel(needs()); err != nil {
		return Features{}, err
	}
	return probe()
}

// checkKernel returns an error that names everything that is missing.
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

// probeAtomicFetch loads a program that fetches and adds on its stack.
func probeAtomicFetch() error {
	fetchAdd := asm.FetchAdd.Mem(asm.RFP, asm.R1, asm.DWord, -8)
	fetchAdd.Constant = int64(asm.FetchAdd >> 8) // the library writes this field as it is, and leaves it 0: a plain add
	return probeInstructions(asm.Instructions{
		asm.Mov.Imm(asm.R0, 1),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		fetchAdd,
		asm.Return(),
	})
}

// probeSetRetval calls bpf_set_retval as the programs do. The library's own probe passes a register without a value, and
// takes what Linux 7.2 says to that for an error of its own.
func probeSetRetval() error {
	return probeInstructions(asm.Instructions{
		asm.Mov.Imm(asm.R1, -int32(unix.ECONNREFUSED)),
		asm.FnSetRetval.Call(),
		asm.Mov.Imm(asm.R0, 1),
		asm.Return(),
	})
}

// probeInstructions returns an error that wraps ebpf.ErrNotSupported if the verifier refuses the instructions.
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
