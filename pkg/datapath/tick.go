package datapath

import (
	"fmt"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"
)

// Tick is the unit in which the programs of packets tell when a flow was last used: a power of two of the kernel's
// jiffies, which cost a program nothing to read and a shift to divide.
type Tick struct {
	Shift    uint32        // a tick is 1<<Shift jiffies
	Duration time.Duration // from one tick to the next
}

// MeasureTick returns the tick of the running kernel that is nearest to a second. How long a jiffy is was chosen when the
// kernel was built and is nowhere to be read, but it is how far the coarse clock advances at a time.
func MeasureTick() (Tick, error) {
	var jiffy unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &jiffy); err != nil {
		return Tick{}, fmt.Errorf("measure the kernel's tick: ask for the resolution of the coarse clock: %w", err)
	}
	return tickOf(time.Duration(jiffy.Nano()))
}

// tickOf returns the tick for jiffies of a length.
func tickOf(jiffy time.Duration) (Tick, error) {
	if jiffy <= 0 || jiffy > time.Second {
		return Tick{}, fmt.Errorf("measure the kernel's tick: the coarse clock advances by %v, which no kernel's jiffies do", jiffy)
	}
	perSecond := uint64(time.Second / jiffy)
	shift := uint32(bits.Len64(perSecond)) - 1
	if over := uint64(1) << (shift + 1); over-perSecond < perSecond-over/2 {
		shift++
	}
	return Tick{Shift: shift, Duration: jiffy << shift}, nil
}
