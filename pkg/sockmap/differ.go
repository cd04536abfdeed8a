package sockmap

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// waitAll is how long a read may wait for the rest of the data it asked for.
	waitAll = 200 * time.Millisecond
	// signaled is how long signals are sent to a read before it gets data.
	signaled = 100 * time.Millisecond
)

// differsInEdges is the difference of a kernel that does not show how sockets in the map are read.
const differsInEdges = "readers by edge-triggered epoll use TCP"

// differ finds out which of the known differences from TCP this kernel has for data that bypasses
// it. None of them makes a kernel unfit, because how a connection is read is known before any of its
// data bypasses TCP. But a program may change that later, so status and preflight list them.
func (p *proof) differ(e *exercise) error {
	p.differences = nil
	if p.isBlind() {
		p.differences = append(p.differences, differsInEdges)
	}
	for _, find := range []func(*exercise) (string, error){p.differInCount, p.differInAll, p.differInSignals} {
		found, err := find(e)
		if err != nil {
			return err
		}
		if found != "" {
			p.differences = append(p.differences, found)
		}
		if err := e.converse(10, 100); err != nil {
			return err
		}
	}
	return nil
}

// pass sends a message, and fails if it does not bypass TCP.
func (p *proof) pass(e *exercise, message []byte) error {
	before, err := p.pairs()
	if err != nil {
		return err
	}
	if _, err := unix.Write(e.client, message); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	after, err := p.pairs()
	if err != nil {
		return err
	}
	if after[0].Redirected[0]-before[0].Redirected[0] != uint64(len(message)) {
		return fmt.Errorf("a message goes by TCP that should not: %+v", after)
	}
	return nil
}

// differInCount asks how much there is to read (FIONREAD) while some data came by TCP and some
// bypassed it.
func (p *proof) differInCount(e *exercise) (string, error) {
	message := pattern(13, 150)
	const past = 100
	if err := p.pass(e, message[:past]); err != nil {
		return "", err
	}
	if err := p.setOn(false); err != nil {
		return "", err
	}
	if _, err := unix.Write(e.client, message[past:]); err != nil {
		return "", fmt.Errorf("send: %w", err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) { // until it has arrived
		left, err := unix.IoctlGetInt(e.client, unix.SIOCOUTQ)
		if err != nil {
			return "", fmt.Errorf("ask what is on its way: %w", err)
		}
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			return "", errors.New("what goes by TCP behind what does not never arrives")
		}
	}
	there, err := unix.IoctlGetInt(e.server, unix.SIOCINQ)
	if err != nil {
		return "", fmt.Errorf("ask how much there is to read: %w", err)
	}
	if err := errors.Join(p.setOn(true), expect(e.server, message)); err != nil {
		return "", err
	}
	switch there {
	case len(message):
		return "", nil
	case past:
		return "FIONREAD counts only data that bypassed TCP", nil
	case len(message) - past:
		return "FIONREAD counts only data that went by TCP", nil
	}
	return fmt.Sprintf("FIONREAD says that %d bytes wait when it is %d", there, len(message)), nil
}

// differInAll reads with MSG_WAITALL, and asks for more than there is.
func (p *proof) differInAll(e *exercise) (string, error) {
	message := pattern(15, 100)
	if err := p.pass(e, message); err != nil {
		return "", err
	}
	return e.readAll(message)
}

// readAll asks for more than the message that is there, with MSG_WAITALL. TCP would wait for the
// rest; if this read does not, readAll returns what happened.
func (e exercise) readAll(message []byte) (string, error) {
	got := make([]byte, 2*len(message))
	limit := unix.NsecToTimeval(waitAll.Nanoseconds())
	if err := unix.SetsockoptTimeval(e.server, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return "", fmt.Errorf("limit how long a read waits: %w", err)
	}
	var n int
	var took time.Duration
	err := e.waiting(func() (err error) {
		began := time.Now()
		n, _, err = unix.Recvfrom(e.server, got, unix.MSG_WAITALL)
		took = time.Since(began)
		return err
	})
	limit = unix.Timeval{}
	if err = errors.Join(err, unix.SetsockoptTimeval(e.server, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit)); err != nil {
		return "", fmt.Errorf("read all that is wanted: %w", err)
	}
	if string(got[:max(n, 0)]) != string(message) {
		return "", errWrong
	}
	if took < waitAll {
		return "MSG_WAITALL returns with less than was asked for", nil
	}
	return "", nil
}

// differInSignals sends signals to a blocking read.
func (p *proof) differInSignals(e *exercise) (string, error) { return e.readThroughSignals() }

// readThroughSignals sends signals to a read that waits. TCP would continue to wait; if this read
// does not, readThroughSignals returns what happened. The caller must have locked its thread.
func (e exercise) readThroughSignals() (found string, err error) {
	message := pattern(16, 100)
	over, sent := make(chan struct{}), make(chan error, 1)
	pid, thread := os.Getpid(), unix.Gettid()
	go func() {
		for end := time.Now().Add(signaled); time.Now().Before(end); time.Sleep(time.Millisecond) {
			select {
			case <-over:
				sent <- nil
				return
			default:
			}
			if err := unix.Tgkill(pid, thread, unix.SIGURG); err != nil { // which the Go runtime ignores
				sent <- fmt.Errorf("send a signal: %w", err)
				return
			}
		}
		_, err := unix.Write(e.client, message)
		sent <- err
	}()
	got, n := make([]byte, len(message)), 0
	ended := e.waiting(func() (err error) {
		n, _, err = unix.Recvfrom(e.server, got, 0)
		return err
	})
	close(over)
	if err := <-sent; err != nil {
		return "", err
	}
	switch {
	case again(ended):
		found = fmt.Sprintf("a signal ends a blocking read (%v)", ended)
	case ended != nil:
		return "", fmt.Errorf("read: %w", ended)
	case string(got[:n]) == string(message):
		return "", nil
	}
	// The message may have been sent anyway.
	return found, e.drain()
}

// drain reads everything that is there.
func (e exercise) drain() error {
	for piece := make([]byte, 4<<10); ; {
		n, err := unix.Read(e.server, piece)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
		case err != nil || n == 0:
			return fmt.Errorf("read: %w", errors.Join(err, errEnded))
		}
	}
}

// waiting calls do while a read of the server blocks.
func (e exercise) waiting(do func() error) error {
	if err := unix.SetNonblock(e.server, false); err != nil {
		return fmt.Errorf("have reads wait: %w", err)
	}
	return errors.Join(do(), unix.SetNonblock(e.server, true))
}
