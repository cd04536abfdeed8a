package health

import (
	"net"
	"sync"
)

// bounded is a listener that limits the number of open connections; the others wait in the kernel's
// queue. Accept returns connections that still embed a TCPConn, so that the HTTP server can shut
// down their sending side before it closes them.
type bounded struct {
	*net.TCPListener
	room   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newBounded(listener *net.TCPListener, most int) *bounded {
	return &bounded{TCPListener: listener, room: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept waits for room, then for a connection.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.room <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	conn, err := b.AcceptTCP()
	if err != nil {
		<-b.room
		return nil, err
	}
	return &boundedConn{TCPConn: conn, leave: func() { <-b.room }}, nil
}

// Close closes the listener and ends a pending Accept, even one that waits for room.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.TCPListener.Close()
}

// boundedConn makes room for another connection when it is closed.
type boundedConn struct {
	*net.TCPConn
	leave func()
	once  sync.Once
}

// Close closes the connection.
func (c *boundedConn) Close() error {
	err := c.TCPConn.Close()
	c.once.Do(c.leave)
	return err
}
