package health

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// held is how many connections an attacker of these tests keeps open, or tries to.
const held = 600

// hold connects from a source, which may be any address of loopback, and sends the text.
func hold(t *testing.T, source, address, text string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: 10 * time.Second}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_, _ = io.WriteString(conn, text) // the server may have hung up already
	return conn
}

// probed checks that a client is answered as fast as load balancers expect at least.
func probed(t *testing.T, source, address string) {
	t.Helper()
	conn := hold(t, source, address, "GET /proxyMode HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("a probe from %s gets no answer: %v", source, err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("a probe from %s gets %d", source, response.StatusCode)
	}
}

// TestHeldConnections checks that nobody silences a server by keeping connections open, whether they
// ask and stay, never send, or send a little at a time, from one source or from many, and that the
// server's connections stay few meanwhile.
func TestHeldConnections(t *testing.T) {
	const whole = "GET /proxyMode HTTP/1.1\r\nHost: x\r\n\r\n"
	one := func(int) string { return "127.0.0.2" }
	tests := []struct {
		name   string
		source func(i int) string
		text   string
	}{
		{"that have asked", one, whole},
		{"that never send", one, ""},
		{"that send the start of a request", one, whole[:10]},
		{"of many sources", func(i int) string { return fmt.Sprintf("127.1.%d.%d", i/200, i%200+1) }, whole[:1]},
		{"of the probe's own source", func(int) string { return "127.0.0.1" }, whole[:1]},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var evicted atomic.Int64
			cfg := config("127.0.0.1:0")
			cfg.Evicted = func() { evicted.Add(1) }
			s := NewServer(cfg)
			address := listening(t, s)
			for i := range held {
				hold(t, tt.source(i), address, tt.text)
				if i%50 == 0 {
					probed(t, "127.0.0.1", address)
				}
			}
			probed(t, "127.0.0.1", address)
			if n := s.cfg.limit.len(); n > maxConnections {
				t.Errorf("%d connections are open", n)
			}
			if tt.text != whole && evicted.Load() == 0 {
				t.Error("no connection is counted as one that gave way")
			}
		})
	}
}

func (l *limiter) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// TestServiceChecksShareOneLimit checks that open files do not grow with the number of Services: all
// their ports together have as many connections as one server.
func TestServiceChecksShareOneLimit(t *testing.T) {
	b := newBalancer(t)
	ports := freePorts(t, 8)
	for i, port := range ports {
		b.set(fmt.Sprint("web", i), ServiceCheck{Network: "tcp4", Port: port, Endpoints: 1})
		b.becomes(t, port, 200)
	}
	for i := range held {
		hold(t, fmt.Sprintf("127.1.0.%d", i%200+1), fmt.Sprintf("127.0.0.1:%d", ports[i%len(ports)]), "")
	}
	for _, port := range ports {
		if code, _, _ := ask(t, "127.0.0.1", port); code != 200 {
			t.Errorf("port %d answers %d", port, code)
		}
	}
	if n := b.limit.len(); n > maxConnections {
		t.Errorf("%d connections are open", n)
	}
}

// TestSlowRequests checks that a request which comes a byte at a time does not keep its connection.
func TestSlowRequests(t *testing.T) {
	address := listening(t, NewServer(config("127.0.0.1:0")))
	conn := hold(t, "127.0.0.2", address, "GET /proxyMode HTTP/1.1\r\n")
	began := time.Now()
	drip := time.NewTicker(50 * time.Millisecond)
	defer drip.Stop()
	for _, err := io.WriteString(conn, "a"); err == nil; _, err = io.WriteString(conn, "a") {
		if time.Since(began) > 3*readTimeout {
			t.Fatalf("the connection is still open after %v", time.Since(began))
		}
		<-drip.C
	}
}

// TestOneRequestPerConnection checks that a client which has its answer is hung up on.
func TestOneRequestPerConnection(t *testing.T) {
	address := listening(t, NewServer(config("127.0.0.1:0")))
	conn := hold(t, "127.0.0.2", address, "GET /proxyMode HTTP/1.1\r\nHost: x\r\n\r\n")
	if err := conn.SetReadDeadline(time.Now().Add(readTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays open after the answer")
	}
}

// TestEviction checks who gives way.
func TestEviction(t *testing.T) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	limited := limitedListener{listener, newLimiter(nil)}
	enter := func(source string) *limitedConn {
		t.Helper()
		hold(t, source, listener.Addr().String(), "")
		conn, err := limited.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn.(*limitedConn)
	}
	is := func(c *limitedConn) bool { return c.SetDeadline(time.Time{}) == nil }
	quiet := enter("127.0.0.9")
	var greedy []*limitedConn
	for range maxPerSource + 1 {
		greedy = append(greedy, enter("127.0.0.2"))
	}
	if is(greedy[0]) || !is(greedy[1]) || !is(quiet) {
		t.Error("a source with too many connections did not lose its oldest one")
	}
	for i := range maxConnections - maxPerSource {
		enter(fmt.Sprintf("127.1.0.%d", i%200+1))
	}
	if is(greedy[1]) || !is(greedy[2]) || !is(quiet) {
		t.Error("the source that has most did not lose its oldest connection")
	}
	if n := limited.limit.len(); n != maxConnections {
		t.Errorf("%d connections count, want %d", n, maxConnections)
	}
	for _, c := range append(greedy, quiet) {
		c.Close()
		c.Close()
	}
	if have, want := limited.limit.len(), maxConnections-maxPerSource; have != want {
		t.Errorf("%d connections count after some have been closed, want %d", have, want)
	}
}

func TestSources(t *testing.T) {
	for _, tt := range []struct{ remote, want string }{
		{"192.0.2.7:1", "192.0.2.7/32"},
		{"[::ffff:192.0.2.7]:1", "192.0.2.7/32"},
		{"[2001:db8:0:1:2:3:4:5]:1", "2001:db8:0:1::/64"},
		{"[2001:db8:0:2::1]:1", "2001:db8:0:2::/64"},
		{"[fe80::1%eth0]:1", "fe80::/64"},
	} {
		remote := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(tt.remote))
		if have, _ := sourceOf(remote); have.String() != tt.want {
			t.Errorf("%s counts as %s, want %s", tt.remote, have, tt.want)
		}
	}
}

// TestEachConnectionGivesWayOnce checks that of those which come at once no two choose the same one
// to give way, so that one too many would stay.
func TestEachConnectionGivesWayOnce(t *testing.T) {
	var evicted atomic.Int64
	limit := newLimiter(func() { evicted.Add(1) })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var conns []*net.TCPConn
	for range held {
		hold(t, "127.0.0.1", listener.Addr().String(), "")
		conn, err := listener.(*net.TCPListener).AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conns = append(conns, conn)
	}
	var all sync.WaitGroup
	for _, conn := range conns {
		all.Go(func() { limit.admit(conn) })
	}
	all.Wait()
	if n := limit.len(); n != maxPerSource || evicted.Load() != held-maxPerSource {
		t.Errorf("of %d connections at once %d stay and %d gave way, want %d to stay", held, n, evicted.Load(), maxPerSource)
	}
}
