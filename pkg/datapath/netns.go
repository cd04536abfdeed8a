package datapath

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// NetnsFinder finds the cookies of network namespaces where the kernel does not tell them, by a program that walks the kernel's list of all. It is run by a
// call of whoever asks, and attached to nothing.
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
		return nil, fmt.Errorf("load what finds network namespaces: %w", err)
	}
	defer loaded.Close()
	f := &NetnsFinder{find: loaded.DetachProgram(bpf.NetnsProgNetnsFind), vars: loaded.Variables}
	if f.find == nil || f.vars[bpf.NetnsVarNetnsNumber] == nil || f.vars[bpf.NetnsVarNetnsCookie] == nil {
		return nil, errors.New("load what finds network namespaces: the object lacks something")
	}
	return f, nil
}

// Cookie returns the cookie of the network namespace whose file has the inode number. Who asks keeps the file open, or the number may be another's by now.
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
		return 0, fmt.Errorf("find network namespace %d: the kernel's list does not have it", inode)
	}
	return id, nil
}
