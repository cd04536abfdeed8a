// Package listing lists what the kernel has.
package listing

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// Of calls a listing a second time if things changed while it was made: the kernel says so instead of answering for both
// times. It may do so again, and then the error is the caller's.
func Of[T any](list func() ([]T, error)) ([]T, error) {
	all, err := list()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		all, err = list()
	}
	return all, err
}
