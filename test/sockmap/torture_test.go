package sockmap

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

var (
	tortureFor  = flag.Duration("torture", 30*time.Second, "how long connections are tortured, in either way")
	tortureSeed = flag.Uint64("seed", 1, "what their scripts are drawn from")
)

// patience is the longest that anything may keep an end waiting.
const patience = 10 * time.Second

// report is the result of a torture.
type report struct {
	Connections, Resets, Bytes, Retried int64
	Faults                              []string
}

// TestTorture checks that whatever connections do, and whatever is switched meanwhile, each byte
// arrives once and in order, nothing waits forever, and nothing is left behind.
func TestTorture(t *testing.T) {
	for _, blocking := range []bool{false, true} {
		t.Run(fmt.Sprintf("blocking=%v", blocking), func(t *testing.T) {
			limits := sockmap.DefaultLimits()
			limits.Blocking = blocking
			w := newWorld(t, limits)
			p := rig.NewChild(t, nil, nil, "torture", w.pods[0].Path(), w.pods[1].Path(), tortureFor.String(), strconv.FormatUint(*tortureSeed, 10))
			answer := make(chan string, 1)
			go func() {
				line, err := p.ReadLine()
				if err != nil {
					line = err.Error()
				}
				answer <- line
			}()
			var line string
			switched := 0
			for random := rand.New(rand.NewPCG(*tortureSeed, 7)); line == ""; switched++ {
				select {
				case line = <-answer:
				case <-time.After(time.Duration(random.IntN(400)) * time.Millisecond):
					w.disturb(random)
				}
			}
			var r report
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatalf("the process says %q", line)
			}
			for _, fault := range r.Faults {
				t.Error(fault)
			}
			tallies, err := w.Tallies()
			w.Must(err)
			t.Logf("%d connections, %d reset, %d MiB, %d reads tried again, %d times switched or restarted\n%v", r.Connections, r.Resets, r.Bytes>>20, r.Retried, switched, tallies)
			if !blocking && r.Retried > 0 {
				t.Errorf("%d reads that wait ended with EAGAIN", r.Retried)
			}
			if r.Connections < victims {
				t.Errorf("%d connections are too few", r.Connections)
			}
			if tallies.Redirected.Count < 100 || tallies.Left == 0 {
				t.Error("too few messages went past TCP, or nobody left the map, for this to prove anything")
			}
			w.Until("the rows of connections to be gone", func() bool { return len(w.pairs()) == 0 })
			w.Until("the sockets to be gone", func() bool { n, err := w.Sockets(); w.Must(err); return n == 0 })
		})
	}
}

// disturb does one of the things that an operator may do at any time.
func (w *world) disturb(random *rand.Rand) {
	switch random.IntN(5) {
	case 0:
		w.Must(w.Switch(false))
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		w.Must(w.Switch(true))
	case 1:
		w.Stop()
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		w.Start()
	case 2:
		w.Must(w.SetRules(nil))
		w.Let(w.pods[:]...)
	}
}

func tortureMain(args []string) int {
	r, err := torture(args)
	if err != nil {
		r.Faults = append(r.Faults, err.Error())
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		return 1
	}
	return 0
}

// victims is how many connections there are at a time.
const victims = 24

