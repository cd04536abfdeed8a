package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU time in /proc: USER_HZ is 100 on every platform of Go.
const tick = 10 * time.Millisecond

// Load is how busy a machine is at one moment.
type Load struct {
	One      float64 `json:"one"` // runnable tasks, averaged over a minute
	Five     float64 `json:"five"`
	Fifteen  float64 `json:"fifteen"`
	Runnable int     `json:"runnable"` // at this instant, including this process
	Times    Times   `json:"times"`
}

// Times is the CPU time since the machine started, in nanoseconds over all CPUs.
type Times struct {
	Busy    time.Duration `json:"busy"`    // everything but idle time and waiting, including softirqs
	Softirq time.Duration `json:"softirq"` // mostly packets, of any process
	Steal   time.Duration `json:"steal"`   // wanted by this machine, but given to another one
	Idle    time.Duration `json:"idle"`
}

// Since returns the time spent since an earlier moment.
func (t Times) Since(earlier Times) Times {
	return Times{
		Busy: t.Busy - earlier.Busy, Softirq: t.Softirq - earlier.Softirq,
		Steal: t.Steal - earlier.Steal, Idle: t.Idle - earlier.Idle,
	}
}

// Stolen returns the fraction of the time wanted by this machine that went to other machines,
// between 0 and 1.
func (t Times) Stolen() float64 {
	wanted := t.Busy + t.Steal
	if wanted <= 0 {
		return 0
	}
	return float64(t.Steal) / float64(wanted)
}

// ReadLoad reads the load of the machine.
func ReadLoad(root fs.FS) (Load, error) {
	text, err := fs.ReadFile(root, "proc/loadavg")
	if err != nil {
		return Load{}, fmt.Errorf("read the load: %w", err)
	}
	var l Load
	var all int
	if _, err := fmt.Sscanf(string(text), "%f %f %f %d/%d", &l.One, &l.Five, &l.Fifteen, &l.Runnable, &all); err != nil {
		return Load{}, fmt.Errorf("read the load from %q: %w", text, err)
	}
	l.Times, err = ReadTimes(root)
	return l, err
}

// ReadTimes reads the CPU times of all CPUs.
func ReadTimes(root fs.FS) (Times, error) {
	text, err := fs.ReadFile(root, "proc/stat")
	if err != nil {
		return Times{}, fmt.Errorf("read the times of the CPUs: %w", err)
	}
	row, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(row)
	// user nice system idle iowait irq softirq steal, then two that are included in the first two
	if len(fields) < 9 || fields[0] != "cpu" {
		return Times{}, fmt.Errorf("read the times of the CPUs: %q has no eight of them", row)
	}
	var t [8]time.Duration
	for i := range t {
		n, err := strconv.ParseInt(fields[i+1], 10, 64)
		if err != nil {
			return Times{}, fmt.Errorf("read the times of the CPUs: %w", err)
		}
		t[i] = time.Duration(n) * tick
	}
	return Times{Busy: t[0] + t[1] + t[2] + t[5] + t[6], Softirq: t[6], Steal: t[7], Idle: t[3] + t[4]}, nil
}

// ReadTree reads the CPU time of a process and its descendants, including descendants that have
// ended and been waited for. Its resolution is the kernel's tick of ten milliseconds for each
// process.
func ReadTree(root fs.FS, pid int) (time.Duration, error) {
	entries, err := fs.ReadDir(root, "proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	spent := map[int]time.Duration{}
	for _, entry := range entries {
		id, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, err := fs.ReadFile(root, "proc/"+entry.Name()+"/stat")
		if err != nil {
			continue // it has ended meanwhile
		}
		parent, took, err := parseStat(string(text))
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of process %d: %w", id, err)
		}
		children[parent] = append(children[parent], id)
		spent[id] = took
	}
	if _, found := spent[pid]; !found {
		return 0, fmt.Errorf("read the CPU time of process %d: %w", pid, fs.ErrNotExist)
	}
	return sum(pid, children, spent), nil
}

func sum(pid int, children map[int][]int, spent map[int]time.Duration) time.Duration {
	total := spent[pid]
	for _, child := range children[pid] {
		total += sum(child, children, spent)
	}
	return total
}

// parseStat extracts the parent and the CPU time from a process's stat. The second field is a name
// that may contain anything.
func parseStat(text string) (parent int, spent time.Duration, err error) {
	at := strings.LastIndexByte(text, ')')
	if at < 0 {
		return 0, 0, errors.New("its stat has no name")
	}
	fields := strings.Fields(text[at+1:])
	const ppid, utime, cstime = 1, 11, 14 // counted from the field after the name
	if len(fields) <= cstime {
		return 0, 0, fmt.Errorf("its stat has only %d fields after the name", len(fields))
	}
	if parent, err = strconv.Atoi(fields[ppid]); err != nil {
		return 0, 0, err
	}
	for _, field := range fields[utime : cstime+1] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, 0, err
		}
		spent += time.Duration(n) * tick
	}
	return parent, spent, nil
}
