// Package sockets finds the sockets whose backend is gone for good and aborts them: their owners
// would otherwise wait for answers that cannot come. It lists and aborts sockets through sock_diag,
// which the agent's capabilities allow, in every network namespace for which it has a sock_diag
// socket.
package sockets

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/model"
)

const (
	bufferSize = 64 << 10
	// patience is how long to wait for an answer. The kernel writes its answer within the request,
	// so this limit matters only if the kernel or this code has a bug.
	patience = 10 // seconds
)

// The TCP states in which a process may be waiting on the socket, and the one state of a connected
// UDP socket. Other states are never requested, so unconnected sockets are not listed.
const (
	established = 1 << 1
	streams     = established | 1<<2 | 1<<4 | 1<<5 | 1<<8 // and SYN_SENT, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT
)

// ErrUnsupported is wrapped by the error that Check returns if the kernel lacks the feature.
var ErrUnsupported = errors.New("not supported by this kernel")

// Diag is a sock_diag socket, a view of one network namespace. It is not safe for concurrent use.
type Diag struct {
	fd     int
	seq    uint32
	buffer []byte
}

// Open returns a view of the calling thread's network namespace. The caller must close it.
func Open() (*Diag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag socket: %w", err)
	}
	return Take(fd)
}

// Take returns a view of the network namespace in which the sock_diag socket fd was opened, by a
// process that could enter that namespace. Take owns fd, even if it returns an error. What the
// kernel permits depends on the capabilities of both the process that opened the socket and this
// one.
func Take(fd int) (*Diag, error) {
	limit := unix.Timeval{Sec: patience}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err == nil && kind != unix.NETLINK_SOCK_DIAG {
		err = unix.EPROTOTYPE
	}
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("take sock_diag socket: %w", err)
	}
	return &Diag{fd: fd, buffer: make([]byte, bufferSize)}, nil
}

// Close closes the socket.
func (d *Diag) Close() error { return os.NewSyscallError("close sock_diag socket", unix.Close(d.fd)) }

// Check returns an error that wraps ErrUnsupported and says what to do if sockets of the protocol
// cannot be listed and aborted here. As a side effect the kernel loads its diag module if it has
// one, which needs no privilege.
func (d *Diag) Check(protocol model.Protocol) error {
	none := request{kind: byFamily, flags: unix.NLM_F_DUMP, family: unix.AF_INET, protocol: protocol}
	err := d.ask(none, nil)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("list %s sockets: %w: load its module %[1]s_diag, or use a kernel with CONFIG_INET_%[3]s_DIAG",
			protocol, ErrUnsupported, upper(protocol))
	}
	if err != nil {
		return fmt.Errorf("list %s sockets: %w", protocol, err)
	}
	// No socket has port 0, so the answer about this one holds for all.
	none.kind, none.flags = destroy, unix.NLM_F_ACK
	switch err := d.ask(none, nil); {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("abort %s sockets: %w: use one with CONFIG_INET_DIAG_DESTROY", protocol, ErrUnsupported)
	case err != nil && !errors.Is(err, unix.ENOENT):
		return fmt.Errorf("abort %s sockets: %w", protocol, err)
	}
	return nil
}

func upper(protocol model.Protocol) string {
	if protocol == model.UDP {
		return "UDP"
	}
	return "TCP"
}

// Each calls f for the connected sockets of a protocol, in any order. It may miss sockets that
// appear or disappear during the listing.
func (d *Diag) Each(protocol model.Protocol, f func(Socket)) error {
	states := uint32(established)
	if protocol == model.TCP {
		states = streams
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		list := request{
			kind: byFamily, flags: unix.NLM_F_DUMP, family: family, protocol: protocol, states: states,
		}
		if err := d.ask(list, func(answer []byte) error {
			s, _, err := decode(protocol, answer)
			if err == nil {
				f(s)
			}
			return err
		}); err != nil {
			return fmt.Errorf("list %s sockets: %w", protocol, err)
		}
	}
	return nil
}

// Destroy aborts a socket that Each listed: its owner gets ECONNABORTED, and a TCP peer a reset. It
// reports false if the socket no longer exists or has another peer.
func (d *Diag) Destroy(s Socket) (bool, error) {
	abort := request{
		kind: destroy, flags: unix.NLM_F_ACK, family: s.family, protocol: s.Protocol, id: s.id,
	}
	if s.Protocol == model.UDP {
		// The kernel looks a UDP socket up as it would for a packet, so it also finds one that was
		// disconnected since and still holds its port. That one must be left alone.
		if same, err := d.connected(s); err != nil || !same {
			return false, err
		}
	}
	err := d.ask(abort, nil)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("abort %s socket: %w", s.Protocol, err)
	}
	return true, nil
}

// connected reports whether a UDP socket is still connected as it was listed.
func (d *Diag) connected(s Socket) (same bool, err error) {
	look := request{
		kind: byFamily, flags: unix.NLM_F_ACK, family: s.family, protocol: s.Protocol,
		id: s.id.swapped(), // the kernel swaps source and destination here
	}
	err = d.ask(look, func(answer []byte) error {
		now, state, err := decode(s.Protocol, answer)
		same = err == nil && now == s && 1<<state == established
		return err
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return false, fmt.Errorf("look at %s socket: %w", s.Protocol, err)
	}
	return same, nil
}

// ask sends a request and calls f with each part of the answer.
func (d *Diag) ask(r request, f func(answer []byte) error) error {
	d.seq++
	if err := unix.Sendto(d.fd, r.encode(d.seq), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, from, err := unix.Recvfrom(d.fd, d.buffer, unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for the answer: %w", err)
		case n > len(d.buffer):
			return errShort
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not the kernel
		}
		if done, err := d.parts(d.buffer[:n], f); done || err != nil {
			return err
		}
	}
}

// parts splits received data into messages and reports whether the answer is complete.
func (d *Diag) parts(b []byte, f func(answer []byte) error) (done bool, err error) {
	for len(b) > 0 {
		var m message
		if m, b, err = cut(b); err != nil {
			return true, err
		}
		switch {
		case m.seq != d.seq: // belongs to an answer that ask gave up on
		case m.kind == unix.NLMSG_DONE || m.kind == unix.NLMSG_ERROR:
			return true, m.verdict()
		case m.kind == byFamily && f != nil:
			if err := f(m.body); err != nil {
				return true, err
			}
		}
	}
	return false, nil
}
