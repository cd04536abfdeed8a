package maps

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"syscall"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// The rows of ct and ct_half, and what the programs that forget flows are told. All are comparable.
type (
	Flow       = bpf.MapsFlow
	FlowRow    = bpf.MapsCtEntry
	Doomed     = bpf.MapsDoomed
	CollectRun = bpf.MapsCollectRun
)

// FlowReply is the flag of rows of the way back to the client; FlowPod that of both rows of what a pod of this node
// opened to the outside, and FlowInside of both of what one sends to a service as packets: with both flags, of its own.
// FlowNode is that of what the node itself sends to a service as packets, and FlowStack of what the node's stack forwards.
const (
	FlowReply  = uint8(bpf.MapsCtFlagCT_REPLY)
	FlowPod    = uint8(bpf.MapsCtFlagCT_POD)
	FlowInside = uint8(bpf.MapsCtFlagCT_INSIDE)
	FlowNode   = uint8(bpf.MapsCtFlagCT_NODE)
	FlowStack  = uint8(bpf.MapsCtFlagCT_STACK)
)

// The states of a row.
const (
	FlowNew      = uint8(bpf.MapsCtStateCT_NEW)
	FlowAnswered = uint8(bpf.MapsCtStateCT_ANSWERED)
	FlowOpen     = uint8(bpf.MapsCtStateCT_OPEN)
	FlowClosing  = uint8(bpf.MapsCtStateCT_CLOSING)
	FlowReset    = uint8(bpf.MapsCtStateCT_RESET)
)

// The kinds of flow that differ in how long they are remembered, and how many there are.
const (
	ClassTCP  = int(bpf.MapsCtClassCT_CLASS_TCP)
	ClassUDP  = int(bpf.MapsCtClassCT_CLASS_UDP)
	ClassSCTP = int(bpf.MapsCtClassCT_CLASS_SCTP)
	Classes   = int(bpf.MapsCtClassCT_CLASSES)
)

// How far a flow is, and how many of these there are.
const (
	PhaseOpen       = int(bpf.MapsCtPhaseCT_PHASE_OPEN)
	PhaseHalfClosed = int(bpf.MapsCtPhaseCT_PHASE_HALF_CLOSED)
	PhaseClosed     = int(bpf.MapsCtPhaseCT_PHASE_CLOSED)
	PhaseReset      = int(bpf.MapsCtPhaseCT_PHASE_RESET)
	PhaseHalfOpen   = int(bpf.MapsCtPhaseCT_PHASE_HALF_OPEN)
	Phases          = int(bpf.MapsCtPhaseCT_PHASES)
)

// Why a flow is to be forgotten.
const (
	DoomIdle    = uint32(bpf.MapsDoomDOOM_IDLE)
	DoomStale   = uint32(bpf.MapsDoomDOOM_STALE)
	DoomFlushed = uint32(bpf.MapsDoomDOOM_FLUSHED)
)

// What became of it.
const (
	DoomSpared  = uint32(bpf.MapsDoomOutcomeDOOM_SPARED)
	DoomDeleted = uint32(bpf.MapsDoomOutcomeDOOM_DELETED)
)

// FlowLimits are the ticks for which a flow may be idle, by class and phase.
type FlowLimits = [Classes][Phases]uint32

// BackOf returns the key of the other direction's row.
func BackOf(flow Flow, row *FlowRow) Flow {
	return Flow{Saddr: row.Daddr, Daddr: row.Saddr, Sport: row.Dport, Dport: row.Sport, Proto: flow.Proto}
}

// FlowSource returns where a flow's packets come from, before they are rewritten.
func FlowSource(flow Flow) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(flow.Saddr), PortOf(flow.Sport))
}

// FlowDestination returns where they go to, before they are rewritten.
func FlowDestination(flow Flow) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(flow.Daddr), PortOf(flow.Dport))
}

// OpenFlows opens the maps of established flows and of half-open ones that are pinned in dir, as Open does. The caller
// closes them.
func OpenFlows(dir string, readOnly bool) (open, half *ebpf.Map, err error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, nil, fmt.Errorf("read map specs: %w", err)
	}
	if open, err = openPin(filepath.Join(dir, "ct"), specs.Maps["ct"], true, readOnly); err != nil {
		return nil, nil, err
	}
	if half, err = openPin(filepath.Join(dir, "ct_half"), specs.Maps["ct_half"], true, readOnly); err != nil {
		return nil, nil, errors.Join(err, open.Close())
	}
	return open, half, nil
}

// GrowthDir is there beside the directory of the maps while the map of established flows grows, with the larger one in it.
const GrowthDir = "table"

