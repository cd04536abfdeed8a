package devices

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// Dump calls list, and calls it once more if the kernel reports that the objects changed during the
// dump, because such a result mixes two states. If the second dump is interrupted too, Dump returns
// that error.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	all, err := list()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		all, err = list()
	}
	return all, err
}
