package podnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// patience allows for a machine with other work to do.
const patience = 20 * time.Second

// echo answers TCP and UDP at a port of every address with the address that the question came from.
func echo(args []string) int {
	if err := serveAt(args[0]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// dial asks an echo, or pings it, and prints the address that it saw or that answered.
func dial(args []string) int {
	from, err := ask(args[0], args[1], patience)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(from)
	return 0
}

func ask(protocol, to string, limit time.Duration) (string, error) {
	at, size := netip.MustParseAddrPort(to), 0
	switch protocol {
	case "bulk":
		protocol, size = "tcp", 20<<20
	case "icmp":
		return ping(at.Addr())
	case "tcp-refused": // a refusal shows that packets went there and back
		if conn, err := net.DialTimeout("tcp", to, patience); !errors.Is(err, unix.ECONNREFUSED) {
			return "", fmt.Errorf("dial: %v, %w", conn, err)
		}
		return "refused", nil
	}
	network, how, _ := strings.Cut(protocol, "-")
	var conn net.Conn
	var err error
	if network == "sctp" { // with the address to bind to
		conn, err = rig.DialSCTP(netip.AddrPortFrom(netip.MustParseAddr(how), 0), at, limit)
	} else {
		conn, err = dialWithin(network, to, limit)
	}
	if err != nil {
		return "", err
	}
	defer conn.Close()
	question := strconv.Itoa(size)
	if stream, ok := conn.(*net.TCPConn); ok {
		_ = conn.SetWriteDeadline(time.Now().Add(limit))
		_, err = stream.Write(make([]byte, size))
		err = errors.Join(err, stream.CloseWrite())
	} else {
		if size = 8000; how == "small" {
			size = 100
		}
		question = strings.Repeat("x", size)
		_, err = io.WriteString(conn, question)
	}
	if err != nil {
		return "", err
	}
	if how == "lost" { // whether there is an answer does not matter
		return "", nil
	}
	buffer := make([]byte, 9000)
	_ = conn.SetReadDeadline(time.Now().Add(limit)) // not earlier: a process that has to wait for a processor must have asked
	n, err := conn.Read(buffer)
	if err != nil {
		return "", err
	}
	answer, ok := strings.CutPrefix(string(buffer[:n]), question+" ")
	if !ok {
		return "", fmt.Errorf("the answer does not begin with the question")
	}
	from, err := netip.ParseAddrPort(strings.TrimSpace(answer))
	return from.Addr().Unmap().String(), err
}

// dialWithin dials with a limit that begins when the first packet leaves: on a machine with other work to do, a process
// may wait that long before. Whoever is not answered has asked, then.
func dialWithin(network, to string, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dialer := net.Dialer{Control: func(string, string, syscall.RawConn) error {
		time.AfterFunc(limit, cancel)
		return nil
	}}
	conn, err := dialer.DialContext(ctx, network, to)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", os.ErrDeadlineExceeded, err)
	}
	return conn, err
}

// ping sends an echo request by a raw socket, and returns who answered.
func ping(to netip.Addr) (string, error) {
	network, request, reply := "ip6:ipv6-icmp", byte(128), byte(129)
	if to.Is4() {
		network, request, reply = "ip4:icmp", 8, 0
	}
	conn, err := net.Dial(network, to.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	id := uint16(os.Getpid())
	message := []byte{request, 0, 0, 0, byte(id >> 8), byte(id), 0, 1}
	if to.Is4() { // the kernel computes the checksum of ICMPv6
		sum := uint32(uint16(request)<<8) + uint32(id) + 1
		sum = ^(sum&0xffff + sum>>16)
		message[2], message[3] = byte(sum>>8), byte(sum)
	}
	if _, err := conn.Write(message); err != nil {
		return "", err
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	buffer := make([]byte, 1500)
	for {
		n, _, err := conn.(*net.IPConn).ReadFrom(buffer) // without the IPv4 header
		if err != nil {
			return "", err
		}
		if got := buffer[:n]; n >= 8 && got[0] == reply && got[4] == byte(id>>8) && got[5] == byte(id) {
			return to.String(), nil
		}
	}
}

// talk has one namespace ask another, and returns the source address that the other saw.
func talk(t *testing.T, from *rig.Netns, protocol string, to netip.Addr) string {
	t.Helper()
	return rig.Child(t, nil, from, "dial", protocol, netip.AddrPortFrom(to, 7).String())
}

func listenIn(t *testing.T, ns *rig.Netns) {
	t.Helper()
	server := rig.NewChild(t, nil, ns, "echo", ":7")
	if line, err := server.ReadLine(); err != nil || line != "ready" {
		t.Fatalf("echo in %s: %q, %v", ns, line, err)
	}
}

// TestTraffic checks that two pods reach each other and the node, and the node reaches them, by
// every protocol and family.
func TestTraffic(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cidrs []string
	}{
		{"IPv4", []string{"10.1.0.0/24"}}, {"IPv6", []string{"fd00:1::/64"}}, {"dual", []string{"10.1.0.0/24", "fd00:1::/64"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNode(t, tt.cidrs...)
			a, b := n.pod("a"), n.pod("b")
			for _, p := range []*pod{a, b} {
				n.mustAdd(p)
				if len(p.addr) != len(tt.cidrs) {
					t.Fatalf("pod %s has addresses %v", p.id, p.addr)
				}
				listenIn(t, p.Netns)
			}
			listenIn(t, n.ns)
			nodes := map[bool]netip.Addr{true: netip.MustParseAddr("192.0.2.1"), false: netip.MustParseAddr("2001:db8::1")}
			for is4, addr := range a.addr {
				for _, protocol := range []string{"tcp", "udp", "icmp"} {
					for _, way := range []struct {
						what     string
						from     *rig.Netns
						to, seen netip.Addr
					}{
						{"pod to pod", a.Netns, b.addr[is4], addr},
						{"pod to node", a.Netns, nodes[is4], addr},
						{"node to pod", n.ns, addr, nodes[is4]},
						{"pod to itself", a.Netns, addr, addr},
					} {
						seen := talk(t, way.from, protocol, way.to)
						want := way.seen.String()
						if protocol == "icmp" {
							want = way.to.String()
						}
						if seen != want {
							t.Errorf("%s by %s, IPv4 %t: came from %s, want %s", way.what, protocol, is4, seen, want)
						}
					}
				}
			}
			for _, p := range []*pod{a, b} {
				n.must(n.del(p))
			}
			n.nothingLeft()
		})
	}
}

// TestWithoutIPv6 checks that a pod whose namespace has IPv6 disabled gets only IPv4, and that IPv6
// stays disabled.
func TestWithoutIPv6(t *testing.T) {
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	p := n.pod("a")
	n.must(p.SetSysctl("net/ipv6/conf/all/disable_ipv6", "1"))
	n.mustAdd(p)
	if len(p.addr) != 1 || !p.addr[true].IsValid() {
		t.Errorf("addresses %v, want one of IPv4", p.addr)
	}
	n.must(p.Do(func() error {
		content, err := os.ReadFile("/proc/sys/net/ipv6/conf/eth0/disable_ipv6")
		if err == nil && strings.TrimSpace(string(content)) != "1" {
			t.Errorf("disable_ipv6 of eth0 is %s", content)
		}
		return err
	}))
	n.must(n.del(p))
	n.nothingLeft()
}

// TestFirstPacket checks that the first packet after ADD gets through, in either direction.
func TestFirstPacket(t *testing.T) {
	n := newNode(t, "10.1.0.0/24")
	p := n.pod("a")
	for range 4 {
		n.mustAdd(p)
		if seen := talk(t, n.ns, "icmp", p.addr[true]); seen != p.addr[true].String() {
			t.Errorf("the pod answers as %q", seen)
		}
		if seen := talk(t, p.Netns, "icmp", netip.MustParseAddr("192.0.2.1")); seen != "192.0.2.1" {
			t.Errorf("the node answers as %q", seen)
		}
		n.must(n.del(p))
	}
}
