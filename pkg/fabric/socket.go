package fabric

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// batch is how many changes are sent at once; their answers fit into a socket's default receive
// buffer.
const batch = 100

// change is a request that the kernel answers with an error code.
type change struct {
	what    string // for the error
	request *nl.NetlinkRequest
	// missing is the kernel's error if there is nothing to remove; 0 for an addition.
	missing unix.Errno
}

// kernel is a netlink socket that makes many changes with one call.
type kernel struct {
	fd       int
	sequence uint32
	sent     uint64 // changes so far
}

func dial() (*kernel, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a socket for routes: %w", err)
	}
	k := &kernel{fd: fd}
	// NETLINK_CAP_ACK leaves the request out of the answer, which is then a few words. The kernel
	// answers before sendto returns, so the timeout only guards against its bugs.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return nil, fmt.Errorf("ask for short answers: %w", closing(k, err))
	}
	patience := unix.NsecToTimeval(int64(10 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience); err != nil {
		return nil, fmt.Errorf("set the timeout for answers: %w", closing(k, err))
	}
	return k, nil
}

func closing(k *kernel, err error) error {
	_ = k.Close()
	return err
}

// Close closes the socket.
func (k *kernel) Close() error { return unix.Close(k.fd) }

// apply makes the changes in order and returns the result of each. It goes on after one that fails.
func (k *kernel) apply(changes []change) ([]error, error) {
	results := make([]error, 0, len(changes))
	for len(changes) > 0 {
		some := changes[:min(batch, len(changes))]
		changes = changes[len(some):]
		answers, err := k.send(some)
		if err != nil {
			return nil, err
		}
		for i, answer := range answers {
			if answer != 0 && answer != some[i].missing {
				results = append(results, fmt.Errorf("%s: %w", some[i].what, answer))
			} else {
				results = append(results, nil)
			}
		}
	}
	return results, nil
}

// send sends changes with one call and reads the answers.
func (k *kernel) send(changes []change) ([]unix.Errno, error) {
	var bytes []byte
	first := k.sequence + 1
	for _, c := range changes {
		k.sequence++
		c.request.Seq = k.sequence
		c.request.Flags |= unix.NLM_F_REQUEST | unix.NLM_F_ACK
		bytes = append(bytes, c.request.Serialize()...)
		for len(bytes)%unix.NLMSG_ALIGNTO != 0 {
			bytes = append(bytes, 0)
		}
	}
	k.sent += uint64(len(changes))
	if err := unix.Sendto(k.fd, bytes, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("send %d route changes: %w", len(changes), err)
	}
	answers := make([]unix.Errno, len(changes))
	buffer := make([]byte, 1<<16)
	for left := len(changes); left > 0; {
		n, _, err := unix.Recvfrom(k.fd, buffer, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the answers to %d route changes: %w", len(changes), err)
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofNlMsghdr+4; left-- {
			length := int(binary.NativeEndian.Uint32(rest))
			at := binary.NativeEndian.Uint32(rest[8:]) - first
			if binary.NativeEndian.Uint16(rest[4:]) != unix.NLMSG_ERROR || length > len(rest) || int64(at) >= int64(len(answers)) {
				return nil, fmt.Errorf("read the answers to %d route changes: unexpected message", len(changes))
			}
			answers[at] = unix.Errno(-int32(binary.NativeEndian.Uint32(rest[unix.SizeofNlMsghdr:])))
			rest = rest[min(len(rest), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
		}
	}
	return answers, nil
}
