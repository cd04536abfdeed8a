package hostile

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// What the floods below are made of: more packets than a node has ports, and then so many a second.
const (
	filling = 20_000
	rate    = 5_000
	honest  = 100 // queries or connections of the victim meanwhile
)

// flood sends what fills the ports, and returns a function that ends what goes on sending. Send
// sends n packets of other flows.
func flood(t *testing.T, send func(n int) error) (end func()) {
	t.Helper()
	must(t, send(filling))
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-stop:
				tick.Stop()
				done <- nil
				return
			case <-tick.C:
				if err := send(rate / 100); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	return func() {
		close(stop)
		must(t, <-done)
	}
}

// asker sends datagrams from a pod to one address, each from another port of its own.
type asker struct {
	pod  *pod
	to   netip.AddrPort
	port uint16
	open bool // it waits for an answer and sends once more: then the flow is established
}

func (a *asker) send(n int) error {
	return a.pod.Do(func() error {
		for range n {
			if a.port++; a.port < 1024 {
				a.port = 1024
			}
			if err := a.exchange(); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *asker) exchange() error {
	s, err := socket(netip.AddrPortFrom(a.pod.addr[a.to.Addr().Is4()], a.port), 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := unix.Sendto(s, []byte("flood"), 0, sockaddr(a.to)); err != nil || !a.open {
		return err
	}
	for began := time.Now(); time.Since(began) < 200*time.Microsecond; { // there is none if no port was free
		if _, err := unix.Read(s, make([]byte, 16)); err == nil {
			return unix.Sendto(s, []byte("flood"), 0, sockaddr(a.to))
		}
	}
	return nil
}

// socket returns a UDP socket that waits that long for what it reads.
func socket(at netip.AddrPort, wait time.Duration) (int, error) {
	family, kind := unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC
	if at.Addr().Is4() {
		family = unix.AF_INET
	}
	if wait == 0 {
		kind |= unix.SOCK_NONBLOCK
	}
	s, err := unix.Socket(family, kind, 0)
	if err != nil {
		return 0, err
	}
	timeout := unix.NsecToTimeval(int64(wait))
	if err = unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err == nil {
		err = unix.Bind(s, sockaddr(at))
	}
	if err != nil {
		unix.Close(s)
		return 0, fmt.Errorf("socket at %s: %w", at, err)
	}
	return s, nil
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	if at.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
	}
	return &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}
}

// answer answers every datagram to a port of the host outside, or only those that are no flood.
func (w *nodesOnLAN) answer(port int, all bool) {
	conn := listen(w.t, w.outside, port)
	// It has to have room for all that comes while it does not run, or its own losses would be seen.
	raw, err := conn.SyscallConn()
	must(w.t, err)
	must(w.t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20) }))
	must(w.t, err)
	go func() {
		buffer := make([]byte, 64)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return // closed
			}
			if all || string(buffer[:n]) != "flood" {
				_, _ = conn.WriteToUDPAddrPort(buffer[:n], from)
			}
		}
	}()
}

// TestPortsOfPods is the attack of a pod that opens flow after flow to a host outside, such as a DNS
// resolver, and so uses up the ports that its node lends for that: 5,000 datagrams a second,
// unanswered or answered, or flows that it establishes and keeps. Each query of another pod is
// answered at once.
func TestPortsOfPods(t *testing.T) {
	w := newNodesOnLAN(t, 1)
	n := w.nodes[0]
	attacker, victim := n.pod("attacker"), n.pod("victim")
	for i, attack := range []struct {
		name    string
		is4     bool
		answers bool
		keeps   bool
		reason  string // as which the attack is counted
	}{
		{"kept", true, true, true, "no-port"}, // first, since the others also push out flows that are not established
		{"unanswered", true, false, false, "port-taken"},
		{"unanswered, IPv6", false, false, false, "port-taken"},
		{"answered", true, true, false, "port-taken"},
	} {
		t.Run(attack.name, func(t *testing.T) {
			addr := map[bool]string{true: "198.51.100.200", false: "2001:db8:1::c8"}[attack.is4]
			to := netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(53+i))
			w.answer(int(to.Port()), attack.answers)
			before := n.drops("tc", attack.reason)
			a := &asker{pod: attacker, to: to, port: 20_000, open: attack.keeps}
			end := flood(t, a.send)
			lost := 0
			must(t, victim.Do(func() error {
				for i := range honest {
					if answered, err := query(netip.AddrPortFrom(victim.addr[attack.is4], 0), to, fmt.Sprintf("query %d", i)); err != nil {
						return err
					} else if !answered {
						lost++
					}
				}
				return nil
			}))
			end()
			if lost > 0 {
				t.Errorf("%d of %d queries of another pod were not answered", lost, honest)
			}
			if n := n.drops("tc", attack.reason) - before; n < 1000 {
				t.Errorf("the ports were not used up: %s was counted %d times", attack.reason, n)
			}
			if attack.keeps {
				n.saysUsedUp(fmt.Sprintf("flows of pod %s to %s/udp use ", attacker.addr[attack.is4], to))
			}
		})
	}
}

