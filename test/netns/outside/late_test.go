package outside

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// piece is a fragment of one of several datagrams.
type piece struct{ Datagram, Index int }

// part is the default number of bytes of a datagram in each fragment.
const part = 1000

// pieces sends datagrams in fragments, in the order of o.Pieces, and expects an answer to each
// datagram.
func (o order) pieces() (answer seen, err error) {
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			err = errors.Join(err, conn.Close())
		}
	}()
	var cut [][][]byte
	for range o.Datagrams {
		conn, err := o.dialer().Dial("udp", o.Dial.String())
		if err != nil {
			return seen{}, err
		}
		conns = append(conns, conn)
		cut = append(cut, fragmentsOf(conn.LocalAddr().(*net.UDPAddr).AddrPort(), o.Dial, text(o.Bytes), cmp.Or(o.Part, part)))
	}
	for _, p := range o.Pieces {
		if err := sendRaw(o.Dial.Addr(), cut[p.Datagram][p.Index:][:1]); err != nil {
			return seen{}, err
		}
	}
	for i, conn := range conns {
		have := make([]byte, 1<<16)
		if err := conn.SetReadDeadline(time.Now().Add(o.patience())); err != nil {
			return seen{}, err
		}
		n, err := conn.Read(have)
		if err != nil {
			return seen{}, fmt.Errorf("datagram %d: %w", i, err)
		}
		if answer, err = checkBytes(have[:n], text(o.Bytes)); err != nil {
			return seen{}, fmt.Errorf("datagram %d: %w", i, err)
		}
	}
	return answer, nil
}

// datagramNumber is the IP identification of the last datagram of this process. It counts up, as
// hosts do: a random one may repeat that of a datagram a few seconds ago, and the fragments would
// be mixed up.
var datagramNumber atomic.Uint32

// fragmentsOf returns the packets of a datagram, with part bytes of it in each; part must be a
// multiple of eight.
func fragmentsOf(from, to netip.AddrPort, payload []byte, part int) (list [][]byte) {
	length := uint16(8 + len(payload))
	header := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from.Port()), to.Port())
	header = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(header, length), 0)
	whole := append(header, payload...)
	source, dest := from.Addr().Unmap(), to.Addr()
	pseudo := append(append(source.AsSlice(), dest.AsSlice()...), 0, unix.IPPROTO_UDP, byte(length>>8), byte(length))
	binary.BigEndian.PutUint16(whole[6:], sumOf(append(pseudo, whole...)))
	for id, at := datagramNumber.Add(1), 0; at < len(whole); at += part {
		content, more := whole[at:min(at+part, len(whole))], uint16(0)
		if at+part < len(whole) {
			more = 1
		}
		var packet []byte
		if source.Is4() {
			packet = []byte{0x45, 0, 0, 0, byte(id >> 8), byte(id), 0, 0, 64, unix.IPPROTO_UDP, 0, 0}
			binary.BigEndian.PutUint16(packet[2:], uint16(20+len(content)))
			binary.BigEndian.PutUint16(packet[6:], more<<13|uint16(at/8))
			packet = append(append(packet, source.AsSlice()...), dest.AsSlice()...)
		} else {
			packet = binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(8+len(content)))
			packet = append(append(append(packet, unix.IPPROTO_FRAGMENT, 64), source.AsSlice()...), dest.AsSlice()...)
			packet = binary.BigEndian.AppendUint16(append(packet, unix.IPPROTO_UDP, 0), uint16(at)|more)
			packet = binary.BigEndian.AppendUint32(packet, id)
		}
		list = append(list, append(packet, content...))
	}
	return list
}

// sumOf returns the internet checksum.
func sumOf(b []byte) uint16 {
	sum := uint32(0)
	for len(b) > 1 {
		sum, b = sum+uint32(binary.BigEndian.Uint16(b)), b[2:]
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// sendRaw sends packets with the headers that they already have.
func sendRaw(to netip.Addr, packets [][]byte) error {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.As16()})
	if to.Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Addr: to.As4()}
	}
	socket, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return fmt.Errorf("open raw socket: %w", err)
	}
	for _, packet := range packets {
		err = errors.Join(err, unix.Sendto(socket, packet, 0, address))
	}
	return errors.Join(err, unix.Close(socket))
}

// backwards sends an answer in fragments, the first one last.
func backwards(from, to netip.AddrPort, answer []byte) error {
	list := fragmentsOf(from, netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), answer, part)
	for i := range len(list) / 2 {
		list[i], list[len(list)-1-i] = list[len(list)-1-i], list[i]
	}
	return sendRaw(to.Addr().Unmap(), list)
}

// lateOrders returns orders in which later fragments of five-fragment datagrams precede the first.
func lateOrders() map[string][]piece {
	return map[string][]piece{
		"in order":    {{0, 0}, {0, 1}, {0, 2}, {0, 3}, {0, 4}},
		"reverse":     {{0, 4}, {0, 3}, {0, 2}, {0, 1}, {0, 0}},
		"first last":  {{0, 1}, {0, 2}, {0, 3}, {0, 4}, {0, 0}},
		"one ahead":   {{0, 2}, {0, 0}, {0, 1}, {0, 4}, {0, 3}},
		"twice":       {{0, 4}, {0, 4}, {0, 1}, {0, 0}, {0, 0}, {0, 2}, {0, 3}},
		"interleaved": {{0, 1}, {1, 1}, {0, 2}, {1, 2}, {1, 0}, {0, 3}, {0, 4}, {1, 3}, {0, 0}, {1, 4}},
	}
}

// Datagrams whose later fragments overtake the first arrive, and so do their answers, wherever the
// backend is. Backends on other nodes answer the same way.
func TestLateFragments(t *testing.T) {
	for _, xdp := range []string{"off", "native", "generic"} {
		t.Run(xdp, func(t *testing.T) {
			w := newNodesBehindRouter(t, settings{xdp: xdp, services: true, backwards: true})
			for _, v6 := range []bool{false, true} {
				for _, p := range paths() {
					for name, pieces := range lateOrders() {
						t.Run(fmt.Sprintf("%s %s %s", p.name, familyName(v6), name), func(t *testing.T) {
							o := order{Pieces: pieces, Bytes: 4900, Datagrams: 1, Brief: true}
							for _, piece := range pieces {
								o.Datagrams = max(o.Datagrams, piece.Datagram+1)
							}
							w.follow(t, p, v6, o)
						})
					}
				}
			}
		})
	}
}

// So do datagrams that need links with an MTU of 9000 bytes.
func TestLateJumboFragments(t *testing.T) {
	w := newNodesBehindRouter(t, settings{xdp: "off", mtu: 9000, services: true})
	for _, v6 := range []bool{false, true} {
		for _, p := range paths() {
			t.Run(p.name+" "+familyName(v6), func(t *testing.T) {
				w.follow(t, p, v6, order{Pieces: lateOrders()["reverse"], Bytes: 39_000, Part: 8_800, Datagrams: 1, Brief: true})
			})
		}
	}
}
