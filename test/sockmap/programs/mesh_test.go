package programs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

const (
	sidecar  = 1337 // the user that the mesh's rules know the proxy by
	outbound = 15001
	inbound  = 15006
	app      = 8080
)

// meshRules are those of the mesh in a pod, rule by rule and in their order: ISTIO_INBOUND, ISTIO_OUTPUT and what they lead to.
const meshRules = `
table inet istio {
	chain istio_redirect { meta l4proto tcp redirect to :15001; }
	chain istio_in_redirect { meta l4proto tcp redirect to :15006; }
	chain istio_inbound {
		tcp dport 15008 return
		tcp dport 15090 return
		tcp dport 15021 return
		tcp dport 15020 return
		meta l4proto tcp jump istio_in_redirect
	}
	chain istio_output {
		oifname lo ip saddr 127.0.0.6 return
		oifname lo ip6 saddr ::6 return
		oifname lo ip daddr != 127.0.0.1 tcp dport != 15008 meta skuid 1337 jump istio_in_redirect
		oifname lo ip6 daddr != ::1 tcp dport != 15008 meta skuid 1337 jump istio_in_redirect
		oifname lo meta skuid != 1337 return
		meta skuid 1337 return
		oifname lo ip daddr != 127.0.0.1 meta skgid 1337 jump istio_in_redirect
		oifname lo ip6 daddr != ::1 meta skgid 1337 jump istio_in_redirect
		oifname lo meta skgid != 1337 return
		meta skgid 1337 return
		ip daddr 127.0.0.1 return
		ip6 daddr ::1 return
		jump istio_redirect
	}
	chain prerouting { type nat hook prerouting priority -100; meta l4proto tcp jump istio_inbound; }
	chain output { type nat hook output priority -100; meta l4proto tcp jump istio_output; }
}
`

// intercept puts a pod into the mesh.
func (w *world) intercept(pod int) {
	w.T.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		rig.Lacking(w.T, "cluster", "there is no nft, of Debian's nftables")
	}
	rig.Address(w.T, w.pods[pod], "lo", "::6/128") // as the mesh does
	w.Must(w.pods[pod].Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = bytes.NewBufferString(meshRules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}))
}

// hop is what became of the bytes of all connections to a port. Those of a connection that is not in the map are not counted.
type hop struct {
	client, server uint64
	short          int            // connections that go past TCP,
	others         []sockmap.Pair // and those that do not
}

func (w *world) hop(port uint16) (h hop) {
	w.T.Helper()
	for _, p := range w.pairs() {
		if p.Server.Port() != port {
			continue
		}
		h.client += p.Redirected[0] + p.Passed[0]
		h.server += p.Redirected[1] + p.Passed[1]
		if p.State == "short" {
			h.short++
		} else {
			h.others = append(h.others, p)
		}
	}
	return h
}

// hops are the ports of the ways through the mesh: from an app to its sidecar, to the other's sidecar, and to that one's app.
func hops() []uint16 { return []uint16{outbound, inbound, app} }

// short waits until connections of each hop go past TCP: all, or, where a proxy has some in reserve, one at least.
func (w *world) short(c *client, all bool) {
	w.T.Helper()
	w.Until("connections of each hop to go past TCP", func() bool {
		c.fetch(order{Requests: 20, Sizes: []int{100}})
		time.Sleep(20 * time.Millisecond)
		for _, port := range hops() {
			if h := w.hop(port); h.short == 0 || all && len(h.others) > 0 {
				return false
			}
		}
		return true
	})
}

// everyHop has a client ask, and finds each byte of it on each of the three ways.
func (w *world) everyHop(c *client) {
	w.T.Helper()
	w.short(c, true)
	var before []hop
	for _, port := range hops() {
		before = append(before, w.hop(port))
	}
	began := c.fetch(order{})
	if a := c.fetch(order{Requests: 200, Sizes: []int{1, 300, 5000, 40_000}, Sends: []int{10, 2000, 20_000}}); a.Failed > 0 || a.Requests < 400 {
		w.T.Errorf("%+v", a)
	}
	time.Sleep(50 * time.Millisecond) // nobody waits for what an answer is answered by, such as a window of HTTP/2
	ended := c.fetch(order{})
	for i, port := range hops() {
		after := w.hop(port)
		got := [2]int64{int64(after.client - before[i].client), int64(after.server - before[i].server)}
		if want := [2]int64{ended.Sent - began.Sent, ended.Got - began.Got}; got != want || len(after.others) > 0 {
			w.T.Errorf("to port %d went %d bytes, of %d that the client sent and got; %+v", port, got, want, after.others)
		}
	}
}

