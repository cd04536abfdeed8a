package rig

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// WithoutSignals calls f on a thread that no signal interrupts. Go's runtime sends signals to the threads that it wants to
// stop for a moment, and a test run of a program that gets one is begun anew, after some of its runs.
func WithoutSignals(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return fmt.Errorf("block signals: %w", err)
	}
	defer func() {
		if restoreErr := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); restoreErr != nil {
			err = errors.Join(err, fmt.Errorf("allow signals again: %w", restoreErr))
		}
	}()
	return f()
}
