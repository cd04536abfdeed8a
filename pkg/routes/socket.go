package routes

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// roomAsked is the receive buffer. Going beyond the limit for ordinary sockets takes
	// CAP_NET_ADMIN.
	roomAsked = 4 << 20
	// largest is longer than any message of the kernel.
	largest = 1 << 16
)

// groups returns the multicast groups to subscribe to.
func groups() []uint {
	return []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_NEXTHOP,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF, // settings such as forwarding
	}
}

// socket receives the changes. A single socket for all groups keeps them in the order in which they
// happened.
type socket struct {
	*nl.NetlinkSocket
	buffer []byte
}

func subscribe() (*socket, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, groups()...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to route changes: %w", err)
	}
	if err := s.SetReceiveBufferSize(roomAsked, true); err != nil {
		if err = s.SetReceiveBufferSize(roomAsked, false); err != nil {
			s.Close()
			return nil, fmt.Errorf("subscribe to route changes: set the receive buffer: %w", err)
		}
	}
	return &socket{s, make([]byte, largest)}, nil
}

// receive returns the next messages, in memory that the next call reuses, or EAGAIN if there are
// none. Unlike the library, which may give up once its time is over, it always asks the kernel:
// renewing the lease takes certainty.
func (s *socket) receive() ([]syscall.NetlinkMessage, error) {
	for {
		n, from, err := unix.Recvfrom(s.GetFd(), s.buffer, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != nl.PidKernel {
			continue
		}
		if n > len(s.buffer) {
			return nil, fmt.Errorf("message of %d bytes is too long", n)
		}
		return syscall.ParseNetlinkMessage(s.buffer[:n])
	}
}

// wait returns when there is a message, or after a time.
func (s *socket) wait(most time.Duration) error {
	poll := []unix.PollFd{{Fd: int32(s.GetFd()), Events: unix.POLLIN}}
	if _, err := unix.Poll(poll, int(most/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for route changes: %w", err)
	}
	return nil
}
