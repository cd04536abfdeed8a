package sockmap

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// talk is a connection between the pods, with both ends in one process.
type talk struct {
	w *twoPods
	*rig.Process
}

// dial opens a connection to an address of the second pod.
func (w *twoPods) dial(addr string) *talk {
	w.T.Helper()
	server := w.pods[1]
	if at, err := netip.ParseAddr(addr); err == nil && at.IsLoopback() {
		server = w.pods[0]
	}
	p := rig.NewChild(w.T, nil, nil, "talk", w.pods[0].Path(), server.Path(), addr)
	t := &talk{w, p}
	t.expect("ready")
	return t
}

// do sends a command to the process, and returns its answer.
func (t *talk) do(format string, args ...any) string {
	t.w.T.Helper()
	if _, err := fmt.Fprintf(t.Stdin, format+"\n", args...); err != nil {
		t.w.T.Fatal(err)
	}
	line, err := t.ReadLine()
	if err != nil {
		t.w.T.Fatalf("after %s: %v", fmt.Sprintf(format, args...), err)
	}
	return strings.TrimSpace(line)
}

func (t *talk) expect(want string) {
	t.w.T.Helper()
	line, err := t.ReadLine()
	if err != nil || strings.TrimSpace(line) != want {
		t.w.T.Fatalf("the process says %q, %v instead of %q", line, err, want)
	}
}

// ask has the client send so many requests of so many bytes, and waits for the answers.
func (t *talk) ask(times, size int) {
	t.w.T.Helper()
	if got := t.do("ask %d %d", times, size); got != "ok" {
		t.w.T.Fatalf("%d requests of %d bytes: %s", times, size, got)
	}
}

func talkMain(args []string) int {
	if err := runTalk(args); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// ends are the two ends of a connection.
type ends struct{ client, server *net.TCPConn }

// connect opens a connection from one namespace to an address in another.
func connect(from, to *rig.Netns, addr string) (ends, error) {
	at, dialed := addr, addr
	if addr == "mapped" {
		at, dialed = "", server4 // an IPv6 socket that accepts both families
	}
	listener, err := listen(to, at)
	if err != nil {
		return ends{}, err
	}
	defer listener.Close()
	return connectTo(from, listener, dialed)
}

// connect opens a connection from a namespace to a listener that nothing else dials.
func connectTo(from *rig.Netns, listener net.Listener, addr string) (e ends, err error) {
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return e, err
	}
	return connectBy(&net.Dialer{Timeout: patience}, from, listener, net.JoinHostPort(addr, port))
}

func connectBy(dialer *net.Dialer, from *rig.Netns, listener net.Listener, at string) (e ends, err error) {
	err = from.Do(func() error {
		client, err := dialer.Dial("tcp", at)
		if err == nil {
			e.client = client.(*net.TCPConn)
		}
		return err
	})
	if err != nil {
		return e, err
	}
	server, err := listener.Accept()
	if err != nil {
		return e, err
	}
	e.server = server.(*net.TCPConn)
	return e, nil
}

func runTalk(args []string) error {
	from, err := rig.OpenNetns("client", args[0])
	if err != nil {
		return err
	}
	to, err := rig.OpenNetns("server", args[1])
	if err != nil {
		return err
	}
	e, err := connect(from, to, args[2])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		words := strings.Fields(commands.Text())
		var numbers []int
		for _, word := range words[1:] {
			n, err := strconv.Atoi(word)
			if err != nil {
				return err
			}
			numbers = append(numbers, n)
		}
		switch words[0] {
		case "redial":
			e, err = connect(from, to, args[2])
		case "reconnect":
			e, err = e.reconnect(to, args[2])
		case "md5", "ao", "multipath":
			e, err = unlike(words[0], from, to)
		default:
			err = e.do(words[0], numbers)
		}
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("ok")
	}
	return nil
}

