package flow

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of the timed loops. They bypass Go's poller and scheduler, which would otherwise
// be measured too: a call blocks its thread without the runtime's knowledge. So each loop has its
// own thread, on which the runtime's signal is blocked, and nothing in the process may stop the
// world meanwhile (see quiet).

func call(trap, a, b, c, d, e, f uintptr) (uintptr, error) {
	for {
		n, _, errno := unix.RawSyscall6(trap, a, b, c, d, e, f)
		switch errno {
		case 0:
			return n, nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func read(fd int, p []byte) (int, error) {
	n, err := call(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0, 0, 0)
	return int(n), err
}

// readFull fills p. It returns io.EOF if there is nothing more to read.
func readFull(fd int, p []byte) error {
	for off := 0; off < len(p); {
		n, err := read(fd, p[off:])
		if err != nil {
			return err
		}
		if n == 0 {
			if off == 0 {
				return io.EOF
			}
			return io.ErrUnexpectedEOF
		}
		off += n
	}
	return nil
}

func writeFull(fd int, p []byte) error {
	for off := 0; off < len(p); {
		rest := p[off:]
		// MSG_NOSIGNAL makes a closed connection an error to report instead of a fatal signal.
		n, err := call(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&rest[0])), uintptr(len(rest)),
			unix.MSG_NOSIGNAL, 0, 0)
		if err != nil {
			return err
		}
		off += int(n)
	}
	return nil
}

// sockaddr is an address in the kernel's format.
type sockaddr struct {
	raw [unix.SizeofSockaddrInet6]byte
	len uint32
}

func newSockaddr(a netip.AddrPort) sockaddr {
	var s sockaddr
	binary.BigEndian.PutUint16(s.raw[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET)
		copy(s.raw[4:], a.Addr().AsSlice())
		s.len = unix.SizeofSockaddrInet4
		return s
	}
	binary.NativeEndian.PutUint16(s.raw[:], unix.AF_INET6)
	copy(s.raw[8:], a.Addr().AsSlice())
	s.len = unix.SizeofSockaddrInet6
	return s
}

func connect(fd int, to *sockaddr) error {
	_, err := call(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to.raw)), uintptr(to.len), 0, 0, 0)
	return err
}

func accept(fd int) (int, error) {
	n, err := call(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
	return int(n), err
}

func sendTo(fd int, p []byte, to *sockaddr) error {
	n, err := call(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0,
		uintptr(unsafe.Pointer(&to.raw)), uintptr(to.len))
	if err == nil && int(n) != len(p) {
		return io.ErrShortWrite
	}
	return err
}

func receiveFrom(fd int, p []byte, from *sockaddr) (int, error) {
	from.len = uint32(len(from.raw))
	n, err := call(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), 0,
		uintptr(unsafe.Pointer(&from.raw)), uintptr(unsafe.Pointer(&from.len)))
	return int(n), err
}

// newSocket opens a plain TCP or UDP socket; Go's own would use MPTCP.
func newSocket(family, kind int) (int, error) {
	fd, err := call(unix.SYS_SOCKET, uintptr(family), uintptr(kind|unix.SOCK_CLOEXEC), 0, 0, 0, 0)
	return int(fd), err
}

func closeSocket(fd int) error {
	_, err := call(unix.SYS_CLOSE, uintptr(fd), 0, 0, 0, 0, 0)
	return err
}

func setOption(fd, level, name int, value unsafe.Pointer, size uintptr) error {
	_, err := call(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(value), size, 0)
	return err
}

// setNoDelay disables Nagle's algorithm.
func setNoDelay(fd int) error {
	one := int32(1)
	return setOption(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, unsafe.Pointer(&one), unsafe.Sizeof(one))
}

// setAbort makes close reset the connection.
func setAbort(fd int) error {
	linger := unix.Linger{Onoff: 1}
	return setOption(fd, unix.SOL_SOCKET, unix.SO_LINGER, unsafe.Pointer(&linger), unsafe.Sizeof(linger))
}

func familyOf(a netip.AddrPort) int {
	if a.Addr().Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// onThread runs a loop on its own thread, which ends with the loop.
func onThread(cpu CPU, loop func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		// The runtime's preemption signal would interrupt the calls.
		var signals unix.Sigset_t
		signals.Val[0] = 1 << (unix.SIGURG - 1)
		if err := unix.PthreadSigmask(unix.SIG_BLOCK, &signals, nil); err != nil {
			done <- fmt.Errorf("block signals: %w", err)
			return
		}
		if cpu != AnyCPU {
			var cpus unix.CPUSet
			cpus.Set(int(cpu) - 1)
			if err := unix.SchedSetaffinity(0, &cpus); err != nil {
				done <- fmt.Errorf("pin to CPU %d: %w", int(cpu)-1, err)
				return
			}
		}
		done <- loop()
	}()
	return <-done
}
