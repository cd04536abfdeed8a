// Package sctp plays both ends of SCTP by its packets, where the kernel does not have the protocol: servers that
// answer a handshake, and clients that complete one.
package sctp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Types of chunks (RFC 9260, section 3.2).
const (
	initChunk       = 1
	initAckChunk    = 2
	abortChunk      = 6
	cookieEchoChunk = 10
	cookieAckChunk  = 11
)

const (
	headerLength = 12 // of a packet
	cookieType   = 7  // of the parameter with the cookie
	resend       = time.Second
)

// packet is a packet of SCTP with one chunk, which is all that a handshake needs.
type packet struct {
	source, destination uint16
	tag                 uint32 // with which the receiver verifies
	chunk               byte
	value               []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode returns the bytes of the packet.
func (p packet) encode() []byte {
	b := binary.BigEndian.AppendUint16(nil, p.source)
	b = binary.BigEndian.AppendUint16(b, p.destination)
	b = binary.BigEndian.AppendUint32(b, p.tag)
	b = append(b, 0, 0, 0, 0, p.chunk, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(p.value)))
	b = append(b, p.value...)
	b = append(b, make([]byte, -len(b)&3)...)
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, castagnoli))
	return b
}

// decode returns the packet and its first chunk. It is false for what is cut short or has a wrong checksum.
func decode(b []byte) (packet, bool) {
	if len(b) < headerLength+4 {
		return packet{}, false
	}
	sum := binary.LittleEndian.Uint32(b[8:])
	zeroed := slices.Clone(b)
	clear(zeroed[8:12])
	length := int(binary.BigEndian.Uint16(b[headerLength+2:]))
	if crc32.Checksum(zeroed, castagnoli) != sum || length < 4 || headerLength+length > len(b) {
		return packet{}, false
	}
	return packet{
		source: binary.BigEndian.Uint16(b), destination: binary.BigEndian.Uint16(b[2:]), tag: binary.BigEndian.Uint32(b[4:]),
		chunk: b[headerLength], value: b[headerLength+4 : headerLength+length],
	}, true
}

// beginning returns the value of INIT and of INIT ACK: whoever sends it expects the tag in what it receives.
func beginning(tag uint32, cookie []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, tag)
	b = binary.BigEndian.AppendUint32(b, 65536) // window
	b = append(b, 0, 1, 0, 1)                   // streams, both ways
	b = binary.BigEndian.AppendUint32(b, tag)   // the first number of data
	if cookie == nil {
		return b
	}
	b = binary.BigEndian.AppendUint16(b, cookieType)
	b = binary.BigEndian.AppendUint16(b, uint16(4+len(cookie)))
	return append(b, cookie...)
}

// answer returns what a server of some ports answers, which is nothing to most packets. It remembers nothing: the
// cookie has the client's tag, and its own tag follows from that.
func answer(in packet, ports []uint16) (packet, bool) {
	out := packet{source: in.destination, destination: in.source}
	switch {
	case !slices.Contains(ports, in.destination):
		return out, false
	case in.chunk == initChunk && len(in.value) >= 16:
		out.chunk, out.tag = initAckChunk, binary.BigEndian.Uint32(in.value)
		out.value = beginning(^out.tag, in.value[:4])
		return out, true
	case in.chunk == cookieEchoChunk && len(in.value) == 4:
		out.chunk, out.tag = cookieAckChunk, binary.BigEndian.Uint32(in.value)
		return out, in.tag == ^out.tag
	default:
		return out, false
	}
}

// Serve answers handshakes to the ports, over both families where there are both.
func Serve(ports []uint16) error {
	failed, listening := make(chan error), false
	var problems error
	for _, network := range []string{"ip4:132", "ip6:132"} {
		conn, err := net.ListenPacket(network, "")
		if err != nil {
			problems = errors.Join(problems, err)
			continue
		}
		listening = true
		go func() { failed <- serveOn(conn, ports) }()
	}
	if !listening {
		return fmt.Errorf("serve SCTP: %w", problems)
	}
	return <-failed
}

func serveOn(conn net.PacketConn, ports []uint16) error {
	buf := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return fmt.Errorf("serve SCTP: %w", err)
		}
		in, ok := decode(buf[:n])
		if !ok {
			continue
		}
		if out, ok := answer(in, ports); ok {
			// A client that is gone or out of reach is no reason to stop.
			if _, err := conn.WriteTo(out.encode(), from); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
}

// Dial does the handshake with a server and ends the association at once. An error begins with the word that `agnhost
// connect` has for it: TIMEOUT if nothing answers.
func Dial(to string, timeout time.Duration) error {
	host, service, err := net.SplitHostPort(to)
	if err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	addr, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	network := "ip4:132"
	if addr.IP.To4() == nil {
		network = "ip6:132"
	}
	conn, err := net.DialIP(network, nil, addr)
	if err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	defer conn.Close()
	err = shake(conn, uint16(port), time.Now().Add(timeout))
	var late net.Error
	switch {
	case errors.As(err, &late) && late.Timeout():
		return errors.New("TIMEOUT")
	case err != nil:
		return fmt.Errorf("OTHER: %w", err)
	default:
		return nil
	}
}

// shake does a client's part of the handshake, and ends the association at once.
func shake(conn *net.IPConn, port uint16, deadline time.Time) error {
	tag := max(1, rand.Uint32())
	out := packet{source: uint16(32768 + rand.N(28000)), destination: port, chunk: initChunk, value: beginning(tag, nil)}
	buf := make([]byte, 65536)
	for {
		if _, err := conn.Write(out.encode()); err != nil {
			return err
		}
		in, err := await(conn, buf, out, tag, deadline)
		switch {
		case err != nil:
			return err
		case in.chunk == initAckChunk && len(in.value) >= 20:
			out.chunk, out.tag, out.value = cookieEchoChunk, binary.BigEndian.Uint32(in.value), slices.Clone(in.value[20:])
		case in.chunk == cookieAckChunk:
			out.chunk, out.value = abortChunk, nil
			_, err := conn.Write(out.encode())
			return err
		}
	}
}

// await returns the answer to a packet, or an empty packet when it is time to send that again.
func await(conn *net.IPConn, buf []byte, sent packet, tag uint32, deadline time.Time) (packet, error) {
	again := time.Now().Add(resend)
	if err := conn.SetReadDeadline(earlier(again, deadline)); err != nil {
		return packet{}, err
	}
	want := byte(initAckChunk)
	if sent.chunk == cookieEchoChunk {
		want = cookieAckChunk
	}
	for {
		n, _, err := conn.ReadFrom(buf) // Read would leave an IPv4 header in front
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() && time.Now().Before(deadline) {
			return packet{}, nil
		}
		if err != nil {
			return packet{}, err
		}
		in, ok := decode(buf[:n])
		if ok && in.source == sent.destination && in.destination == sent.source && in.tag == tag && in.chunk == want {
			return in, nil
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Supported reports whether the kernel has the protocol.
func Supported() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		unix.Close(fd)
	}
	return !errors.Is(err, unix.EPROTONOSUPPORT)
}
