// Package sockets finds the sockets whose backend is gone for good, and aborts them: their owners would otherwise wait for
// answers that cannot come. It lists and aborts by sock_diag, for which the agent's capabilities are enough, and in any
// network namespace of which it has a socket.
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
	// patience is how long an answer may take. The kernel gives it while it is asked, so this is for its bugs and ours.
	patience = 10 // seconds
)

// The states of a TCP socket that somebody may wait on, and the one state of a UDP socket that is connected: there is no
// way to ask for others, so one that is not connected is not even seen.
const (
	established = 1 << 1
	streams     = established | 1<<2 | 1<<4 | 1<<5 | 1<<8 // and SYN_SENT, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT
)

// ErrUnsupported is wrapped by what Check returns for a kernel that cannot do it.
var ErrUnsupported = errors.New("not supported by this kernel")

// Diag is a sock_diag socket: the view of one network namespace. It is for one goroutine.
type Diag struct {
	fd     int
	seq    uint32
	buffer []byte
}

// Open returns the view of the network namespace that the calling thread is in. The caller closes it.
func Open() (*Diag, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("open sock_diag socket: %w", err)
	}
	return Take(fd)
}

// Take returns the view of the network namespace that the sock_diag socket fd was opened in, by whoever could enter it. It
// takes fd over, also with an error. What it may do there is decided by the capabilities of both: of who opened the
// socket, and of this process.
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

// Check returns an error that wraps ErrUnsupported, and says what to do, if sockets of the protocol cannot be listed and
// aborted here. Where the kernel has a module for it, this loads it: the kernel does that by itself, for anybody.
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
	// No socket has port 0, so what is said about aborting this one is said about all.
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

// Each calls f for the connected sockets of a protocol, in any order. One that comes or goes meanwhile may be missed.
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

// Destroy aborts a socket as Each gave it: whoever uses it gets ECONNABORTED, and a TCP peer a reset. It reports false if
// that socket is not there any more, or is connected to another peer.
func (d *Diag) Destroy(s Socket) (bool, error) {
	abort := request{
		kind: destroy, flags: unix.NLM_F_ACK, family: s.family, protocol: s.Protocol, id: s.id,
	}
	if s.Protocol == model.UDP {
		// The kernel finds a UDP socket as it would for a packet, and so also one that was disconnected since and has its
		// port still. That one is not ours to touch.
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

// connected reports whether a UDP socket is as it was listed.
func (d *Diag) connected(s Socket) (same bool, err error) {
	look := request{
		kind: byFamily, flags: unix.NLM_F_ACK, family: s.family, protocol: s.Protocol,
		id: s.id.swapped(), // here the kernel has source and destination the other way round
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

// ask sends a request and calls f with each part of its answer.
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

// parts takes apart what was received, and reports whether that was the end of the answer.
func (d *Diag) parts(b []byte, f func(answer []byte) error) (done bool, err error) {
	for len(b) > 0 {
		var m message
		if m, b, err = cut(b); err != nil {
			return true, err
		}
		switch {
		case m.seq != d.seq: // of an answer that was given up
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
