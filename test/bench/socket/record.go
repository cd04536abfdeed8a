package main

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/bench/minimal/limited"
)

// record is a place for the record of what a connected socket dialed. Its number is that in
// bpf/records.c.
type record struct {
	name   string
	number uint32
	hooks  []string // the programs that use it
}

func records() []record {
	connected := []string{
		"sock_connect4", "sock_connect6", "sock_peername4", "sock_peername6", "sock_recvmsg4", "sock_recvmsg6",
	}
	with := func(more string) []string { return append(connected[:len(connected):len(connected)], more) }
	return []record{
		{"no record", 0, connected},
		{"socket storage", 1, connected},
		{"LRU hash", 2, connected},
		{"hash, emptied at release", 3, with("sock_release_any")},
		{"hash that allocates, emptied at release", 4, with("sock_release_any")},
		{"the product's", 5, with("sock_release")},
	}
}

// load loads the product's programs with this record, using full maps.
func (r record) load(over *maps.Maps) (hooks hookList, err error) {
	spec, err := loadRecords()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	if err := spec.Variables["record"].Set(r.number); err != nil {
		return nil, fmt.Errorf("set the record: %w", err)
	}
	var loaded *ebpf.Collection
	if err := limited.Do(func() error {
		loaded, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: over.Replacements(spec)})
		return err
	}); err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	defer loaded.Close()
	for _, name := range r.hooks {
		program := loaded.DetachProgram(name)
		if program == nil {
			return nil, errors.Join(fmt.Errorf("load programs: no program %s", name), hooks.Close())
		}
		hooks = append(hooks, hook{program, spec.Programs[name].AttachType})
	}
	return hooks, nil
}

// hookList is a list of hooks that Close closes.
type hookList []hook

// Close closes the programs.
func (l hookList) Close() error {
	var errs []error
	for _, h := range l {
		errs = append(errs, h.program.Close())
	}
	return errors.Join(errs...)
}
