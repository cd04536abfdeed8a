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
	sidecar  = 1337 // the user by which the mesh's rules recognize the proxy
	outbound = 15001
	inbound  = 15006
	app      = 8080
)

// meshRules are the rules that the mesh has in a pod, in their order: ISTIO_INBOUND, ISTIO_OUTPUT
// and the chains that they jump to.
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
func (w *threePods) intercept(pod int) {
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

// hop counts the bytes of all connections to a port. Connections that are not in the map are not
// counted.
type hop struct {
	client, server uint64
	short          int            // connections that bypass TCP
	others         []sockmap.Pair // and those that do not
}

func (w *threePods) hop(port uint16) (h hop) {
	w.T.Helper()
	for _, p := range w.pairs() {
		if p.Server.Port() != port {
			continue
		}
		h.client += p.Redirected[0] + p.Passed[0]
		h.server += p.Redirected[1] + p.Passed[1]
		if p.State == "accelerated" {
			h.short++
		} else {
			h.others = append(h.others, p)
		}
	}
	return h
}

// hops returns the ports of the hops through the mesh: from an app to its sidecar, to the other's
// sidecar, and to that one's app.
func hops() []uint16 { return []uint16{outbound, inbound, app} }

// short waits until connections of each hop bypass TCP: all of them, or, where a proxy keeps some
// in reserve, at least one.
func (w *threePods) short(c *client, all bool) {
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

// everyHop has a client send requests, and checks that each of their bytes was counted on each of
// the three hops.
func (w *threePods) everyHop(c *client) {
	w.T.Helper()
	w.short(c, true)
	// Nothing waits for what follows an answer, such as an HTTP/2 window update.
	time.Sleep(50 * time.Millisecond)
	var before []hop
	for _, port := range hops() {
		before = append(before, w.hop(port))
	}
	began := c.fetch(order{})
	if a := c.fetch(order{Requests: 200, Sizes: []int{1, 300, 5000, 40_000}, Sends: []int{10, 2000, 20_000}}); a.Failed > 0 || a.Requests < 400 {
		w.T.Errorf("%+v", a)
	}
	time.Sleep(50 * time.Millisecond) // likewise
	ended := c.fetch(order{})
	for i, port := range hops() {
		after := w.hop(port)
		got := [2]int64{int64(after.client - before[i].client), int64(after.server - before[i].server)}
		if want := [2]int64{ended.Sent - began.Sent, ended.Got - began.Got}; got != want || len(after.others) > 0 {
			w.T.Errorf("to port %d went %d bytes, of %d that the client sent and got; %+v", port, got, want, after.others)
		}
	}
}

// TestMesh has the app of one pod send HTTP requests to that of another through the sidecars of
// both: Go proxies behind the mesh's rules. All three connections bypass TCP, and what goes in
// comes out.
func TestMesh(t *testing.T) {
	for _, version := range []int{2, 1} {
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprintf("HTTP/%d,six=%v", version, six), func(t *testing.T) {
				if !*all && (version == 1) != six {
					t.Skip("-all runs it")
				}
				w := newThreePods(t)
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

// direction is one direction of all connections to a port.
type direction struct {
	port uint16
	side int
}

// past returns how many bytes have gone past TCP on connections that are known.
func (w *threePods) past() map[direction]uint64 {
	w.T.Helper()
	bytes := map[direction]uint64{}
	for _, p := range w.pairs() {
		for side := range 2 {
			bytes[direction{p.Server.Port(), side}] += p.Redirected[side]
		}
	}
	return bytes
}

// TestMeshByPorts checks that a policy that names the ports of the sidecars lets the connections to these bypass TCP, to
// which the mesh's rules redirect what is dialed elsewhere, and not those to the app.
func TestMeshByPorts(t *testing.T) {
	w := newThreePods(t)
	rules := map[sockmap.Endpoint]sockmap.Rules{}
	for _, pod := range []int{here, there} {
		w.intercept(pod)
		w.as(pod, sidecar, "mesh")
		w.listens(pod, outbound)
		w.listens(pod, inbound)
		netns := w.Cookie(w.pods[pod])
		rules[sockmap.Endpoint{Netns: netns}] = sockmap.Rules{From: 1}
		for _, port := range []uint16{outbound, inbound} {
			rules[sockmap.Endpoint{Netns: netns, Port: port}] = sockmap.Rules{To: 1}
		}
	}
	w.Must(w.SetRules(rules))
	w.as(there, root, "serve", net.JoinHostPort("", strconv.Itoa(app)))
	w.listens(there, app)
	c := w.client(here, "http://"+net.JoinHostPort(address(there, false), strconv.Itoa(app)), 1, 2, 1)
	w.Until("the connections to the sidecars to go past TCP", func() bool {
		c.fetch(order{Requests: 20, Sizes: []int{100}})
		return w.hop(outbound).short == 2 && w.hop(inbound).short == 2
	})
	before := w.past()
	if a := c.fetch(order{Requests: 200, Sizes: []int{1, 300, 5000, 40_000}, Sends: []int{10, 2000, 20_000}}); a.Failed > 0 {
		t.Errorf("%+v", a)
	}
	for place, bytes := range w.past() {
		if bytes <= before[place] {
			t.Errorf("nothing more went past TCP of side %d to port %d", place.side, place.port)
		}
	}
	if h := w.hop(app); h.short > 0 || len(h.others) > 0 {
		t.Errorf("connections to the app take part: %+v", h)
	}
	c.end()
	w.gone()
}

// asked has an app send requests to another through the mesh, first undisturbed, then while disturb
// runs. Each request takes six messages.
func (w *threePods) asked(what string, version int, six bool, streams int, first func(c *client)) {
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
	// With HTTP/2, frames of many streams often follow one another in the same direction.
	w.wantRequests(fmt.Sprintf("%s, HTTP/%d", what, version), a.Requests, a.Failed, expectation{share: []float64{0.5, 0.3}[version-1], each: 1.5})
	// Each byte could have bypassed TCP on three hops, except while that was switched off.
	if past, could := w.tallies().Redirected.Bytes-before, 3*(a.Sent+a.Got-began.Sent-began.Got); float64(past) < 0.3*float64(could) {
		w.T.Errorf("%d of %d bytes went past TCP", past, could)
	}
	c.end()
	w.gone()
}

// meshMain is the sidecar of a mesh: it forwards what arrives at either port to its original
// destination. Like Envoy, it reads and writes, and waits for both by epoll.
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
	if err != nil || int(target.Port()) == port { // no rule redirected it
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
	go func() { other <- relay(to, from) }()
	return errors.Join(relay(from, to), <-other)
}

// relay forwards what one connection sends, and its end.
func relay(from, to *net.TCPConn) error {
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

// original returns where a connection was going before the rules redirected it.
func original(conn *net.TCPConn) (addr netip.AddrPort, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return addr, err
	}
	const originalDst = 80 // SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST
	var failed error
	err = raw.Control(func(fd uintptr) {
		if conn.RemoteAddr().(*net.TCPAddr).IP.To4() == nil {
			var info *unix.IPv6MTUInfo // begins with an address
			if info, failed = unix.GetsockoptIPv6MTUInfo(int(fd), unix.SOL_IPV6, originalDst); failed == nil {
				addr = netip.AddrPortFrom(netip.AddrFrom16(info.Addr.Addr), info.Addr.Port<<8|info.Addr.Port>>8)
			}
			return
		}
		var info *unix.IPv6Mreq // is as long as an address
		if info, failed = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, originalDst); failed == nil {
			b := info.Multiaddr
			addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), uint16(b[2])<<8|uint16(b[3]))
		}
	})
	return addr, errors.Join(err, failed)
}
