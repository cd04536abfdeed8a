package health

import (
	"net"
	"net/netip"
	"sync"
)

const (
	// maxConnections is how many connections of all clients are open at once, and maxPerSource how
	// many of one. An honest client is answered within milliseconds of connecting and then hung up
	// on, so one that needs more is holding connections open.
	maxConnections = 256
	maxPerSource   = 64

	// An IPv6 host has at least 2^64 addresses, so one prefix of this length counts as one source.
	sourceBitsV6 = 64
)

// limiter bounds the open connections of one listener or several. Whoever connects gets in: what
// gives way is the oldest connection of the same source once that has too many, or else of the
// source that has most; within a source, of the address that has most. To refuse newcomers instead would let anyone who keeps connections open
// silence the server for everybody, probes of load balancers included.
type limiter struct {
	evicted func() // called for each connection that gave way; nil for none

	mu    sync.Mutex
	open  []*limitedConn // oldest first
	count map[netip.Prefix]int
}

func newLimiter(evicted func()) *limiter {
	return &limiter{evicted: evicted, count: map[netip.Prefix]int{}}
}

// limitedListener is a listener whose connections count in a limiter.
type limitedListener struct {
	*net.TCPListener
	limit *limiter
}

// Accept waits for a connection, and for nothing else.
func (l limitedListener) Accept() (net.Conn, error) {
	conn, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return l.limit.admit(conn), nil
}

// limitedConn is a connection that counts until it is closed. It embeds a TCPConn so that the HTTP
// server can shut down the sending side before it closes the connection.
type limitedConn struct {
	*net.TCPConn
	limit  *limiter
	source netip.Prefix
	addr   netip.Addr
}

// Close closes the connection.
func (c *limitedConn) Close() error {
	c.limit.leave(c)
	return c.TCPConn.Close()
}

// admit counts a connection, and closes another one if there are too many.
func (l *limiter) admit(conn *net.TCPConn) *limitedConn {
	c := &limitedConn{TCPConn: conn, limit: l}
	c.source, c.addr = sourceOf(conn.RemoteAddr())
	l.mu.Lock()
	l.open = append(l.open, c)
	l.count[c.source]++
	victim := l.excess(c.source)
	if victim != nil {
		l.remove(victim) // now, or the next newcomer would choose it too
	}
	l.mu.Unlock()
	if victim == nil {
		return c
	}
	// Nothing of a connection that gives way should stay in the kernel, which would keep what is
	// unsent and then a state of its own.
	_ = victim.SetLinger(0)
	_ = victim.Close()
	if l.evicted != nil {
		l.evicted()
	}
	return c
}

// excess returns the connection that has to give way after one from source was added, or nil.
func (l *limiter) excess(source netip.Prefix) *limitedConn {
	if l.count[source] > maxPerSource {
		return l.oldestOf(source)
	}
	if len(l.open) <= maxConnections {
		return nil
	}
	most := 0
	for _, n := range l.count {
		most = max(most, n)
	}
	return l.oldestOf(l.oldest(func(c *limitedConn) bool { return l.count[c.source] == most }).source)
}

// oldestOf returns the oldest connection of the address that has most, of those in a source. So hosts
// that share a prefix with one that keeps connections open do not give way to it, unless that takes
// ever new addresses.
func (l *limiter) oldestOf(source netip.Prefix) *limitedConn {
	of := map[netip.Addr]int{}
	most := 0
	for _, c := range l.open {
		if c.source == source {
			of[c.addr]++
			most = max(most, of[c.addr])
		}
	}
	return l.oldest(func(c *limitedConn) bool { return c.source == source && of[c.addr] == most })
}

func (l *limiter) oldest(is func(*limitedConn) bool) *limitedConn {
	for _, c := range l.open {
		if is(c) {
			return c
		}
	}
	return nil
}

// leave stops counting a connection. It may be called again.
func (l *limiter) leave(gone *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(gone)
}

func (l *limiter) remove(gone *limitedConn) {
	for i, c := range l.open {
		if c != gone {
			continue
		}
		l.open = append(l.open[:i], l.open[i+1:]...)
		if l.count[c.source]--; l.count[c.source] == 0 {
			delete(l.count, c.source)
		}
		return
	}
}

// sourceOf returns what counts as the source of a connection, an IPv4 address or the prefix of an IPv6
// address, and the address itself.
func sourceOf(remote net.Addr) (netip.Prefix, netip.Addr) {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}, netip.Addr{} // the kernel no longer knows, since the client is gone
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = sourceBitsV6
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}, addr
	}
	return prefix, addr
}
