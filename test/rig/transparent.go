package rig

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// ListenTransparent listens on an address and port, and also accepts connections addressed to
// others that are handed to it: the socket of such a connection answers from the address it was
// sent to.
func ListenTransparent(at netip.AddrPort) (net.Listener, error) {
	level, option := unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	if at.Addr().Is4() {
		level, option = unix.SOL_IP, unix.IP_TRANSPARENT
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, 1) })
		return errors.Join(err, failed)
	}}
	return config.Listen(context.Background(), "tcp", at.String())
}
