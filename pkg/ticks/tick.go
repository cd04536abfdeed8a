// Package ticks measures time as the packet programs do, and tells them since when the routes of
// packets and the ranges of clients have not changed.
package ticks

import (
	"fmt"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"
)

// Tick is the unit in which the packet programs record when a flow was last used: a power of two of
// the kernel's jiffies, which are free for a program to read and take a shift to divide.
type Tick struct {
	Shift    uint32        // a tick is 1<<Shift jiffies
	Duration time.Duration // from one tick to the next
}

// Measure returns the running kernel's tick that is nearest to a second. The kernel does not
// report the length of a jiffy, which is a build option, but its coarse clock advances by a jiffy
// at a time.
func Measure() (Tick, error) {
	var jiffy unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &jiffy); err != nil {
		return Tick{}, fmt.Errorf("measure the kernel's tick: ask for the resolution of the coarse clock: %w", err)
	}
	return tickOf(time.Duration(jiffy.Nano()))
}

// tickOf returns the tick for jiffies of the given length.
func tickOf(jiffy time.Duration) (Tick, error) {
	if jiffy <= 0 || jiffy > time.Second {
		return Tick{}, fmt.Errorf("measure the kernel's tick: the coarse clock advances by %v, which cannot be a jiffy", jiffy)
	}
	perSecond := uint64(time.Second / jiffy)
	shift := uint32(bits.Len64(perSecond)) - 1
	if over := uint64(1) << (shift + 1); over-perSecond < perSecond-over/2 {
		shift++
	}
	return Tick{Shift: shift, Duration: jiffy << shift}, nil
}