func torture(args []string) (r *report, err error) {
	r = &report{}
	var pods [2]*rig.Netns
	for i := range pods {
		if pods[i], err = rig.OpenNetns("pod", args[i]); err != nil {
			return r, err
		}
	}
	long, err := time.ParseDuration(args[2])
	if err != nil {
		return r, err
	}
	seed, err := strconv.ParseUint(args[3], 10, 64)
	if err != nil {
		return r, err
	}
	listeners := map[string]net.Listener{}
	const loopback = "127.0.0.1" // as between an application and its sidecar
	addrs := []string{server4, server6, loopback}
	for _, addr := range addrs {
		if listeners[addr], err = listen(pods[1], addr); err != nil {
			return r, err
		}
		defer listeners[addr].Close()
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	var number atomic.Uint64
	end := time.Now().Add(long)
	for worker := range victims {
		addr, from := addrs[worker%len(addrs)], pods[0]
		if addr == loopback {
			from = pods[1]
		}
		group.Go(func() {
			for time.Now().Before(end) {
				s := newScript(rand.New(rand.NewPCG(seed, number.Add(1))))
				err := s.play(from, listeners[addr], addr, &mu)
				mu.Lock()
				r.Connections++
				r.Bytes += s.bytes.Load()
				r.Retried += s.retried.Load()
				if s.breaks() {
					r.Resets++
				}
				if err != nil && len(r.Faults) < 5 {
					r.Faults = append(r.Faults, fmt.Sprintf("script %d: %v: %+v", s.number, err, s.plan))
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return r, nil
}

func listen(ns *rig.Netns, addr string) (listener net.Listener, err error) {
	config := net.ListenConfig{}
	config.SetMultipathTCP(false)
	err = ns.Do(func() error {
		listener, err = config.Listen(context.Background(), "tcp", net.JoinHostPort(addr, "0"))
		return err
	})
	return listener, err
}

// part is what one end sends in one go.
type part struct {
	side   int
	bytes  int
	piece  int  // the most that one call sends
	at     bool // only once this end has read everything that the other sends before
	paused bool // pauses now and then
}

// plan is what happens on a connection.
type plan struct {
	parts   []part
	ways    [2]way  // how each end reads
	buffers [2]int  // the most that one call reads
	corked  [2]bool // the end holds back each part until it is complete, by TCP_CORK
	delayed [2]bool // the end has no TCP_NODELAY
	ending  ending
}

// way is how an end reads.
type way int

const (
	polled   way = iota // by Go's poller, which is edge-triggered
	peeking             // likewise, after MSG_PEEK
	waiting             // by blocking calls
	levelled            // by poll, which is level-triggered
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
	moved          atomic.Int64 // when anything was last sent or read
}

func (s *script) move() { s.moved.Store(time.Now().UnixNano()) }

// stuck reports whether nothing has moved in either direction for as long as patience. On a slow
// machine, an end may get nothing for long because the other is busy.
func (s *script) stuck() bool { return time.Now().UnixNano()-s.moved.Load() > patience.Nanoseconds() }

// newScript draws a script. Each script has its own random numbers, so that it can be played again.
func newScript(random *rand.Rand) *script {
	s := &script{number: random.Uint64()}
	sizes := []int{1, 20, 200, 1 << 10, 8 << 10, 64 << 10}
	for range 1 + random.IntN(60) {
		p := part{side: len(s.parts) % 2, bytes: 1 + random.IntN(sizes[random.IntN(len(sizes))]), at: random.IntN(8) > 0, paused: random.IntN(10) == 0}
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
	e, err := meet(from, listener, addr)
	mu.Unlock()
	if err != nil {
		return err
	}
	s.move()
	both := [2]*net.TCPConn{e.client, e.server}
	var reads [2]func([]byte) (int, error)
	var closers [2]func()
	for side, conn := range both {
		reads[side], closers[side], err = s.reader(side, conn)
		if err = errors.Join(err, conn.SetNoDelay(!s.delayed[side])); err != nil {
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
func (s *script) end(side int, conn *net.TCPConn, heard *progress) error {
	first, last := int(s.number%2), s.parts[len(s.parts)-1].side
	switch {
	case s.ending == reset && side == first:
		return errors.Join(conn.SetLinger(0), conn.Close())
	case s.ending == killed && side == first:
		return conn.Close()
	case s.ending == closing && side == last:
		return errors.Join(heard.wait(s.said(1-side), s.stuck), conn.Close())
	}
	return conn.CloseWrite()
}

// cork sets or clears TCP_CORK at an end whose script says so.
func (s *script) cork(side int, conn *net.TCPConn, on int) error {
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

func (s *script) speak(side int, conn *net.TCPConn, heard *progress) error {
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

func (s *script) send(conn *net.TCPConn, message []byte, p part) error {
	for len(message) > 0 {
		if err := conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := conn.Write(message[:min(len(message), p.piece)])
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

func (s *script) listen(side int, read func([]byte) (int, error), heard *progress) error {
	defer func() { heard.ended.Store(true); heard.move() }()
	piece := make([]byte, s.buffers[side])
	var at int64
	for {
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
