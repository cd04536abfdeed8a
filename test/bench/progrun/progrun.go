// Package progrun times a program of tc or XDP on packets of one to a million flows.
//
// BPF_PROG_TEST_RUN repeats a program in the kernel, but on one packet, which the program itself has changed. A system
// call for every packet would cost a hundred times what a program does, and its noise would be all there is to see; live
// frames differ, but only XDP has them, and they bring the cost of queues along. So a small program runs first, writes
// the packet of the next flow over the last one, and jumps to the program under test with a tail call, all in one system
// call of many runs. What the small program costs is measured in the same way with an empty program after it, in turns
// with the other, and subtracted.
//
// The time is the CPU time of the thread over a whole call. The kernel's own figure is in whole nanoseconds, which is too
// coarse for programs that take ten, and the clock on the wall also runs while others have the CPU.
//
// There is one packet for all runs of a call. What a program puts in front of it or into it is taken off by the small program,
// which is counted as what the program costs that made it necessary. A program that makes a packet shorter cannot be measured.
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

// Config is what to measure.
type Config struct {
	Program *ebpf.Program // of tc or XDP
	Packets frames.Shape
	// Runs is how many there are in a call; zero = 100,000, or ten times the flows. A call itself costs as much as some
	// thousand runs of XDP, which is subtracted too, but better is small.
	Runs  int
	Calls int // of either program; zero = 15
	// Check is given what the program returned for the last packet of every call, and the packet. A program that only
	// lets packets through is fast. Nil = whatever it does is right.
	Check func(verdict uint32, packet []byte) error
}

// Stat is nanoseconds of a run: the least of all calls, and the one in their middle.
type Stat struct{ Min, Median float64 }

// Result is what running a program costs.
type Result struct {
	Gross Stat // with the program that writes the packet
	Empty Stat // that one alone
	Net   Stat // what is left for the program; where it costs nothing, chance can make it less than zero
	Runs  uint64
}

// Measure measures a program. Call it where the program may be run; it loads its own with the agent's capabilities.
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
	// The first call of each is to warm up, and runs every flow at least once if it can.
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

// runner is a program that writes packets, and jumps to another.
type runner struct {
	collection *ebpf.Collection
	first      *ebpf.Program
	packet     []byte
	out        []byte
}

// load loads a runner for a program, or for an empty one of the same type. Kernels since 6.18 let a program jump only to
// one that was loaded to be attached in the same way, and do not tell which way that was, so it is tried.
func load(c Config, program *ebpf.Program) (*runner, error) {
	names, ways := [2]string{"xdp_run", "xdp_empty"}, []ebpf.AttachType{ebpf.AttachNone, ebpf.AttachXDP}
	switch c.Program.Type() {
	case ebpf.XDP:
	case ebpf.SchedCLS:
		names = [2]string{"tc_run", "tc_empty"}
		ways = []ebpf.AttachType{ebpf.AttachNone, ebpf.AttachTCXIngress, ebpf.AttachTCXEgress}
	default:
		return nil, fmt.Errorf("it is of type %s, which has no packets to change", c.Program.Type())
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

// loadFor loads the program of the first name, and makes it jump to a program, or to that of the second name.
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

// call runs the programs and returns the nanoseconds of a run.
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
		return 0, fmt.Errorf("in %d of %d runs there was no packet left, or no program", broken, runs)
	}
	if check != nil {
		if err := check(verdict, options.DataOut); err != nil {
			return 0, fmt.Errorf("check what it did: %w", err)
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
