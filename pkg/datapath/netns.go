package datapath

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// NetnsFinder finds the cookies of network namespaces on kernels that do not report them, with a
// program that walks the kernel's list of all namespaces. Each call of Cookie runs the program; it
// is attached to nothing.
type NetnsFinder struct {
	mu   sync.Mutex
	find *ebpf.Program
	vars map[string]*ebpf.Variable
}

// NewNetnsFinder loads the program.
func NewNetnsFinder() (*NetnsFinder, error) {
	spec, err := bpf.LoadNetns()
	if err != nil {
		return nil, fmt.Errorf("read program specs: %w", err)
	}
	loaded, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, fmt.Errorf("load the program that finds network namespaces: %w", err)
	}
	defer loaded.Close()
	f := &NetnsFinder{find: loaded.DetachProgram(bpf.NetnsProgNetnsFind), vars: loaded.Variables}
	if f.find == nil || f.vars[bpf.NetnsVarNetnsNumber] == nil || f.vars[bpf.NetnsVarNetnsCookie] == nil {
		return nil, errors.New("load the program that finds network namespaces: the object lacks it or a variable of it")
	}
	return f, nil
}

// Cookie returns the cookie of the network namespace whose file has the inode number. The caller
// must keep the file open, or another namespace may get the number.
func (f *NetnsFinder) Cookie(inode uint64) (id uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.vars[bpf.NetnsVarNetnsNumber].Set(uint32(inode)); err != nil {
		return 0, fmt.Errorf("find a network namespace: %w", err)
	}
	if _, err := f.find.Run(&ebpf.RunOptions{}); err != nil {
		return 0, fmt.Errorf("find a network namespace: %w", err)
	}
	if err := f.vars[bpf.NetnsVarNetnsCookie].Get(&id); err != nil {
		return 0, fmt.Errorf("find a network namespace: %w", err)
	}
	if id == 0 {
		return 0, fmt.Errorf("find network namespace %d: it is not in the kernel's list", inode)
	}
	return id, nil
}
