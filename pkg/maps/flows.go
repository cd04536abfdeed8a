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

// The rows of ct and ct_pending, and the arguments of the programs that delete flows. All are
// comparable.
type (
	Flow       = bpf.MapsFlow
	FlowRow    = bpf.MapsCtEntry
	Doomed     = bpf.MapsDoomed
	CollectRun = bpf.MapsCollectRun
)

// FlowReply marks rows of the direction back to the client, and FlowHasRanges those of flows to a load
// balancer's address.
const (
	FlowReply     = uint8(bpf.MapsFlowFlagFLOW_REPLY)
	FlowHasRanges = uint8(bpf.MapsFlowFlagFLOW_HAS_RANGES)
)

// FlowKind is who began a flow, and how its packets reach the other end; see enum flow_kind.
type FlowKind uint8

// The kinds. Those of direct server return are FlowDSR and the mode.
const (
	FlowRemote      = FlowKind(bpf.MapsFlowKindFLOW_REMOTE)
	FlowLocal       = FlowKind(bpf.MapsFlowKindFLOW_LOCAL)
	FlowMasqueraded = FlowKind(bpf.MapsFlowKindFLOW_MASQUERADED)
	FlowPod         = FlowKind(bpf.MapsFlowKindFLOW_POD)
	FlowPodSelf     = FlowKind(bpf.MapsFlowKindFLOW_POD_SELF)
	FlowHost        = FlowKind(bpf.MapsFlowKindFLOW_HOST)
	FlowHostLocal   = FlowKind(bpf.MapsFlowKindFLOW_HOST_LOCAL)
	FlowDSR         = FlowKind(bpf.MapsFlowKindFLOW_DSR)
)

// FlowKindOf returns the kind of flow that the field of a row says besides its flags.
func FlowKindOf(field uint8) FlowKind { return FlowKind(field & uint8(bpf.MapsFlowFlagFLOW_KIND)) }

// IsDSR reports whether a backend on another node replies to the client directly.
func (k FlowKind) IsDSR() bool { return k >= FlowDSR }

// IsFromOutside reports whether a client outside began the flow.
func (k FlowKind) IsFromOutside() bool { return k == FlowRemote || k == FlowLocal || k.IsDSR() }

func (k FlowKind) String() string {
	switch k {
	case FlowRemote:
		return "remote"
	case FlowLocal:
		return "local"
	case FlowMasqueraded:
		return "masqueraded"
	case FlowPod:
		return "pod"
	case FlowPodSelf:
		return "pod-self"
	case FlowHost:
		return "host"
	case FlowHostLocal:
		return "host-local"
	case FlowDSR + FlowKind(bpf.MapsDsrModeDSR_IPIP):
		return "dsr-ipip"
	case FlowDSR + FlowKind(bpf.MapsDsrModeDSR_GENEVE):
		return "dsr-geneve"
	case FlowDSR + FlowKind(bpf.MapsDsrModeDSR_OPT):
		return "dsr-opt"
	}
	return fmt.Sprintf("unknown (%d)", uint8(k))
}

// The states of a row.
const (
	FlowNew      = uint8(bpf.MapsCtStateCT_NEW)
	FlowAnswered = uint8(bpf.MapsCtStateCT_ANSWERED)
	FlowOpen     = uint8(bpf.MapsCtStateCT_OPEN)
	FlowClosing  = uint8(bpf.MapsCtStateCT_CLOSING)
	FlowReset    = uint8(bpf.MapsCtStateCT_RESET)
)

// The classes of flow, which have timeouts of their own, and their number.
const (
	ClassTCP  = int(bpf.MapsCtClassCT_CLASS_TCP)
	ClassUDP  = int(bpf.MapsCtClassCT_CLASS_UDP)
	ClassSCTP = int(bpf.MapsCtClassCT_CLASS_SCTP)
	Classes   = int(bpf.MapsCtClassCT_CLASSES)
)

// The phases of a flow, and their number.
const (
	PhaseOpen       = int(bpf.MapsCtPhaseCT_PHASE_OPEN)
	PhaseHalfClosed = int(bpf.MapsCtPhaseCT_PHASE_HALF_CLOSED)
	PhaseClosed     = int(bpf.MapsCtPhaseCT_PHASE_CLOSED)
	PhaseReset      = int(bpf.MapsCtPhaseCT_PHASE_RESET)
	PhaseHalfOpen   = int(bpf.MapsCtPhaseCT_PHASE_HALF_OPEN)
	Phases          = int(bpf.MapsCtPhaseCT_PHASES)
)

// Why a flow is to be deleted.
const (
	DoomIdle    = uint32(bpf.MapsDoomDOOM_IDLE)
	DoomStale   = uint32(bpf.MapsDoomDOOM_STALE)
	DoomFlushed = uint32(bpf.MapsDoomDOOM_FLUSHED)
)

// The outcome of a Doomed.
const (
	DoomSpared  = uint32(bpf.MapsDoomOutcomeDOOM_SPARED)
	DoomDeleted = uint32(bpf.MapsDoomOutcomeDOOM_DELETED)
)

