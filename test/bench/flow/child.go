package flow

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

const (
	serverName = "flow-server"
	clientName = "flow-client"
)

// Funcs returns the functions that jobs run as child processes. A program that runs jobs passes
// them to rig.Funcs.Dispatch or rig.Main, together with its own if it has any.
func Funcs() rig.Funcs {
	return rig.Funcs{serverName: asChild(serve), clientName: asChild(runOrder)}
}

// asChild converts a function that executes an order and reports on standard output to a function
// of the rig.
func asChild(work func(order) error) func([]string) int {
	return func(args []string) int {
		var o order
		err := errors.New("want one argument, the order")
		if len(args) == 1 {
			err = json.Unmarshal([]byte(args[0]), &o)
		}
		if err == nil {
			quiet(o.Parallel)
			err = work(o)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// quiet keeps Go out of the way of the loops. The loops' threads cannot be stopped, so nothing may
// stop the world: the garbage collector is off, and each loop has its own scheduler slot, with some
// left for the rest.
func quiet(loops int) {
	debug.SetGCPercent(-1)
	runtime.GOMAXPROCS(loops + 2)
}

// cpuTime returns the CPU time of the process so far.
func cpuTime() (time.Duration, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("read CPU time: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