func (e ends) do(what string, n []int) error {
	switch what {
	case "ask":
		return e.ask(n[0], n[1])
	case "stream":
		return e.stream(n[0], n[1])
	case "hoard":
		return e.hoard(n[0])
	case "whisper":
		return e.whisper(n[0])
	case "drain":
		return e.drain()
	case "babble":
		return e.babble(n[0])
	case "mutter":
		return e.mutter(n[0], n[1])
	case "burst":
		return e.burst(n[0], n[1])
	case "hark":
		babble := pattern(0, n[0])
		return errors.Join(hear(e.client, babble), hear(e.server, babble))
	case "splice":
		return e.spliced()
	case "late":
		return e.spliceLate()
	case "strand":
		return e.strand()
	case "recover":
		return errors.Join(say(e.client, e.server, 6, 100), hear(e.client, pattern(4, 100)))
	case "urgent":
		return e.urgent()
	case "receive":
		return e.receive(n[0])
	case "lowat":
		return e.low(n[0])
	case "sendfile", "sendmmsg":
		return e.sendBy(what)
	case "recvmmsg", "mapped", "uring":
		return e.readBy(what, n)
	case "zerocopy", "stamp", "stamping", "peekoff":
		return e.set(what)
	case "wait":
		return e.wait(n[0], 20*time.Millisecond)
	case "linger":
		return e.wait(n[0], time.Second)
	case "answer":
		return say(e.server, e.client, 3, n[0])
	case "give":
		return e.give()
	case "tls":
		return e.encrypt()
	case "finish":
		return e.finish(n[0])
	case "last":
		return e.last(n[0])
	case "abort":
		return e.abort(n[0])
	case "unread":
		return e.unread(n[0], n[1] > 0)
	case "cork":
		return e.cork(n[0])
	case "shut":
		return e.shut()
	case "leave":
		return e.leave()
	case "close":
		return errors.Join(e.client.Close(), e.server.Close())
	}
	return errors.New("what?")
}

// ask sends requests and answers them.
func (e ends) ask(times, size int) error {
	for i := range times {
		if err := say(e.client, e.server, i, size); err != nil {
			return fmt.Errorf("request %d: %w", i, err)
		}
		if err := say(e.server, e.client, i+1, size); err != nil {
			return fmt.Errorf("answer %d: %w", i, err)
		}
	}
	return nil
}

// say sends a message from one end to the other.
func say(from, to *net.TCPConn, seed, size int) error {
	message, got := pattern(seed, size), make([]byte, size)
	sent := make(chan error, 1)
	go func() {
		_, err := from.Write(message)
		sent <- err
	}()
	if err := to.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := io.ReadFull(to, got); err != nil {
		return err
	}
	if string(got) != string(message) {
		return errors.New("it is not what was said")
	}
	return <-sent
}

// stream has the client keep sending, and the server read.
func (e ends) stream(times, size int) error {
	sent := make(chan error, 1)
	go func() {
		for i := range times {
			if _, err := e.client.Write(pattern(i, size)); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	got := make([]byte, size)
	for i := range times {
		if err := e.server.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := io.ReadFull(e.server, got); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if string(got) != string(pattern(i, size)) {
			return fmt.Errorf("message %d: %w", i, errWrong)
		}
	}
	return <-sent
}

func pattern(seed, size int) []byte {
	message := make([]byte, size)
	for i := range message {
		message[i] = byte(seed + i*7)
	}
	return message
}

const hoarded = 8 << 10 // bytes per message

// hoard has the client send until it blocks or has sent so much, while the server reads nothing.
func (e ends) hoard(most int) error { return e.pileUp(most, func(int) error { return nil }) }

// whisper does the same, while the server sends a byte now and then, as an end that had read would.
func (e ends) whisper(most int) error {
	return e.pileUp(most, func(i int) error {
		if i%8 > 0 {
			return nil
		}
		return say(e.server, e.client, i, 1)
	})
}

func (e ends) pileUp(most int, also func(int) error) error {
	defer func() { _ = e.client.SetWriteDeadline(time.Time{}) }() // a failure here recurs below
	for i := 0; i*hoarded < most; i++ {
		if err := e.client.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			return err
		}
		n, err := e.client.Write(pattern(i, hoarded))
		piled += n
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err := errors.Join(err, also(i)); err != nil {
			return err
		}
	}
	if most < 1<<20 {
		return nil
	}
	return fmt.Errorf("it could send %d bytes that nobody reads", most)
}

// babble has both ends send a byte in turn, and neither read.
func (e ends) babble(times int) error {
	for _, b := range pattern(0, times) {
		for _, end := range []*net.TCPConn{e.client, e.server} {
			if _, err := end.Write([]byte{b}); err != nil {
				return err
			}
		}
	}
	return nil
}

// piled is how many bytes wait for drain.
var piled int

// drain has the server read what waits for it.
func (e ends) drain() error {
	for i := 0; piled > 0; i++ {
		want := pattern(i, hoarded)[:min(piled, hoarded)]
		got := make([]byte, len(want))
		if err := e.server.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := io.ReadFull(e.server, got); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if string(got) != string(want) {
			return fmt.Errorf("message %d: %w", i, errWrong)
		}
		piled -= len(want)
	}
	return nil
}

// raw runs f with the server's non-blocking descriptor, again when it becomes readable if f returns
// EAGAIN.
func (e ends) raw(f func(fd int) error) error {
	raw, err := e.server.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		failed = f(int(fd))
		return !errors.Is(failed, unix.EAGAIN)
	})
	return errors.Join(err, failed)
}

