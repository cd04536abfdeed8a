package main

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
)

const (
	// flowsPerCPU and flowsAtLeast are what kube-proxy lets the kernel remember.
	flowsPerCPU  = 32768
	flowsAtLeast = 131072
	// flowBytes is what a flow takes, with its part of the table's buckets.
	flowBytes = 512
	// flowsShare is the part of the memory that flows get unless somebody says otherwise.
	flowsShare = 16
)

// flowTable is the memory of flows that a collector looks after, which is another one after it has grown.
type flowTable struct {
	path *datapath.Datapath
	log  *slog.Logger

	mu  sync.Mutex
	now *datapath.Flows
}

func newFlowTable(path *datapath.Datapath, log *slog.Logger) (*flowTable, error) {
	flows, err := path.Flows()
	if err != nil {
		return nil, err
	}
	return &flowTable{path: path, log: log, now: flows}, nil
}

// grow makes room for more rows, and returns where flows are then.
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
		t.log.Warn("closing what flows were in", "error", err)
	}
	t.now = flows
	return flows, nil
}

// Close lets go of the flows.
func (t *flowTable) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now.Close()
}

// mostRows returns to how many rows the memory of flows may grow: a power of two, and two for each flow.
func mostRows(asked string) (int, error) {
	if asked == "" {
		memory, err := totalMemory()
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

func totalMemory() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("find out how much memory there is: %w", err)
	}
	return info.Totalram * uint64(info.Unit), nil
}

// defaultFlows returns for how many flows a node may have room: a power of two, and never fewer than it starts with.
func defaultFlows(cpus int, memory uint64) int {
	want := max(flowsAtLeast, flowsPerCPU*cpus)
	most := int(memory / flowsShare / flowBytes)
	if want = 1 << bits.Len(uint(want-1)); want > most {
		want = 1 << (bits.Len(uint(most)) - 1)
	}
	return max(want, flowsAtLeast/2)
}
