package outside

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// patience is how long something expected may take, and hush how long to wait for something that
// must not happen.
const (
	patience = 10 * time.Second
	hush     = 1500 * time.Millisecond
)

// order tells a process what to do with sockets.
type order struct {
	Serve netip.AddrPort // echo here, by TCP and UDP
	Dial  netip.AddrPort // send Bytes bytes there and expect them back
	UDP   bool
	SCTP  bool   // Serve: also by SCTP
	From  uint16 // the client's port; 0 for any
	Bytes int
	NoSum bool // UDP without checksums
	Brief bool // expect no answer
	Cut   bool // routers may fragment datagrams
	// Segment sends the bytes at once as datagrams of this size, until one is answered or there is
	// an error.
	Segment int
	// Datagrams is the number of datagrams to send in the fragments of Pieces, each with Bytes
	// bytes.
	Datagrams int
	Pieces    []piece
	Part      int  // bytes of a datagram in each fragment; 0 for the default
	Backwards bool // Serve: answer in fragments, the first one last
	Reset     bool // Dial: end the connection by a reset
	// Dial: keep the connection, or UDP socket, under this number; without Dial, use the kept one.
	Hold int
	End  bool // Hold: close that one
}

// seen is the result: the client as the server sees it, and the server that answered.
type seen struct {
	Server, Client netip.AddrPort
}

type sockets struct {
	held map[int]net.Conn
}

func newSocketsMain([]string) (func(order) (seen, error), error) {
	s := &sockets{held: map[int]net.Conn{}}
	return s.do, nil
}

func (s *sockets) do(o order) (seen, error) {
	switch {
	case o.Serve.IsValid():
		if o.SCTP {
			if err := rig.ServeSCTP(o.Serve, func(conn net.Conn) { echo(conn, o.Serve) }); err != nil {
				return seen{}, err
			}
		}
		return seen{}, serve(o)
	case o.Pieces != nil:
		return o.pieces()
	case o.Segment != 0:
		return o.segments()
	case o.End:
		return seen{}, s.held[o.Hold].Close()
	case o.Hold != 0 && !o.Dial.IsValid():
		return o.ask(s.held[o.Hold])
	}
	conn, err := o.dial()
	if err != nil {
		return seen{}, err
	}
	if o.Hold != 0 {
		s.held[o.Hold] = conn
	} else {
		defer conn.Close()
	}
	if tcp, ok := conn.(*net.TCPConn); ok && o.Reset {
		if err := tcp.SetLinger(0); err != nil {
			return seen{}, err
		}
	}
	return o.ask(conn)
}

// ask sends something and expects it back.
func (o order) ask(conn net.Conn) (seen, error) {
	if _, ok := conn.(*net.UDPConn); ok {
		return o.datagram(conn)
	}
	return o.exchange(conn)
}

func (o order) dial() (net.Conn, error) {
	if o.UDP {
		return o.dialer().Dial("udp", o.Dial.String())
	}
	if o.SCTP {
		return rig.DialSCTP(clientAddr.at(o.Dial.Addr().Is6(), o.From), o.Dial, o.patience())
	}
	return o.dialer().Dial("tcp", o.Dial.String())
}

func (o order) patience() time.Duration {
	if o.Brief {
		return hush
	}
	return patience
}

func (o order) dialer() *net.Dialer {
	return &net.Dialer{Timeout: o.patience(), Control: o.prepare, LocalAddr: o.from()}
}

func (o order) from() net.Addr {
	switch {
	case o.From == 0:
		return nil
	case o.UDP:
		return &net.UDPAddr{Port: int(o.From)}
	}
	return &net.TCPAddr{Port: int(o.From)}
}

// prepare sets the options that a socket needs before it is bound.
func (o order) prepare(network, _ string, raw syscall.RawConn) (err error) {
	controlErr := raw.Control(func(fd uintptr) {
		if network == "udp6" { // otherwise it refuses datagrams without a checksum
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
		}
		if o.Cut && err == nil {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
		}
		if !o.NoSum || err != nil {
			return
		}
		if network == "udp6" {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_TX, 1)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1)
		}
	})
	if controlErr != nil {
		return controlErr
	}
	return err
}

// header is the length of what a server sends before the echo: its own address and its client's.
const header = 2 * 18

func appendAddr(to []byte, addr netip.AddrPort) []byte {
	a := addr.Addr().As16()
	return binary.BigEndian.AppendUint16(append(to, a[:]...), addr.Port())
}

func readAddr(from []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(from)).Unmap(), binary.BigEndian.Uint16(from[16:]))
}

// text returns the bytes to send: no two parts are alike, so swapped parts are noticed.
func text(n int) []byte {
	b := make([]byte, 0, n+8)
	for i := uint64(0); len(b) < n; i++ {
		b = binary.BigEndian.AppendUint64(b, i*0x9e3779b97f4a7c15)
	}
	return b[:n]
}

// exchange sends a length and that many bytes, and reads the answer.
func (o order) exchange(conn net.Conn) (seen, error) {
	if err := conn.SetDeadline(time.Now().Add(o.patience())); err != nil {
		return seen{}, err
	}
	want := text(o.Bytes)
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(append(binary.BigEndian.AppendUint64(nil, uint64(len(want))), want...))
		sent <- err
	}()
	have := make([]byte, header+len(want))
	if _, err := io.ReadFull(conn, have); err != nil {
		return seen{}, errors.Join(fmt.Errorf("read answer: %w", err), <-sent) // a socket reports its error only once, to either
	}
	if err := <-sent; err != nil {
		return seen{}, err
	}
	return checkBytes(have, want)
}

func checkBytes(have, want []byte) (seen, error) {
	if len(have) < header || !bytes.Equal(have[header:], want) {
		return seen{}, fmt.Errorf("the answer of %d bytes is not what was sent", len(have))
	}
	return seen{Server: readAddr(have), Client: readAddr(have[18:])}, nil
}

func (o order) datagram(conn net.Conn) (seen, error) {
	want, have := text(o.Bytes), make([]byte, 1<<16)
	if _, err := conn.Write(want); err != nil {
		return seen{}, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(o.patience())); err != nil {
		return seen{}, err
	}
	n, err := conn.Read(have)
	if err != nil {
		return seen{}, err
	}
	return checkBytes(have[:n], want)
}

// serve echoes as long as the process lives.
func serve(o order) error {
	listener, err := net.Listen("tcp", o.Serve.String())
	if err != nil {
		return err
	}
	config := net.ListenConfig{Control: o.prepare}
	packets, err := config.ListenPacket(context.Background(), "udp", o.Serve.String())
	if err != nil {
		return err
	}
	go rig.Serve(listener, func(conn net.Conn) { echo(conn, o.Serve) })
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				continue // an ICMP error about an earlier answer
			}
			client := from.(*net.UDPAddr).AddrPort()
			reply := append(appendAddr(appendAddr(nil, o.Serve), client), buffer[:n]...)
			if o.Backwards {
				_ = backwards(o.Serve, client, reply)
				continue
			}
			_, _ = packets.WriteTo(reply, from)
		}
	}()
	return nil
}

func echo(conn net.Conn, at netip.AddrPort) {
	defer conn.Close()
	client := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	for {
		var length [8]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		if _, err := conn.Write(appendAddr(appendAddr(nil, at), client)); err != nil {
			return
		}
		if _, err := io.CopyN(conn, conn, int64(binary.BigEndian.Uint64(length[:]))); err != nil {
			return
		}
	}
}