// spliced has the server read by splice.
func (e ends) spliced() error {
	if _, err := e.client.Write(pattern(1, 100)); err != nil {
		return err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	defer out.Close()
	if err := e.raw(func(fd int) error {
		_, err := unix.Splice(fd, nil, int(out.Fd()), nil, 100, unix.SPLICE_F_NONBLOCK)
		return err
	}); err != nil {
		return err
	}
	got := make([]byte, 100)
	if _, err := io.ReadFull(in, got); err != nil || string(got) != string(pattern(1, 100)) {
		return errors.Join(err, errWrong)
	}
	return nil
}

// urgent has the client send an urgent byte.
func (e ends) urgent() error {
	raw, err := e.client.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Write(func(fd uintptr) bool { failed = unix.Sendto(int(fd), []byte{7}, unix.MSG_OOB, nil); return true }); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	got := make([]byte, 1)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		err := e.raw(func(fd int) error {
			_, _, err := unix.Recvfrom(fd, got, unix.MSG_OOB)
			if errors.Is(err, unix.EAGAIN) {
				return unix.EINTR
			}
			return err
		})
		if err == nil && got[0] == 7 {
			return nil
		}
	}
	return errors.New("the urgent byte has not arrived")
}

// receive has the server read by recv with flags.
func (e ends) receive(flags int) error {
	if _, err := e.client.Write(pattern(1, 100)); err != nil {
		return err
	}
	got := make([]byte, 100)
	return e.raw(func(fd int) error {
		_, _, err := unix.Recvfrom(fd, got, flags)
		return err
	})
}

// low sets how many bytes must have arrived before the server is told.
func (e ends) low(bytes int) error {
	return e.raw(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes) })
}

// wait has the server block in a read, as a process with a blocking socket does, before the client
// sends.
func (e ends) wait(size int, until time.Duration) error {
	file, err := e.server.File()
	if err != nil {
		return err
	}
	defer file.Close()
	fd := int(file.Fd())
	if err := unix.SetNonblock(fd, false); err != nil {
		return err
	}
	defer func() { _ = unix.SetNonblock(fd, true) }() // the Go runtime needs it non-blocking
	heard := make(chan error, 1)
	go func() {
		got := make([]byte, size)
		for at := 0; at < size; {
			n, err := unix.Read(fd, got[at:])
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
				continue // a signal of the Go runtime
			}
			if err != nil || n == 0 {
				heard <- errors.Join(err, io.ErrUnexpectedEOF)
				return
			}
			at += n
		}
		if string(got) != string(pattern(5, size)) {
			heard <- errWrong
			return
		}
		heard <- nil
	}()
	time.Sleep(until) // time for it to block; if it has not yet, nothing is tested
	if _, err := e.client.Write(pattern(5, size)); err != nil {
		return err
	}
	select {
	case err := <-heard:
		return err
	case <-time.After(patience):
		return errors.New("the reader hears nothing")
	}
}
