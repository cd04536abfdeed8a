package explain

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Namespace is a network namespace, identified by the cookie that the programs use, and its
// addresses.
type Namespace struct {
	Cookie uint64
	Addrs  []netip.Addr // without loopback
}

// OwnNamespace returns the network namespace of the caller.
func OwnNamespace() (Namespace, error) {
	var n Namespace
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		socket, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return n, fmt.Errorf("identify the network namespace: open socket: %w", err)
	}
	defer unix.Close(socket)
	if n.Cookie, err = unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		return n, fmt.Errorf("identify the network namespace: %w", err)
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		return n, fmt.Errorf("list the addresses of the network namespace: %w", err)
	}
	for _, a := range list {
		prefix, err := netip.ParsePrefix(a.String())
		if addr := prefix.Addr().Unmap().WithZone(""); err == nil && !addr.IsLoopback() {
			n.Addrs = append(n.Addrs, addr)
		}
	}
	return n, nil
}
