package sockmap

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// part is what one end sends in one go.
type part struct {
	side   int
	bytes  int
	piece  int  // the most that one call sends
	at     bool // only once this end has read everything that the other sends before
	paused bool // pauses now and then
	aside  bool // sends every other piece in a way that never bypasses TCP
}

// plan is what happens on a connection.
type plan struct {
	parts   []part
	ways    [2]way  // how each end reads
	buffers [2]int  // the most that one call reads
	corked  [2]bool // the end holds back each part until it is complete, by TCP_CORK
	delayed [2]bool // the end has no TCP_NODELAY
	lingers bool    // an end that closes waits until the other has everything, by SO_LINGER
	ending  ending
}

// way is how an end reads.
type way int

const (
	polled   way = iota // by Go's poller, which is edge-triggered
	peeking             // likewise, after MSG_PEEK
	waiting             // by blocking calls
	levelled            // by poll, which is level-triggered
	resting             // by edge-triggered epoll, and after a read that returns less than it might, only once told of more
	ways
)

type ending int

const (
	halves  ending = iota // each end says that it has sent everything, and reads on
	closing               // the end that sends last then closes, once it has read everything
	reset                 // one end resets in the middle
	killed                // one end closes in the middle, with data unread, as if killed
	endings
)

type script struct {
	plan
	number         uint64
	bytes, retried atomic.Int64
	moved          atomic.Int64   // when anything was last sent or read
	gone           [2]atomic.Bool // the end reads no more
}

func (s *script) move() { s.moved.Store(time.Now().UnixNano()) }

// stuck reports whether nothing has moved in either direction for as long as patience. On a slow
// machine, an end may get nothing for long because the other is busy.
func (s *script) stuck() bool { return time.Now().UnixNano()-s.moved.Load() > patience.Nanoseconds() }

// newScript draws a script, in which ends may rest or not. Each script has its own random numbers, so
// that it can be played again.
func newScript(random *rand.Rand, rest bool) *script {
	s := &script{plan: plan{lingers: random.IntN(2) == 0}, number: random.Uint64()}
	ways := ways
	if !rest {
		ways = resting
	}
	sizes := []int{1, 20, 200, 1 << 10, 8 << 10, 64 << 10}
	for range 1 + random.IntN(60) {
		p := part{side: len(s.parts) % 2, bytes: 1 + random.IntN(sizes[random.IntN(len(sizes))]), at: random.IntN(8) > 0, paused: random.IntN(10) == 0, aside: random.IntN(4) == 0}
		if random.IntN(25) == 0 {
			p.bytes = random.IntN(2 << 20) // a stream
		}
		p.piece = 1 + random.IntN(max(1, min(p.bytes, 128<<10)))
		if p.bytes/p.piece > 2000 {
			p.piece = p.bytes / 2000
		}
		s.parts = append(s.parts, p)
	}
	for side := range 2 {
		s.ways[side] = way(random.IntN(int(ways)))
		// At least a ten-thousandth of what it is sent, or it would take forever to read.
		s.buffers[side] = max(1+random.IntN(sizes[2+random.IntN(4)]), int(s.said(1-side)/10_000))
	}
	for side := range 2 {
		s.corked[side], s.delayed[side] = random.IntN(8) == 0, random.IntN(4) == 0
	}
	if s.ending = ending(random.IntN(int(endings))); s.breaks() && random.IntN(2) == 0 {
		s.ending = halves
	}
	return s
}

// breaks reports whether one end breaks the connection in the middle.
func (s *script) breaks() bool { return s.ending == reset || s.ending == killed }

// play makes a connection and has both ends do what the script says.
func (s *script) play(from *rig.Netns, listener net.Listener, addr string, mu *sync.Mutex) error {
	mu.Lock() // or another worker would accept the connection
	e, err := connectTo(from, listener, addr)
	mu.Unlock()
	if err != nil {
		return err
	}
	s.move()
	var both [2]sender
	var reads [2]func([]byte) (int, error)
	var closers [2]func()
	for side, conn := range []*net.TCPConn{e.client, e.server} {
		if both[side], reads[side], closers[side], err = s.take(side, conn); err != nil {
			return err
		}
		if err := both[side].SetNoDelay(!s.delayed[side]); err != nil {
			return err
		}
	}
	var heard [2]progress
	for side := range heard {
		heard[side].moved = make(chan struct{}, 1)
	}
	var group sync.WaitGroup
	var errs [2][2]error
	for side := range 2 {
		group.Go(func() {
			errs[side][0] = s.speak(side, both[side], &heard[side])
			if errs[side][0] == nil {
				errs[side][0] = s.end(side, both[side], &heard[side])
			}
		})
		group.Go(func() {
			defer closers[side]()
			errs[side][1] = s.listen(side, reads[side], &heard[side])
		})
	}
	group.Wait()
	for _, conn := range both {
		_ = conn.Close() // may have been reset
	}
	if s.breaks() {
		return s.onlyReset(errs)
	}
	return errors.Join(errs[0][0], errs[0][1], errs[1][0], errs[1][1])
}

// end stops one end from sending, in the way that the script says.
func (s *script) end(side int, conn sender, heard *progress) error {
	first, last := int(s.number%2), s.parts[len(s.parts)-1].side
	switch {
	case s.ending == reset && side == first:
		return errors.Join(conn.SetLinger(0), s.leave(side, conn))
	case s.ending == killed && side == first:
		return s.leave(side, conn)
	case s.ending == closing && side == last:
		err := heard.wait(s.said(1-side), s.stuck)
		if s.lingers {
			err = errors.Join(err, conn.SetLinger(int(patience.Seconds())))
		}
		return errors.Join(err, s.leave(side, conn))
	}
	return conn.CloseWrite()
}

