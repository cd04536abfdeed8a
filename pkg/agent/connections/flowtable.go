package connections

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/flowtable"
)

const (
	// flowsPerCPU and flowsAtLeast are kube-proxy's defaults for the kernel's connection tracking.
	flowsPerCPU  = 32768
	flowsAtLeast = 131072
	// FlowBytes is the memory of a flow, including its part of the table's buckets.
	FlowBytes = 512
	// flowsShare is the default part of the memory for flows.
	flowsShare = 16
)

// flowTable is the table of flows that a collector cleans. It is replaced when it grows.
type flowTable struct {
	path *datapath.Datapath
	log  *slog.Logger

	mu  sync.Mutex
	now *flowtable.Flows
}

func newFlowTable(path *datapath.Datapath, log *slog.Logger) (*flowTable, error) {
	flows, err := path.Flows()
	if err != nil {
		return nil, err
	}
	return &flowTable{path: path, log: log, now: flows}, nil
}

// grow makes room for more rows, and returns the new table.
func (t *flowTable) grow(rows int) (conntrack.Flows, error) {
	if err := t.path.GrowFlows(uint32(rows)); err != nil {
		return nil, err
	}
	flows, err := t.path.Flows()
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.now.Close(); err != nil {
		t.log.Warn("cannot close the old table of flows", "error", err)
	}
	t.now = flows
	return flows, nil
}

// Close releases the table.
func (t *flowTable) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now.Close()
}

// MostRows returns how many rows the table of flows may grow to: a power of two, and two rows for
// each flow.
func MostRows(asked string) (int, error) {
	if asked == "" {
		memory, err := TotalMemory()
		if err != nil {
			return 0, fmt.Errorf("choose conntrack-max: %w", err)
		}
		return 2 * defaultFlows(runtime.NumCPU(), memory), nil
	}
	flows, err := strconv.ParseUint(asked, 10, 32)
	if err != nil || flows == 0 {
		return 0, errors.New("option conntrack-max: not a number of flows")
	}
	return 2 << bits.Len64(flows-1), nil
}

// TotalMemory returns the size of this node's memory.
func TotalMemory() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("read the size of the memory: %w", err)
	}
	return info.Totalram * uint64(info.Unit), nil
}

// defaultFlows returns how many flows a node may have by default: a power of two, and at least what
// the table starts with.
func defaultFlows(cpus int, memory uint64) int {
	want := max(flowsAtLeast, flowsPerCPU*cpus)
	most := int(memory / flowsShare / FlowBytes)
	if want = 1 << bits.Len(uint(want-1)); want > most {
		want = 1 << (bits.Len(uint(most)) - 1)
	}
	return max(want, flowsAtLeast/2)
}
