package sockmap

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// spliceNothing has the server splice, and fails if splice sees any data.
func (e ends) spliceNothing() error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	defer out.Close()
	raw, err := e.server.SyscallConn()
	if err != nil {
		return err
	}
	var n int64
	var failed error
	if err := raw.Control(func(fd uintptr) {
		n, failed = unix.Splice(int(fd), nil, int(out.Fd()), nil, 100, unix.SPLICE_F_NONBLOCK)
	}); err != nil {
		return err
	}
	if !errors.Is(failed, unix.EAGAIN) {
		return fmt.Errorf("splice reads %d bytes, %v, where it should see none", n, failed)
	}
	return nil
}

// spliceLate has the server splice while data waits that bypassed TCP, and has the client try to
// send more.
func (e ends) spliceLate() error {
	if _, err := e.client.Write(pattern(1, 100)); err != nil {
		return err
	}
	if err := e.spliceNothing(); err != nil {
		return err
	}
	if _, err := e.client.Write(pattern(2, 100)); !errors.Is(err, unix.EACCES) {
		return fmt.Errorf("the client may send: %v", err)
	}
	got := make([]byte, 100)
	if err := e.server.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.ReadFull(e.server, got); err != nil || string(got) != string(pattern(1, 100)) {
		return errors.Join(err, errWrong)
	}
	return nil
}

// strand has the server send what its client does not read, and splice while nothing waits for the
// server.
func (e ends) strand() error {
	if _, err := e.server.Write(pattern(4, 100)); err != nil {
		return err
	}
	return e.spliceNothing()
}

// hear reads what was sent before.
func hear(conn *net.TCPConn, want []byte) error {
	got := make([]byte, len(want))
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != string(want) {
		return errors.Join(err, errWrong)
	}
	return nil
}
