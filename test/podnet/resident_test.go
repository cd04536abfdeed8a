package podnet

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// The ports at which a resident answers: at every address, and only at the addresses that it is
// given.
const (
	everywhere = 7
	bound      = 8
)

// again is how long a resident waits before it sends a datagram again that may be lost.
const again = 50 * time.Millisecond

// question is what a resident is to ask, or which sender it is to name.
type question struct {
	Protocol string // by which to ask; empty: who sent the echo request with this token?
	From     netip.Addr
	To       netip.AddrPort
	Size     int
	Token    string
	Again    bool // the first datagrams may be lost at a smaller link, of which their sender is told
}

// answer is the source address that the other end saw, and the address that answered.
type answer struct {
	Seen, By netip.Addr
	Error    string
}

// resident is a process in a namespace that asks and answers.
type resident struct {
	*rig.Process
	t *testing.T
}

// newResident starts a resident that also answers on sockets bound to each of the addresses.
func newResident(t *testing.T, ns *rig.Netns, addrs ...netip.Addr) *resident {
	t.Helper()
	args := make([]string, len(addrs))
	for i, addr := range addrs {
		args[i] = addr.String()
	}
	r := &resident{Process: rig.NewChild(t, nil, ns, "reside", args...), t: t}
	if line, err := r.ReadLine(); err != nil || line != "ready" {
		t.Fatalf("the resident of %s said %q, %v: %v", ns, line, err, r.Wait())
	}
	return r
}

func (r *resident) ask(q question) (a answer) {
	r.t.Helper()
	if err := r.Ask(q, &a); err != nil {
		r.t.Fatal(err)
	}
	return a
}

// reside is the resident's process.
func reside(args []string) int {
	err := func() error {
		places := []string{fmt.Sprintf(":%d", everywhere)}
		for _, addr := range args {
			places = append(places, net.JoinHostPort(addr, strconv.Itoa(bound)))
		}
		for _, place := range places {
			if err := serveAt(place); err != nil {
				return err
			}
		}
		heard := &register{from: map[string]chan netip.Addr{}}
		for _, is4 := range []bool{true, false} {
			if err := heard.listen(is4); err != nil {
				return err
			}
		}
		fmt.Println("ready")
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			var q question
			if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
				return err
			}
			a, err := q.answer(heard)
			if err != nil {
				a.Error = err.Error()
			}
			text, err := json.Marshal(a)
			if err != nil {
				return err
			}
			fmt.Printf("%s\n", text)
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// patient gives a socket room for all that comes while a busy machine keeps its process waiting, so that what is
// missing in the end was lost on the way.
func patient(conn *net.UDPConn) error {
	return setOption(conn, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
}

// serveAt answers TCP and UDP with the address that the question came from.
func serveAt(place string) error {
	listener, err := net.Listen("tcp", place)
	if err != nil {
		return err
	}
	packets, err := net.ListenPacket("udp", place)
	if err != nil {
		return err
	}
	if err := patient(packets.(*net.UDPConn)); err != nil {
		return err
	}
	go rig.Serve(listener, func(conn net.Conn) {
		n, _ := io.Copy(io.Discard, conn)
		fmt.Fprintf(conn, "%d %s\n", n, conn.RemoteAddr())
	})
	go func() {
		buffer := make([]byte, 9000)
		for {
			n, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo(fmt.Appendf(buffer[:n], " %s\n", from), from)
		}
	}()
	return nil
}

// register records who sent echo requests, by their tokens.
type register struct {
	mu   sync.Mutex
	from map[string]chan netip.Addr
}

// entry returns the channel for the sender of a token, whether the sender or the question comes
// first.
func (r *register) entry(token string) chan netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from[token] == nil {
		r.from[token] = make(chan netip.Addr, 1)
	}
	return r.from[token]
}

func (r *register) listen(is4 bool) error {
	conn, err := net.ListenPacket(echoNetwork(is4), "")
	if err != nil {
		return err
	}
	request, _ := echoTypes(is4)
	go func() {
		buffer := make([]byte, 9000)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if n < 8 || buffer[0] != request {
				continue
			}
			select {
			case r.entry(string(buffer[8:n])) <- addrOf(from):
			default: // it was received before
			}
		}
	}()
	return nil
}

