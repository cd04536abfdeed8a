package round

import (
	"fmt"
	"io/fs"
	"os"

	"fairlead.io/fairlead/test/bench/machine"
)

// ProcMeter reads CPU times from /proc: those of a process and its descendants, and those of all
// softirqs of the machine, which are not attributed to a process.
type ProcMeter struct {
	root fs.FS
	pid  int
}

// NewProcMeter returns a meter of this process and its descendants.
func NewProcMeter() *ProcMeter { return &ProcMeter{root: os.DirFS("/"), pid: os.Getpid()} }

// Read returns the times so far.
func (m *ProcMeter) Read() (Spent, error) {
	processes, err := machine.ReadTree(m.root, m.pid)
	if err != nil {
		return Spent{}, fmt.Errorf("read the meter: %w", err)
	}
	times, err := machine.ReadTimes(m.root)
	if err != nil {
		return Spent{}, fmt.Errorf("read the meter: %w", err)
	}
	return Spent{Processes: processes, Softirq: times.Softirq}, nil
}
