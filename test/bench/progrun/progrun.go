// Package progrun times a tc or XDP program on packets of one to a million flows.
//
// BPF_PROG_TEST_RUN repeats a program in the kernel, but on one packet, which the program itself has
// changed. A system call per packet would cost a hundred times what a program does, and its noise
// would hide the program; live frames avoid that, but only XDP has them, and they add the cost of
// queues. So a small program runs first, writes the packet of the next flow over the last one, and
// jumps to the program under test with a tail call, all in one system call of many runs. The cost of
// the small program is measured in the same way with an empty program after it, in turns with the
// other, and subtracted.
//
// The time is the CPU time of the thread over a whole call. The kernel's own figure is in whole
// nanoseconds, which is too coarse for programs that take ten, and wall time also includes the time
// when other processes have the CPU.
//
// All runs of a call share one packet. The small program removes whatever the program under test
// added to it, and the cost of the removal counts as that of the program. A program that makes
// packets shorter cannot be measured.
package progrun

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/bench/minimal/limited"
	"fairlead.io/fairlead/test/rig"
)

// Config says what to measure.
type Config struct {
	Program *ebpf.Program // a tc or XDP program
	Packets frames.Shape
	// Runs is the number of runs in a call; zero = 100,000, or ten times the flows. A call itself
	// costs as much as some thousand XDP runs, which is subtracted too, but should be small.
	Runs  int
	Calls int // calls of either program; zero = 15
	// Check gets the program's return value for the last packet of every call, and the packet: a
	// program that merely passes packets is fast. Nil = anything is right.
	Check func(verdict uint32, packet []byte) error
}

// Stat is the nanoseconds per run: the minimum and the median over all calls.
type Stat struct{ Min, Median float64 }

// Result is the cost of running a program.
type Result struct {
	Gross Stat // including the program that writes the packet
	Empty Stat // of that program alone
	Net   Stat // of the program itself; can be slightly negative by chance if it costs nothing
	Runs  uint64
}

// Measure measures a program. Call it where the program may be run; it loads its own programs with
// the agent's capabilities.
func Measure(c Config) (Result, error) {
	if c.Runs == 0 {
		c.Runs = max(100_000, 10*c.Packets.Flows)
	}
	if c.Calls == 0 {
		c.Calls = 15
	}
	if c.Program == nil || c.Runs < 1 || c.Calls < 1 {
		return Result{}, fmt.Errorf("measure program: %v with %d calls of %d runs cannot be measured", c.Program, c.Calls, c.Runs)
	}
	tested, err := load(c, c.Program)
	if err != nil {
		return Result{}, fmt.Errorf("measure %s: %w", c.Program, err)
	}
	defer tested.close()
	empty, err := load(c, nil)
	if err != nil {
		return Result{}, fmt.Errorf("measure nothing: %w", err)
	}
	defer empty.close()
	var gross, nothing []float64
	// The first call of each program warms up, and if possible runs every flow at least once.
	for range c.Calls + 1 {
		a, err := empty.call(c.Runs, nil)
		if err != nil {
			return Result{}, fmt.Errorf("measure nothing: %w", err)
		}
		b, err := tested.call(c.Runs, c.Check)
		if err != nil {
			return Result{}, fmt.Errorf("measure %s: %w", c.Program, err)
		}
		nothing, gross = append(nothing, a), append(gross, b)
	}
	r := Result{Gross: statOf(gross[1:]), Empty: statOf(nothing[1:]), Runs: uint64(c.Calls) * uint64(c.Runs)}
	r.Net = Stat{Min: r.Gross.Min - r.Empty.Min, Median: r.Gross.Median - r.Empty.Median}
	return r, nil
}

func statOf(values []float64) Stat {
	slices.Sort(values)
	return Stat{Min: values[0], Median: values[len(values)/2]}
}

// runner is a program that writes packets and jumps to another program.
type runner struct {
	collection *ebpf.Collection
	first      *ebpf.Program
	packet     []byte
	out        []byte
}

// load loads a runner for a program, or for an empty one of the same type. Since Linux 6.18 a
// program can only jump to one that was loaded for the same attach type. The kernel does not reveal
// that type, so load tries all of them.
func load(c Config, program *ebpf.Program) (*runner, error) {
	names, ways := [2]string{"xdp_run", "xdp_empty"}, []ebpf.AttachType{ebpf.AttachNone, ebpf.AttachXDP}
	switch c.Program.Type() {
	case ebpf.XDP:
	case ebpf.SchedCLS:
		names = [2]string{"tc_run", "tc_empty"}
		ways = []ebpf.AttachType{ebpf.AttachNone, ebpf.AttachTCXIngress, ebpf.AttachTCXEgress}
	default:
		return nil, fmt.Errorf("programs of type %s have no packets to change", c.Program.Type())
	}
	var err error
	for _, way := range ways {
		var r *runner
		if r, err = loadFor(c, program, names, way); err == nil {
			return r, nil
		}
		if !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	return nil, err
}

// loadFor loads the program of the first name, and makes it jump to the given program, or to that
// of the second name.
func loadFor(c Config, program *ebpf.Program, names [2]string, way ebpf.AttachType) (*runner, error) {
	constant, packet, err := c.Packets.Constant()
	if err != nil {
		return nil, err
	}
	spec, err := loadProgrun()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	for name, p := range spec.Programs {
		if name != names[0] && name != names[1] {
			delete(spec.Programs, name)
		}
		p.AttachType = way
	}
	if err := errors.Join(spec.Variables["shape"].Set(constant), spec.Variables["frame_len"].Set(uint32(len(packet)))); err != nil {
		return nil, fmt.Errorf("set shape: %w", err)
	}
	r := &runner{packet: packet, out: make([]byte, len(packet)+256)}
	err = limited.Do(func() error {
		if r.collection, err = ebpf.NewCollection(spec); err != nil {
			return fmt.Errorf("load programs: %w", err)
		}
		if program == nil {
			program = r.collection.Programs[names[1]]
		}
		return r.collection.Maps["under_test"].Put(uint32(0), program)
	})
	if err != nil {
		r.close()
		return nil, err
	}
	r.first = r.collection.Programs[names[0]]
	return r, nil
}

func (r *runner) close() {
	if r.collection != nil {
		r.collection.Close()
	}
}

// call runs the programs and returns the nanoseconds per run.
func (r *runner) call(runs int, check func(uint32, []byte) error) (float64, error) {
	options := ebpf.RunOptions{Data: r.packet, DataOut: r.out, Repeat: uint32(runs)}
	var took time.Duration
	var verdict uint32
	err := rig.WithoutSignals(func() error {
		before, err := threadTime()
		if err != nil {
			return err
		}
		if verdict, err = r.first.Run(&options); err != nil {
			return err
		}
		after, err := threadTime()
		took = after - before
		return err
	})
	if err != nil {
		return 0, err
	}
	var broken uint64
	if err := r.collection.Variables["broken"].Get(&broken); err != nil {
		return 0, fmt.Errorf("read count: %w", err)
	}
	if broken > 0 {
		return 0, fmt.Errorf("%d of %d runs had no packet to write to, or no program to jump to", broken, runs)
	}
	if check != nil {
		if err := check(verdict, options.DataOut); err != nil {
			return 0, fmt.Errorf("check the result of the program: %w", err)
		}
	}
	return float64(took) / float64(runs), nil
}

func threadTime() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return time.Duration(now.Nano()), nil
}
