package programs

import (
	"fmt"
	"io"
	"net"
	"testing"
)

// TestCopy checks that a Go proxy that uses io.Copy is left to TCP before any byte bypasses it:
// io.Copy reads by splice, which does not see data that bypassed TCP. It reads in no other way, so
// its connections are not even found.
func TestCopy(t *testing.T) {
	if !*all {
		t.Skip("-all runs it")
	}
	w := newThreePods(t)
	for _, version := range []int{1, 2} {
		w.as(there, root, "serve", fmt.Sprintf(":%d", app))
		w.listens(there, app)
		w.as(between, root, "copy", fmt.Sprintf(":%d", app), fmt.Sprintf("%s:%d", address(there, false), app))
		w.listens(between, app)
		c := w.client(here, fmt.Sprintf("http://%s:%d", address(between, false), app), version, 4, 1)
		c.begin(order{Long: *load, Sizes: []int{1, 300, 5000, 60_000, 1 << 20}, Sends: []int{10, 2000, 20_000}})
		w.disturb(*load)
		a := c.done()
		w.wantRequests(fmt.Sprintf("io.Copy, HTTP/%d", version), a.Requests, a.Failed, expectation{none: true, may: []string{"splice", "program"}})
		w.gone()
	}
}

func copyMain(args []string) int {
	fmt.Println(hosted(args[0], func(l net.Listener) error {
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			go copyBoth(conn.(*net.TCPConn), args[1])
		}
	}))
	return 1
}

func copyBoth(from *net.TCPConn, addr string) {
	defer from.Close()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer conn.Close()
	to := conn.(*net.TCPConn)
	other := make(chan struct{})
	go func() {
		copyOne(to, from)
		close(other)
	}()
	copyOne(from, to)
	<-other
}

// copyOne forwards what one connection sends. The other ends see any errors.
func copyOne(from, to *net.TCPConn) {
	_, _ = io.Copy(to, from)
	_ = to.CloseWrite()
}