// OpenGrowing opens the larger map that flows move to while that of the maps pinned in dir grows, read-only; nil if it does
// not grow. The caller closes it. Whoever opens both opens this one first: it takes the other's place in the end.
func OpenGrowing(dir string) (*ebpf.Map, error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, fmt.Errorf("read map specs: %w", err)
	}
	m, err := openPin(filepath.Join(filepath.Dir(dir), GrowthDir, "ct"), specs.Maps["ct"], true, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return m, err
}

// The stages of a growth of the map of established flows; bpf/lib/table.h says what they mean.
const (
	TableOld  = uint32(bpf.MapsTableStageTABLE_OLD)
	TableBoth = uint32(bpf.MapsTableStageTABLE_BOTH)
	TableNew  = uint32(bpf.MapsTableStageTABLE_NEW)
)

// Carried is a row that is to be carried over into a larger map.
type Carried = bpf.MapsCarried

// What became of it.
const (
	CarryFailed = uint32(bpf.MapsCarryOutcomeCARRY_FAILED)
	CarryTorn   = uint32(bpf.MapsCarryOutcomeCARRY_TORN)
	CarryDone   = uint32(bpf.MapsCarryOutcomeCARRY_DONE)
)

// NewFlowMap makes a map of established flows of its own, with room for so many rows. The caller closes it.
func NewFlowMap(rows uint32) (*ebpf.Map, error) {
	sizes, err := Sizes{Flows: rows}.Round()
	if err != nil {
		return nil, err
	}
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, fmt.Errorf("read map specs: %w", err)
	}
	specs.Maps["ct"].MaxEntries = sizes.Flows
	m, err := ebpf.NewMap(specs.Maps["ct"])
	if err != nil {
		return nil, fmt.Errorf("create map ct of %d rows: %w", sizes.Flows, err)
	}
	return m, nil
}

// OpenFlowMap opens a map of established flows, of whatever size, that is pinned at path. The caller closes it.
func OpenFlowMap(path string) (*ebpf.Map, error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, fmt.Errorf("read map specs: %w", err)
	}
	return openPin(path, specs.Maps["ct"], true, false)
}

// PinFlowMap pins the map at path.
func PinFlowMap(m *ebpf.Map, path string) error { return pin(m, path) }

// ReplaceFlows takes a map over as that of established flows, and closes the one before.
func (m *Maps) ReplaceFlows(with *ebpf.Map) error {
	if err := m.describe("ct", with); err != nil {
		return err
	}
	old := m.Ct
	m.Ct = with
	if err := old.Close(); err != nil {
		return fmt.Errorf("close map ct: %w", err)
	}
	return nil
}

// LookupFlow returns the row of a key and whether there is one.
func LookupFlow(m *ebpf.Map, key Flow) (row FlowRow, ok bool, err error) {
	if err = m.Lookup(&key, &row); errors.Is(err, ebpf.ErrKeyNotExist) {
		return row, false, nil
	}
	if err != nil {
		return row, false, fmt.Errorf("look up flow of %s: %w", FlowSource(key), err)
	}
	return row, true, nil
}

// flowBatch is how many rows one system call moves: enough that the call costs nothing beside them, and few enough that
// they stay in a processor's cache.
const flowBatch = 2048

// FlowBuffer is the memory of a walk, which is used again by the next.
type FlowBuffer struct{ rowBuffer[Flow, FlowRow] }

type rowBuffer[K, V any] struct {
	keys []K
	rows []V
}

func (b *rowBuffer[K, V]) grow(size int) {
	if len(b.keys) < size {
		b.keys, b.rows = make([]K, size), make([]V, size)
	}
}

// EachFlow calls visit with all rows of a map of flows, some at a time, in no order; they are visit's until it returns.
// Rows that are written meanwhile may be missed or come twice, and those that visit deletes do not disturb. An error of
// visit ends the walk.
func EachFlow(m *ebpf.Map, buffer *FlowBuffer, visit func([]Flow, []FlowRow) error) error {
	return eachRow(m, &buffer.rowBuffer, visit)
}

// eachRow is EachFlow for every map that is a hash.
func eachRow[K, V any](m *ebpf.Map, buffer *rowBuffer[K, V], visit func([]K, []V) error) error {
	var cursor ebpf.MapBatchCursor
	most := int(m.MaxEntries())
	buffer.grow(min(flowBatch, most))
	for {
		n, err := m.BatchLookup(&cursor, buffer.keys, buffer.rows, nil)
		switch {
		case errors.Is(err, syscall.ENOSPC) && len(buffer.keys) < most: // not even one bucket has room
			buffer.grow(min(2*len(buffer.keys), most))
			continue
		case err != nil && !errors.Is(err, ebpf.ErrKeyNotExist):
			return fmt.Errorf("list rows: %w", err)
		}
		if n > 0 {
			if visitErr := visit(buffer.keys[:n], buffer.rows[:n]); visitErr != nil {
				return visitErr
			}
		}
		if err != nil {
			return nil
		}
	}
}
