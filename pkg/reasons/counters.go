package reasons

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// Counter is what one hook counted for one reason, summed over all processors. Under the reason
// "none" nothing went wrong.
type Counter struct {
	Hook    string `json:"hook"`
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// ReadCounters reads the map counters and returns every pair of hook and reason in the order of the
// map. Their names are those of the enums in the programs' source.
func ReadCounters(m *ebpf.Map) ([]Counter, error) {
	hooks, reasons, err := Words()
	if err != nil {
		return nil, err
	}
	return CountersNamed(m, hooks, reasons)
}

// CountersNamed reads the map counters for who has the names of hooks and reasons already.
func CountersNamed(m *ebpf.Map, hooks, reasons []string) ([]Counter, error) {
	var list []Counter
	for h, hook := range hooks {
		for r, reason := range reasons {
			c := Counter{Hook: hook, Reason: reason}
			var perCPU []maps.Counter
			if err := m.Lookup(uint32(h*int(bpf.MapsCounterRoomCOUNTER_REASONS)+r), &perCPU); err != nil {
				return nil, fmt.Errorf("read counter %s of hook %s: %w", reason, hook, err)
			}
			for _, v := range perCPU {
				c.Packets += v.Packets
				c.Bytes += v.Bytes
			}
			list = append(list, c)
		}
	}
	return list, nil
}

// WordsOf returns the names of a hook and a reason.
func WordsOf(hook, reason int) (hookWord, reasonWord string, err error) {
	hooks, reasons, err := Words()
	if err == nil && (hook >= len(hooks) || reason >= len(reasons)) {
		err = fmt.Errorf("there is no hook %d or no reason %d", hook, reason)
	}
	if err != nil {
		return "", "", err
	}
	return hooks[hook], reasons[reason], nil
}

// Words returns the names of all hooks and of all reasons, in the order of their values.
func Words() (hooks, reasons []string, err error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, nil, fmt.Errorf("read map specs: %w", err)
	}
	if hooks, err = enumWords(specs.Variables[bpf.MapsVarHookType], "HOOK_"); err != nil {
		return nil, nil, err
	}
	reasons, err = enumWords(specs.Variables[bpf.MapsVarReasonType], "REASON_")
	return hooks, reasons, err
}

// enumWords returns the values 0, 1, ... of a variable's enum as words: REASON_NO_BACKEND becomes
// "no-backend". A value without the prefix is the number of values and ends the list.
func enumWords(variable *ebpf.VariableSpec, prefix string) ([]string, error) {
	if variable == nil || variable.Type == nil {
		return nil, fmt.Errorf("read words of %s: the object does not describe them", prefix)
	}
	typ := variable.Type.Type
	if pointer, ok := btf.As[*btf.Pointer](typ); ok {
		typ = pointer.Target
	}
	enum, ok := btf.As[*btf.Enum](typ)
	if !ok {
		return nil, fmt.Errorf("read words of %s: %s is no enum", prefix, variable.Name)
	}
	values := slices.SortedFunc(slices.Values(enum.Values), func(a, b btf.EnumValue) int { return int(a.Value) - int(b.Value) })
	var words []string
	for i, v := range values {
		word, ok := strings.CutPrefix(v.Name, prefix)
		if !ok {
			break
		}
		if v.Value != uint64(i) {
			return nil, fmt.Errorf("read words of %s: %s is %d, not %d", prefix, v.Name, v.Value, i)
		}
		words = append(words, strings.ToLower(strings.ReplaceAll(word, "_", "-")))
	}
	return words, nil
}
