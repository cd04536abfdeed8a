package maps

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"unicode/utf8"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// The key and row of optout. Both are comparable.
type (
	OptoutKey = bpf.MapsOptoutKey
	Optout    = bpf.MapsOptout
)

// What a key identifies.
const (
	OptoutNetns  = uint32(bpf.MapsOptoutKindOPTOUT_NETNS)
	OptoutCgroup = uint32(bpf.MapsOptoutKindOPTOUT_CGROUP)
)

// Why a pod has opted out.
const (
	OptoutByPod       = uint32(bpf.MapsOptoutWhyOPTOUT_BY_POD)
	OptoutByNamespace = uint32(bpf.MapsOptoutWhyOPTOUT_BY_NAMESPACE)
	OptoutByRuntime   = uint32(bpf.MapsOptoutWhyOPTOUT_BY_RUNTIME)
	OptoutByMesh      = uint32(bpf.MapsOptoutWhyOPTOUT_BY_MESH)
	OptoutByProxy     = uint32(bpf.MapsOptoutWhyOPTOUT_BY_PROXY)
)

// MakeOptout returns the row for a pod. A name that is too long is truncated, and only the first
// two addresses are kept: programs read neither.
func MakeOptout(pod string, addrs []netip.Addr, why uint32) Optout {
	row := Optout{Why: why}
	most := len(row.Pod.Text) - 1
	if len(pod) > most {
		for !utf8.RuneStart(pod[most]) {
			most--
		}
		pod = pod[:most]
	}
	for i := range len(pod) {
		row.Pod.Text[i] = int8(pod[i])
	}
	for i := range min(len(addrs), len(row.Addrs)) {
		row.Addrs[i] = AddrOf(addrs[i])
	}
	return row
}

// OptoutPod returns a row's pod name and addresses.
func OptoutPod(row Optout) (pod string, addrs []netip.Addr) {
	text := make([]byte, len(row.Pod.Text))
	for i, c := range row.Pod.Text {
		text[i] = byte(c)
	}
	if end := bytes.IndexByte(text, 0); end >= 0 {
		text = text[:end]
	}
	for _, addr := range row.Addrs {
		if addr != (Addr{}) {
			addrs = append(addrs, NetipOf(addr))
		}
	}
	return string(text), addrs
}

// OptoutRows returns the rows of optout.
func OptoutRows(m *ebpf.Map) (map[OptoutKey]Optout, error) {
	var key OptoutKey
	var row Optout
	have := map[OptoutKey]Optout{}
	rows := m.Iterate()
	for rows.Next(&key, &row) {
		have[key] = row
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read which pods have opted out: %w", err)
	}
	return have, nil
}

// SetOptouts makes optout equal to want and returns how many rows it changed. Rows that are not in
// want stay unless remove is set. Rows that stay are never absent meanwhile.
func (m *Maps) SetOptouts(want map[OptoutKey]Optout, remove bool) (changed int, err error) {
	have, err := OptoutRows(m.Optout)
	if err != nil {
		return 0, err
	}
	kinds := uint32(0)
	for key := range want {
		kinds |= key.Kind
	}
	after := kinds
	for key := range have {
		kinds |= key.Kind
		if !remove {
			after |= key.Kind
		}
	}
	// Written before the first row of a kind is added and after the last one is removed, so that
	// programs never overlook a row.
	if err := m.OptoutKinds.Put(uint32(0), kinds); err != nil {
		return 0, fmt.Errorf("write the kinds of opt-outs: %w", err)
	}
	for key, row := range want {
		if had, ok := have[key]; ok && had == row {
			continue
		}
		if err := m.Optout.Put(key, row); err != nil {
			return changed, fmt.Errorf("opt out %s: %w", optoutName(row), err)
		}
		changed++
	}
	if !remove {
		return changed, nil
	}
	for key, row := range have {
		if _, ok := want[key]; ok {
			continue
		}
		if err := m.Optout.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return changed, fmt.Errorf("end the opt-out of %s: %w", optoutName(row), err)
		}
		changed++
	}
	if err := m.OptoutKinds.Put(uint32(0), after); err != nil {
		return changed, fmt.Errorf("write the kinds of opt-outs: %w", err)
	}
	return changed, nil
}

func optoutName(row Optout) string {
	name, _ := OptoutPod(row)
	return name
}