// saysUsedUp waits until the status says that the SNAT ports are used up by these flows. Nothing that
// it says may blame the room for flows.
func (n *node) saysUsedUp(by string) {
	n.t.Helper()
	var said string
	for deadline := time.Now().Add(patience); !strings.Contains(said, "SNAT ports are used up: "+by); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("the status does not say that %s too many ports:\n%s", by, said)
		}
		said = n.status()
	}
	for _, wrong := range []string{"ct_pending", "raise the option conntrack-max"} {
		if strings.Contains(said, wrong) {
			n.t.Errorf("the status speaks of %s:\n%s", wrong, said)
		}
	}
}

// status returns what the status of a node says, be it degraded or not.
func (n *node) status() string {
	args := append([]string{filepath.Join(built(n.t), "fairlead"), "status"}, n.flags...)
	out, _ := rig.RunChild(nil, n.ns, "fairlead", args...)
	return out
}

// query asks from a socket of its own, and reports whether the answer came soon.
func query(from, to netip.AddrPort, text string) (bool, error) {
	s, err := socket(from, time.Second)
	if err != nil {
		return false, err
	}
	defer unix.Close(s)
	if err := unix.Sendto(s, []byte(text), 0, sockaddr(to)); err != nil {
		return false, err
	}
	buffer := make([]byte, 64)
	got, err := unix.Read(s, buffer)
	return err == nil && string(buffer[:got]) == text, nil
}

// TestPortsOfForgedClients is the attack of an outsider that sends SYNs from forged addresses to a
// service whose backend is on another node, and so uses up the ports that the first node lends. Each
// connection of an honest client is accepted meanwhile.
func TestPortsOfForgedClients(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=vxlan")
	near, backend := w.nodes[0], w.nodes[1].pod("backend")
	var listener net.Listener
	must(t, backend.Do(func() (err error) {
		listener, err = net.Listen("tcp4", ":8080")
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	go rig.Serve(listener, func(net.Conn) {})
	w.write("service", fmt.Sprintf(nodePort, backend.addr[true]))
	front := netip.MustParseAddrPort("198.51.100.1:30080")
	connect := func() (err error) {
		return w.outside.Do(func() error {
			// The backend may still wait for the forged client that had the port: then it takes the
			// second SYN, after a second.
			conn, err := net.DialTimeout("tcp", front.String(), 5*time.Second)
			if err == nil {
				conn.Close()
			}
			return err
		})
	}
	for deadline := time.Now().Add(patience); connect() != nil; { // until the agents have read the Service
		if time.Now().After(deadline) {
			t.Fatal("the service is not reached")
		}
	}
	var raw int
	must(t, w.outside.Do(func() (err error) {
		raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))
	t.Cleanup(func() { unix.Close(raw) })
	sent, before := 0, near.drops("tc", "port-taken")
	end := flood(t, func(n int) error {
		for range n {
			sent++
			from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(100 + sent%50)}), uint16(1024+sent))
			if err := unix.Sendto(raw, syn(from, front), 0, sockaddr(front)); err != nil {
				return err
			}
		}
		return nil
	})
	lost := 0
	for range honest {
		if connect() != nil {
			lost++
		}
	}
	end()
	if lost > 0 {
		t.Errorf("%d of %d honest connections failed", lost, honest)
	}
	if n := near.drops("tc", "port-taken") - before; n < 1000 {
		t.Errorf("the ports were not used up: port-taken was counted %d times", n)
	}
}

const nodePort = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, uid: uid-web}
spec: {type: NodePort, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ports: [{port: 80, nodePort: 30080, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [%s], nodeName: n2, conditions: {ready: true}}]
`