// leave closes one end. Most ways to read have a number of their own for the socket, which its reader
// closes as soon as it is woken.
func (s *script) leave(side int, conn sender) error {
	s.gone[side].Store(true)
	var err error
	if way := s.ways[side]; way != polled && way != peeking {
		if err = conn.CloseRead(); errors.Is(err, unix.ENOTCONN) { // the other end was faster
			err = nil
		}
	}
	return errors.Join(err, conn.Close())
}

// cork sets or clears TCP_CORK at an end whose script says so.
func (s *script) cork(side int, conn sender, on int) error {
	if !s.corked[side] {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	return control(func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_CORK, on) })("", "", raw)
}

// errWrong says that other bytes arrived than were sent.
var errWrong = errors.New("wrong bytes")

// onlyReset returns the errors that a reset does not explain.
func (s *script) onlyReset(errs [2][2]error) error {
	var rest []error
	for _, err := range []error{errs[0][0], errs[0][1], errs[1][0], errs[1][1]} {
		if errors.Is(err, errWrong) || errors.Is(err, os.ErrDeadlineExceeded) {
			rest = append(rest, err)
		}
	}
	return errors.Join(rest...)
}

// progress is how much an end has read.
type progress struct {
	bytes atomic.Int64
	ended atomic.Bool
	moved chan struct{}
}

func (p *progress) add(n int) {
	p.bytes.Add(int64(n))
	p.move()
}

func (p *progress) move() {
	select {
	case p.moved <- struct{}{}:
	default:
	}
}

func (p *progress) wait(want int64, stuck func() bool) error {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for p.bytes.Load() < want && !p.ended.Load() {
		select {
		case <-p.moved:
		case <-look.C:
			if stuck() {
				return fmt.Errorf("heard %d of %d bytes: %w", p.bytes.Load(), want, os.ErrDeadlineExceeded)
			}
		}
	}
	return nil
}

// sound returns the byte that an end sends at a position.
func (s *script) sound(side int, at int64) byte {
	x := (s.number + uint64(side)) ^ uint64(at)*0x9e3779b97f4a7c15
	return byte(x >> 56)
}

func (s *script) speak(side int, conn sender, heard *progress) error {
	var said, before int64
	for _, p := range s.parts {
		if p.side != side {
			before += int64(p.bytes)
			continue
		}
		if p.at {
			if err := heard.wait(before, s.stuck); err != nil {
				return err
			}
		}
		message := make([]byte, p.bytes)
		for i := range message {
			message[i] = s.sound(side, said+int64(i))
		}
		said += int64(p.bytes)
		if err := errors.Join(s.cork(side, conn, 1), s.send(conn, message, p), s.cork(side, conn, 0)); err != nil {
			return fmt.Errorf("side %d: send: %w", side, err)
		}
	}
	return nil
}

func (s *script) send(conn sender, message []byte, p part) error {
	for i := 0; len(message) > 0; i++ {
		if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		write := conn.Write
		if p.aside && i%2 == 1 {
			write = func(piece []byte) (int, error) { return sendAside(conn, piece) }
		}
		n, err := write(message[:min(len(message), p.piece)])
		s.bytes.Add(int64(n))
		if n > 0 {
			s.move()
		}
		if err != nil && !(errors.Is(err, os.ErrDeadlineExceeded) && !s.stuck()) {
			return err
		}
		if message = message[n:]; p.paused && n%7 == 0 {
			time.Sleep(time.Duration(n%300) * time.Microsecond)
		}
	}
	return nil
}

// sendAside sends with a flag that the programs do not know. TCP has no use for it.
func sendAside(conn sender, piece []byte) (n int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		n, failed = unix.SendmsgN(int(fd), piece, nil, nil, unix.MSG_CONFIRM|unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return !errors.Is(failed, unix.EAGAIN)
	})
	return n, errors.Join(err, failed)
}

func (s *script) listen(side int, read func([]byte) (int, error), heard *progress) error {
	defer func() { heard.ended.Store(true); heard.move() }()
	piece := make([]byte, s.buffers[side])
	var at int64
	for {
		if s.gone[side].Load() {
			return s.heardAll(side, at)
		}
		n, err := read(piece)
		if errors.Is(err, os.ErrDeadlineExceeded) && !s.stuck() {
			err = nil
		}
		if n > 0 {
			s.move()
		}
		for i := range n {
			if piece[i] != s.sound(1-side, at+int64(i)) {
				return fmt.Errorf("side %d: at byte %d: %w", side, at+int64(i), errWrong)
			}
		}
		at += int64(n)
		heard.add(n)
		if errors.Is(err, io.EOF) || s.ending == closing && errors.Is(err, net.ErrClosed) {
			return s.heardAll(side, at)
		}
		if err != nil {
			return fmt.Errorf("side %d: read after %d bytes: %w", side, at, err)
		}
	}
}

// said returns how many bytes an end sends in all.
func (s *script) said(side int) (bytes int64) {
	for _, p := range s.parts {
		if p.side == side {
			bytes += int64(p.bytes)
		}
	}
	return bytes
}

// heardAll returns an error if an end has not read everything.
func (s *script) heardAll(side int, at int64) error {
	want := s.said(1 - side)
	if at != want && !s.breaks() {
		return fmt.Errorf("side %d: ends after %d of %d bytes: %w", side, at, want, errWrong)
	}
	return nil
}