func (q *question) answer(heard *register) (answer, error) {
	switch q.Protocol {
	case "tcp":
		return q.tcp()
	case "udp":
		return q.udp()
	case "icmp":
		return q.echo()
	}
	select {
	case from := <-heard.entry(q.Token):
		return answer{Seen: from}, nil
	case <-time.After(patience):
		return answer{}, errors.New("no such echo request was heard")
	}
}

// local returns the address to bind a socket to; only the family if the kernel is to choose.
func (q *question) local() string {
	switch {
	case q.From.IsValid():
		return q.From.String()
	case q.To.Addr().Is4():
		return "0.0.0.0"
	}
	return "::"
}

func (q *question) tcp() (answer, error) {
	dialer := net.Dialer{Timeout: patience}
	if q.From.IsValid() {
		dialer.LocalAddr = &net.TCPAddr{IP: q.From.AsSlice()}
	}
	conn, err := dialer.Dial("tcp", q.To.String())
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(make([]byte, q.Size)); err != nil {
		return answer{}, err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return answer{}, err
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return answer{}, err
	}
	count, from, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if count != strconv.Itoa(q.Size) {
		return answer{}, fmt.Errorf("%d bytes were sent, and the answer is %q", q.Size, text)
	}
	return answerOf(from, conn.RemoteAddr())
}

// udp asks from an unconnected socket, which receives answers from any address.
func (q *question) udp() (answer, error) {
	conn, err := net.ListenPacket("udp", net.JoinHostPort(q.local(), "0"))
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	to := net.UDPAddrFromAddrPort(q.To)
	text := strings.Repeat("x", q.Size)
	wait, late := patience, time.Now().Add(patience)
	if q.Again {
		wait = again
	}
	for {
		if _, err := conn.WriteTo([]byte(text), to); err != nil {
			return answer{}, err
		}
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		buffer := make([]byte, 9000)
		n, by, err := conn.ReadFrom(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(late) {
			continue
		}
		if err != nil {
			return answer{}, err
		}
		from, whole := strings.CutPrefix(string(buffer[:n]), text+" ")
		if !whole {
			return answer{}, errors.New("the answer does not begin with the question")
		}
		return answerOf(strings.TrimSpace(from), by)
	}
}

// answerOf returns the answer that says that the other end saw from.
func answerOf(from string, by net.Addr) (answer, error) {
	seen, err := netip.ParseAddrPort(from)
	return answer{Seen: seen.Addr().Unmap(), By: addrOf(by)}, err
}

func addrOf(addr net.Addr) netip.Addr {
	var ip net.IP
	switch addr := addr.(type) {
	case *net.TCPAddr:
		ip = addr.IP
	case *net.UDPAddr:
		ip = addr.IP
	case *net.IPAddr:
		ip = addr.IP
	}
	at, _ := netip.AddrFromSlice(ip)
	return at.Unmap()
}

func echoNetwork(is4 bool) string {
	if is4 {
		return "ip4:icmp"
	}
	return "ip6:ipv6-icmp"
}

func echoTypes(is4 bool) (request, reply byte) {
	if is4 {
		return 8, 0
	}
	return 128, 129
}

// echo sends an echo request with the token, and returns who answered.
func (q *question) echo() (answer, error) {
	to := q.To.Addr()
	conn, err := net.ListenPacket(echoNetwork(to.Is4()), q.local())
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	request, reply := echoTypes(to.Is4())
	message := binary.BigEndian.AppendUint16([]byte{request, 0, 0, 0}, uint16(os.Getpid()))
	message = append(append(message, 0, 1), q.Token...)
	if to.Is4() { // the kernel computes the checksum of ICMPv6
		binary.BigEndian.PutUint16(message[2:], sumOf(message))
	}
	if _, err := conn.WriteTo(message, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return answer{}, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	buffer := make([]byte, 9000)
	for {
		n, by, err := conn.ReadFrom(buffer) // without the IPv4 header
		if err != nil {
			return answer{}, err
		}
		if n >= 8 && buffer[0] == reply && string(buffer[8:n]) == q.Token {
			return answer{By: addrOf(by)}, nil
		}
	}
}

// sumOf returns the Internet checksum.
func sumOf(message []byte) uint16 {
	var sum uint32
	for i, b := range message {
		sum += uint32(b) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
