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
	// roomAsked is how much the kernel may keep for the socket until it is read. More than it gives to anybody is what
	// CAP_NET_ADMIN is for.
	roomAsked = 4 << 20
	// largest is more than a message of the kernel has.
	largest = 1 << 16
)

// groups are what is subscribed to.
func groups() []uint {
	return []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_NEXTHOP,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF, // forwarding
	}
}

// socket brings the changes. They come in the order in which they happened, since it is one for all.
type socket struct {
	*nl.NetlinkSocket
	buffer []byte
}

func subscribe() (*socket, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE, groups()...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes of routes: %w", err)
	}
	if err := s.SetReceiveBufferSize(roomAsked, true); err != nil {
		if err = s.SetReceiveBufferSize(roomAsked, false); err != nil {
			s.Close()
			return nil, fmt.Errorf("subscribe to changes of routes: make room for them: %w", err)
		}
	}
	return &socket{s, make([]byte, largest)}, nil
}

// receive returns the messages that come next, in memory that the next call takes; EAGAIN when there are none. It asks
// the kernel in any case, where the library gives up when the time is over: who vouches has to know.
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
			return nil, fmt.Errorf("a message of %d bytes", n)
		}
		return syscall.ParseNetlinkMessage(s.buffer[:n])
	}
}

// wait returns when there is something, or after a time.
func (s *socket) wait(most time.Duration) error {
	poll := []unix.PollFd{{Fd: int32(s.GetFd()), Events: unix.POLLIN}}
	if _, err := unix.Poll(poll, int(most/time.Millisecond)); err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for changes of routes: %w", err)
	}
	return nil
}
