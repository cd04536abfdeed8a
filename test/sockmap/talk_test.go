package sockmap

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// cookie returns the cookie of a network namespace.
func (w *world) cookie(ns *rig.Netns) (cookie uint64) {
	w.t.Helper()
	w.must(ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	}))
	return cookie
}

// talk is a connection between the pods, of which both ends are in one process of the cgroup.
type talk struct {
	w *world
	*rig.Process
}

// dial opens a connection to an address of the second pod.
func (w *world) dial(addr string) *talk {
	w.t.Helper()
	p := rig.NewChild(w.t, w.cgroup, nil, "talk", w.pods[0].Path(), w.pods[1].Path(), addr)
	t := &talk{w, p}
	t.expect("ready")
	return t
}

// do has the process do something, and returns what it says when it has.
func (t *talk) do(format string, args ...any) string {
	t.w.t.Helper()
	if _, err := fmt.Fprintf(t.Stdin, format+"\n", args...); err != nil {
		t.w.t.Fatal(err)
	}
	line, err := t.ReadLine()
	if err != nil {
		t.w.t.Fatalf("after %s: %v", fmt.Sprintf(format, args...), err)
	}
	return strings.TrimSpace(line)
}

func (t *talk) expect(want string) {
	t.w.t.Helper()
	line, err := t.ReadLine()
	if err != nil || strings.TrimSpace(line) != want {
		t.w.t.Fatalf("the process says %q, %v instead of %q", line, err, want)
	}
}

// ask has the client ask so many times, with messages of so many bytes.
func (t *talk) ask(times, size int) {
	t.w.t.Helper()
	if got := t.do("ask %d %d", times, size); got != "ok" {
		t.w.t.Fatalf("%d requests of %d bytes: %s", times, size, got)
	}
}

func talkMain(args []string) int {
	if err := runTalk(args); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// ends are those of a connection.
type ends struct{ client, server *net.TCPConn }

// connect opens a connection from one namespace to an address in another.
func connect(from, to *rig.Netns, addr string) (ends, error) {
	listener, err := listen(to, addr)
	if err != nil {
		return ends{}, err
	}
	defer listener.Close()
	return meet(from, listener)
}

// meet opens a connection from a namespace to a listener that nobody else dials.
func meet(from *rig.Netns, listener net.Listener) (e ends, err error) {
	err = from.Do(func() error {
		client, err := net.DialTimeout("tcp", listener.Addr().String(), patience)
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
		if err := e.do(words[0], numbers); err != nil {
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
	}
	return errors.New("what?")
}

// ask asks and answers.
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

// say has one end tell the other something.
func say(from, to *net.TCPConn, seed, size int) error {
	message, got := make([]byte, size), make([]byte, size)
	for i := range message {
		message[i] = byte(seed + i*7)
	}
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