// FlowLimits is the number of ticks a flow may be idle, by class and phase.
type FlowLimits = [Classes][Phases]uint32

// BackOf returns the key of the row of the other direction.
func BackOf(flow Flow, row *FlowRow) Flow {
	return Flow{Saddr: row.Daddr, Daddr: row.Saddr, Sport: row.Dport, Dport: row.Sport, Proto: flow.Proto}
}

// FlowSource returns the source of a flow's packets before they are rewritten.
func FlowSource(flow Flow) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(flow.Saddr), PortOf(flow.Sport))
}

// FlowDestination returns the destination of a flow's packets before they are rewritten.
func FlowDestination(flow Flow) netip.AddrPort {
	return netip.AddrPortFrom(NetipOf(flow.Daddr), PortOf(flow.Dport))
}

// OpenFlows opens the maps of established and half-open flows that are pinned in dir, as Open does.
// The caller must close them.
func OpenFlows(dir string, readOnly bool) (open, half *ebpf.Map, err error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, nil, fmt.Errorf("read map specs: %w", err)
	}
	if open, err = openPin(filepath.Join(dir, "ct"), specs.Maps["ct"], true, readOnly); err != nil {
		return nil, nil, err
	}
	if half, err = openPin(filepath.Join(dir, "ct_pending"), specs.Maps["ct_pending"], true, readOnly); err != nil {
		return nil, nil, errors.Join(err, open.Close())
	}
	return open, half, nil
}

// GrowthDir is a directory beside that of the maps. It exists, and holds the larger map, while the
// map of established flows grows.
const GrowthDir = "table"

// OpenGrowing opens, read-only, the larger map to which flows move while the map of established
// flows pinned in dir grows. It returns nil if that map isn't growing. The caller must close it.
// Open this map before those of OpenFlows: in the end it replaces one of them.
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

// The stages in the growth of the map of established flows; see bpf/lib/flow.h.
const (
	TableOld  = uint32(bpf.MapsTableStageTABLE_OLD)
	TableBoth = uint32(bpf.MapsTableStageTABLE_BOTH)
	TableNew  = uint32(bpf.MapsTableStageTABLE_NEW)
)

// CopyItem is a row to carry over into a larger map.
type CopyItem = bpf.MapsCarried

// The outcomes of a CopyItem.
const (
	CopyFailed = uint32(bpf.MapsCarryOutcomeCARRY_FAILED)
	CopyTorn   = uint32(bpf.MapsCarryOutcomeCARRY_TORN)
	CopyDone   = uint32(bpf.MapsCarryOutcomeCARRY_DONE)
)

// NewFlowMap creates a separate map of established flows with room for at least this many rows. The
// caller must close it.
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

// OpenFlowMap opens a map of established flows of any size, pinned at path. The caller must close
// it.
func OpenFlowMap(path string) (*ebpf.Map, error) {
	specs, err := bpf.LoadMaps()
	if err != nil {
		return nil, fmt.Errorf("read map specs: %w", err)
	}
	return openPin(path, specs.Maps["ct"], true, false)
}

// PinFlowMap pins a map of flows at path.
func PinFlowMap(m *ebpf.Map, path string) error { return pin(m, path) }

// ReplaceFlows installs with as the map of established flows, takes ownership of it, and closes the
// previous one.
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

// LookupFlow returns the row for key and whether it exists.
func LookupFlow(m *ebpf.Map, key Flow) (row FlowRow, ok bool, err error) {
	if err = m.Lookup(&key, &row); errors.Is(err, ebpf.ErrKeyNotExist) {
		return row, false, nil
	}
	if err != nil {
		return row, false, fmt.Errorf("look up flow of %s: %w", FlowSource(key), err)
	}
	return row, true, nil
}

// flowBatch is how many rows one system call transfers: enough that the cost of the call doesn't
// matter, and few enough to stay in a CPU's cache.
const flowBatch = 2048

// FlowBuffer is memory that successive calls of EachFlow can share.
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

// EachFlow calls visit with all rows of a map of flows, in batches and in no order. visit must not
// retain the slices. Rows written meanwhile may be missed or come twice; visit may delete rows. An
// error of visit ends the iteration.
func EachFlow(m *ebpf.Map, buffer *FlowBuffer, visit func([]Flow, []FlowRow) error) error {
	return eachRow(m, &buffer.rowBuffer, visit)
}

// eachRow is EachFlow for any hash map.
func eachRow[K, V any](m *ebpf.Map, buffer *rowBuffer[K, V], visit func([]K, []V) error) error {
	var cursor ebpf.MapBatchCursor
	most := int(m.MaxEntries())
	buffer.grow(min(flowBatch, most))
	for {
		n, err := m.BatchLookup(&cursor, buffer.keys, buffer.rows, nil)
		switch {
		case errors.Is(err, syscall.ENOSPC) && len(buffer.keys) < most: // too small for one bucket
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
