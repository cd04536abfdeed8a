package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// verifierLines is how many lines of the verifier's log an error includes: the last ones say what
// it rejected and why.
const verifierLines = 12

// SetConfig sets the struct variable from fields, by name. fields must name exactly the members of
// the struct.
func SetConfig(variable *ebpf.VariableSpec, fields map[string]uint64) error {
	if variable == nil || variable.Type == nil {
		return errors.New("set config: the object does not describe it")
	}
	layout, ok := btf.As[*btf.Struct](variable.Type.Type)
	if !ok {
		return fmt.Errorf("set config: %s is not a struct", variable.Name)
	}
	if len(layout.Members) != len(fields) {
		return fmt.Errorf("set config: %d fields for %d members", len(fields), len(layout.Members))
	}
	value := make([]byte, layout.Size)
	for _, member := range layout.Members {
		field, ok := fields[member.Name]
		if !ok {
			return fmt.Errorf("set config: no value for %s", member.Name)
		}
		size, err := btf.Sizeof(member.Type)
		if err != nil {
			return fmt.Errorf("set config field %s: %w", member.Name, err)
		}
		at := value[member.Offset.Bytes():]
		for i := range size {
			at[i] = byte(field >> (8 * i))
		}
	}
	if err := variable.Set(value); err != nil {
		return fmt.Errorf("set config: %w", err)
	}
	return nil
}

// NewCollection loads an object over maps that replace its own.
func NewCollection(spec *ebpf.CollectionSpec, over map[string]*ebpf.Map) (*ebpf.Collection, error) {
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: over})
	if err != nil {
		return nil, LoadError(err)
	}
	return loaded, nil
}

// LoadError describes why the kernel refused programs, with the end of what the verifier says.
func LoadError(err error) error {
	var refused *ebpf.VerifierError
	if !errors.As(err, &refused) {
		return fmt.Errorf("load programs: %w", err)
	}
	tail := refused.Log[max(0, len(refused.Log)-verifierLines):]
	return fmt.Errorf("load programs: %w\nthe verifier's last lines:\n\t%s", err, strings.Join(tail, "\n\t"))
}