// The app of one pod asks that of another by HTTP, through the sidecar of each: proxies of Go behind the mesh's rules. All of the three connections go past
// TCP, and what goes in comes out.
func TestMesh(t *testing.T) {
	for _, version := range []int{2, 1} {
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprintf("HTTP/%d,six=%v", version, six), func(t *testing.T) {
				if !*all && (version == 1) != six {
					t.Skip("-all runs it")
				}
				w := newWorld(t)
				for _, pod := range []int{here, there} {
					w.intercept(pod)
					w.as(pod, sidecar, "mesh")
					w.listens(pod, outbound)
					w.listens(pod, inbound)
				}
				w.asked("mesh of Go", version, six, 8, w.everyHop)
			})
		}
	}
}

// asked has an app ask another through the mesh that is there: at first in peace, then with somebody who disturbs. There are six messages to a request.
func (w *world) asked(what string, version int, six bool, streams int, first func(c *client)) {
	w.T.Helper()
	addr := net.JoinHostPort(address(there, six), strconv.Itoa(app))
	w.as(there, root, "serve", net.JoinHostPort("", strconv.Itoa(app)))
	w.listens(there, app)
	if version == 1 {
		streams = 1
	}
	c := w.client(here, "http://"+addr, version, 2, streams)
	if first != nil {
		first(c)
	}
	before, began := w.tallies().Redirected.Bytes, c.fetch(order{})
	c.begin(order{Long: *load, Sizes: []int{1, 300, 5000, 60_000}, Sends: []int{10, 2000, 20_000}})
	w.disturb(*load)
	a := c.done()
	w.judge(fmt.Sprintf("%s, HTTP/%d", what, version), a.Requests, a.Failed, expectation{share: []float64{0.5, 0.3}[version-1], each: 1.5}) // frames of many streams are often in a row
	// Of each byte three could have gone past TCP, but while that was switched off.
	if past, could := w.tallies().Redirected.Bytes-before, 3*(a.Sent+a.Got-began.Sent-began.Got); float64(past) < 0.3*float64(could) {
		w.T.Errorf("%d of %d bytes went past TCP", past, could)
	}
	c.end()
	w.gone()
}

// meshMain is the sidecar of a mesh: what comes for it to either port it passes on to where that was to go. It reads and writes, as Envoy does, and waits for
// both by epoll.
func meshMain(args []string) int {
	failed := make(chan error)
	for _, port := range []int{outbound, inbound} {
		go func() {
			failed <- hosted(fmt.Sprintf(":%d", port), func(l net.Listener) error { return passAll(l, port) })
		}()
	}
	fmt.Println(<-failed)
	return 1
}

func passAll(l net.Listener, port int) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if err := pass(conn.(*net.TCPConn), port); err != nil {
				fmt.Println(err)
			}
		}()
	}
}

func pass(from *net.TCPConn, port int) error {
	target, err := original(from)
	if err != nil || int(target.Port()) == port { // nobody has redirected it
		return err
	}
	dialer := net.Dialer{Timeout: patience}
	if port == inbound {
		source := netip.MustParseAddr("127.0.0.6")
		if target.Addr().Is6() {
			source = netip.MustParseAddr("::6")
		}
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	conn, err := dialer.Dial("tcp", target.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	to := conn.(*net.TCPConn)
	other := make(chan error)
	go func() { other <- carry(to, from) }()
	return errors.Join(carry(from, to), <-other)
}

// carry hands on what one connection says, and that it has said all.
func carry(from, to *net.TCPConn) error {
	piece := make([]byte, 32<<10)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			if _, err := to.Write(piece[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return to.CloseWrite()
		}
		if err != nil {
			return err
		}
	}
}

// original returns where a connection was to go before the rules redirected it.
func original(conn *net.TCPConn) (addr netip.AddrPort, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return addr, err
	}
	const originalDst = 80 // SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST
	var failed error
	err = raw.Control(func(fd uintptr) {
		if conn.RemoteAddr().(*net.TCPAddr).IP.To4() == nil {
			var info *unix.IPv6MTUInfo // which begins with an address
			if info, failed = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, originalDst); failed == nil {
				addr = netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), info.Addr.Port<<8|info.Addr.Port>>8)
			}
			return
		}
		var info *unix.IPv6Mreq // which is as long as an address
		if info, failed = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, originalDst); failed == nil {
			b := info.Multiaddr
			addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	return addr, errors.Join(err, failed)
}
