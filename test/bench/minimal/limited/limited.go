// Package limited runs functions that load programs with the capabilities that the agent has in a
// cluster, even if the process is root: the verifier applies other rules with other capabilities,
// and emits other code.
package limited

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// set is a set of capabilities in the kernel's format.
type set uint64

func setOf(capabilities ...int) set {
	var s set
	for _, c := range capabilities {
		s |= 1 << c
	}
	return s
}

// agent returns the capabilities that the agent declares.
func agent() set { return setOf(unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON) }

// Do runs fn on a thread with exactly CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON in effect, and returns
// its error. Goroutines that fn starts are on other threads, with the process's capabilities. To
// load programs in a network namespace, call Do inside Netns.Do: entering and leaving a namespace
// needs more capabilities.
func Do(fn func() error) error { return with(agent(), fn) }

// Check returns an error unless exactly the agent's capabilities are in effect on the calling thread.
func Check() error {
	have, err := effective()
	if err != nil {
		return err
	}
	if have != agent() {
		return fmt.Errorf("check capabilities: %#x are in effect, want %#x", uint64(have), uint64(agent()))
	}
	return nil
}

// with runs fn with other capabilities in effect. The kernel ignores capabilities that are merely
// permitted until the thread raises them again, which with does afterward.
func with(want set, fn func() error) (err error) {
	runtime.LockOSThread()
	before, err := effective()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	if missing := want &^ before; missing != 0 {
		runtime.UnlockOSThread()
		return fmt.Errorf("limit capabilities: this process lacks %#x; run it as root", uint64(missing))
	}
	if err := setEffective(want); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		if restoreErr := setEffective(before); restoreErr != nil {
			err = errors.Join(err, restoreErr)
			return // the thread stays locked, and ends with its goroutine
		}
		runtime.UnlockOSThread()
	}()
	return fn()
}

func read() (unix.CapUserHeader, [2]unix.CapUserData, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var words [2]unix.CapUserData
	if err := unix.Capget(&header, &words[0]); err != nil {
		return header, words, fmt.Errorf("read capabilities: %w", err)
	}
	return header, words, nil
}

func effective() (set, error) {
	_, words, err := read()
	return set(words[0].Effective) | set(words[1].Effective)<<32, err
}

func setEffective(s set) error {
	header, words, err := read()
	if err != nil {
		return err
	}
	words[0].Effective, words[1].Effective = uint32(s), uint32(s>>32)
	if err := unix.Capset(&header, &words[0]); err != nil {
		return fmt.Errorf("set capabilities to %#x: %w", uint64(s), err)
	}
	return nil
}
