package podnet

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/test/rig"
)

// proxy is a proxy for what pods dial: it tells the client in a line the proxy's name, whom the
// client has dialed and who the client is, and then dials that address and forwards what either
// side sends.
func proxy(args []string) int {
	for _, host := range []string{"127.0.0.1:", "[::1]:"} {
		listener, err := rig.ListenTransparent(netip.MustParseAddrPort(host + args[1]))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		go rig.Serve(listener, func(conn net.Conn) { relay(args[0], conn.(*net.TCPConn)) })
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

func relay(name string, client *net.TCPConn) {
	defer client.Close()
	dialed := client.LocalAddr().String()
	if _, err := fmt.Fprintf(client, "%s for %s from %s\n", name, dialed, client.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()); err != nil {
		return
	}
	server, err := net.DialTimeout("tcp", dialed, patience)
	if err != nil {
		return // nothing answers there, and the client has its line already
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(client, server)
}

// inquire dials, and prints everything that it is told.
func inquire(args []string) int {
	text, err := inquireAt(args[0], 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Print(text)
	return 0
}

// inquireAt dials from a port, 0 for any, and returns everything that it is told. From any port it
// closes its side at once; from a given one it leaves it to the peer to close first.
func inquireAt(to string, port int) (string, error) {
	dialer := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{Port: port}}
	conn, err := dialer.Dial("tcp", to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if port == 0 {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return "", err
		}
	}
	text, err := io.ReadAll(conn)
	return string(text), err
}

// oneNodeWithProxies is a oneNodeWithAgent whose agent knows proxies, with one pod that may have a proxy and one that
// has none.
type oneNodeWithProxies struct {
	*oneNodeWithAgent
	a, b   *pod
	cgroup *rig.Cgroup // of a's processes, whose sockets are pointed at backends
}

func newOneNodeWithProxies(t *testing.T, routing string, flags ...string) *oneNodeWithProxies {
	t.Helper()
	d := &oneNodeWithProxies{oneNodeWithAgent: newOneNodeWithAgent(t, append(flags, "--l7-proxies=mesh=15001,audit=15002:pass", "--host-routing="+routing)...)}
	// Proxies must work with strict reverse path filtering too.
	d.must(d.ns.SetSysctl("net/ipv4/conf/all/rp_filter", "1"))
	d.annotate("")
	d.cgroup = rig.NewCgroupIn(t, rig.NewCgroupIn(t, d.oneNodeWithAgent.cgroup, "kubepods"), "poduid-a")
	d.a, d.b = d.pod("a"), d.pod("b")
	for _, p := range []*pod{d.a, d.b} {
		d.mustAdd(p)
		listenIn(t, p.Netns)
	}
	listenIn(t, d.outside)
	return d
}

// annotate writes the pods, the first one with annotations, and a Service whose backend is the host
// outside.
func (d *oneNodeWithProxies) annotate(annotations string) {
	d.t.Helper()
	text := fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: shop, uid: uid-a, annotations: {%s}}
spec: {nodeName: node-a, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: shop, uid: uid-b}
spec: {nodeName: node-a, containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd03::10"], ipFamilies: [IPv4, IPv6], ports: [{port: 80}]}
`, annotations)
	for family, addr := range map[string]netip.Addr{"IPv4": outsiders[true], "IPv6": outsiders[false]} {
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-%s, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: %s
ports: [{name: "", port: 7}]
endpoints:
- {addresses: ["%s"]}
`, strings.ToLower(family), family, addr)
	}
	path := filepath.Join(d.files, "shop.yaml")
	d.must(os.WriteFile(path+".tmp", []byte(text), 0o644))
	d.must(os.Rename(path+".tmp", path))
}

// has waits until the programs know which proxy the pod has.
func (d *oneNodeWithProxies) has(proxy string) {
	d.t.Helper()
	d.until("the pod has proxy "+proxy, func() bool {
		for _, line := range strings.Split(d.run("map", "dump", "pods"), "\n") {
			if strings.HasPrefix(line, d.a.addr[true].String()) {
				return strings.HasSuffix(strings.TrimSpace(line), "  "+proxy)
			}
		}
		return false
	})
}

// begin starts a proxy on the node.
func (d *oneNodeWithProxies) begin(name, port string) *rig.Process {
	d.t.Helper()
	p := rig.NewChild(d.t, d.oneNodeWithAgent.cgroup, d.ns, "proxy", name, port)
	if line, err := p.ReadLine(); err != nil || line != "ready" {
		d.t.Fatalf("proxy %s: %q, %v: %v", name, line, err, p.Wait())
	}
	return p
}

// hears dials from a pod and compares what it is told. The lines are joined by commas, and the port
// is removed from an address in an echo's answer.
func (d *oneNodeWithProxies) hears(when string, from *pod, to, want string) {
	d.t.Helper()
	var got string
	err := from.Do(func() (err error) { got, err = inquireAt(to, 0); return err })
	if got = heard(got); err != nil || got != want {
		d.t.Errorf("%s: to %s pod %s is told %q, %v; want %q", when, to, from.id, got, err, want)
	}
}

func heard(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range lines {
		if at, err := netip.ParseAddrPort(strings.TrimPrefix(line, "0 ")); err == nil {
			lines[i] = at.Addr().Unmap().String()
		}
	}
	return strings.Join(lines, ", ")
}

// lost returns how many packets were dropped because their proxy was missing.
func (d *oneNodeWithProxies) lost() (packets uint64) {
	d.t.Helper()
	list, err := reasons.ReadDrops(datapath.MapsDir(d.bpffs))
	d.must(err)
	for _, drop := range list {
		if drop.Hook == "pod" && drop.Reason == "no-proxy" {
			packets += drop.Packets
		}
	}
	return packets
}

// counter returns one of the kernel's TCP counters on the node.
func (d *oneNodeWithProxies) counter(name string) (value string) {
	d.t.Helper()
	d.must(d.ns.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		for i, field := range strings.Fields(lines[0]) {
			if field == name {
				value = strings.Fields(lines[1])[i]
			}
		}
		return nil
	}))
	return value
}

// Addresses with ports, by family: one that nothing has, that of the host outside, and the
// Service's.
var (
	nowhere = map[bool]string{true: "203.0.113.80:80", false: "[2001:db8:9::80]:80"}
	abroad  = map[bool]string{true: "198.51.100.7:7", false: "[2001:db8:1::7]:7"}
	service = map[bool]string{true: "10.96.0.10:80", false: "[fd03::10]:80"}
	// The node's addresses, as hosts outside see the node and its pods.
	quay = map[bool]string{true: "198.51.100.1", false: "2001:db8:1::1"}
)

// TestProxy checks that a pod's proxy gets what the pod dials, sees the address that it dialed,
// and answers from that address: whatever it is, also a Service's, and whether the node has a route
// to it or not. Pods without a proxy, and connections to the pod, are left alone.
func TestProxy(t *testing.T) {
	for _, routing := range []string{"bpf", "stack"} {
		testProxy(t, routing, routing, "")
		// If a pod has a rate, what it sends to its proxy waits for its time, as all of its packets
		// do here.
		testProxy(t, routing+", kept to rates", routing, ", kubernetes.io/egress-bandwidth: 100k, kubernetes.io/ingress-bandwidth: 1M", "--bandwidth=true")
	}
}

func testProxy(t *testing.T, name, routing, rates string, flags ...string) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		d := newOneNodeWithProxies(t, routing, flags...)
		d.begin("mesh", "15001")
		for is4 := range outsiders {
			d.hears("before", d.a, abroad[is4], quay[is4])
		}
		d.annotate("fairlead.io/l7-proxy: mesh" + rates)
		d.has("port 15001")
		for is4 := range outsiders {
			from := d.a.addr[is4].String()
			via := func(to string) string { return fmt.Sprintf("mesh for %s from %s", to, from) }
			beside := netip.AddrPortFrom(d.b.addr[is4], 7).String()
			d.hears("with a proxy", d.a, nowhere[is4], via(nowhere[is4]))
			d.hears("with a proxy", d.a, abroad[is4], via(abroad[is4])+", "+quay[is4])
			d.hears("with a proxy", d.a, service[is4], via(service[is4])+", "+quay[is4])
			d.hears("to another pod", d.a, beside, heard(via(beside)+"\n"+d.seen(beside)))
			d.hears("to the node itself", d.a, netip.AddrPortFrom(nodeOutsideAddrs[is4], 9).String(), d.own(is4))
			d.hears("without one", d.b, abroad[is4], quay[is4])
			d.hears("another pod to it", d.b, netip.AddrPortFrom(d.a.addr[is4], 7).String(), d.b.addr[is4].String())
			if got, err := rig.RunChild(nil, d.ns, "dial", "tcp", netip.AddrPortFrom(d.a.addr[is4], 7).String()); err != nil {
				t.Errorf("the node to the pod: %q, %v", got, err)
			}
			d.until("its sockets are left alone", func() bool { return strings.Contains(d.run("map", "dump", "optout"), "proxy") })
			if got, err := rig.RunChild(d.cgroup, d.a.Netns, "inquire", service[is4]); err != nil || heard(got) != via(service[is4])+", "+quay[is4] {
				t.Errorf("a socket that would be pointed at a backend is told %q, %v", got, err)
			}
			d.sameAgain(is4, via(nowhere[is4]))
		}
		d.cookies()
		if rates != "" && d.waited() < 10 {
			t.Errorf("%d packets have waited", d.waited())
		}
	})
}

// seen returns as whom a pod's echo sees the node.
func (d *oneNodeWithProxies) seen(to string) (text string) {
	d.t.Helper()
	d.must(d.ns.Do(func() (err error) { text, err = inquireAt(to, 0); return err }))
	return text
}

// own listens on the node, and returns what it will say.
func (d *oneNodeWithProxies) own(is4 bool) string {
	d.t.Helper()
	d.must(d.ns.Do(func() error {
		listener, err := net.Listen("tcp", netip.AddrPortFrom(nodeOutsideAddrs[is4], 9).String())
		if err != nil {
			return err
		}
		d.t.Cleanup(func() { listener.Close() })
		go rig.Serve(listener, func(conn net.Conn) { _, _ = io.WriteString(conn, "the node") })
		return nil
	}))
	return "the node"
}

// sameAgain dials twice from the same port. The proxy closes first, so the first connection lingers
// on its side. The pod's port is free once the proxy has acknowledged that the pod closed too.
func (d *oneNodeWithProxies) sameAgain(is4 bool, want string) {
	d.t.Helper()
	const port = 20001 // the kernel gives out ports from 32768 on
	free := func() bool {
		return d.a.Do(func() error {
			// As the dial will: a listener may share the port with a connection that lingers, and says nothing of it.
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Bind(fd, &unix.SockaddrInet6{Port: port})
		}) == nil
	}
	for range 2 {
		for end := time.Now().Add(patience); !free(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				d.t.Fatalf("port %d of the pod is not free after %v; the pod's sockets:\n%s\nthe node's:\n%s", port, patience, sockets(d.a.Netns), sockets(d.ns))
			}
		}
		d.must(d.a.Do(func() error {
			got, err := inquireAt(nowhere[is4], port)
			if heard(got) != want {
				d.t.Errorf("from the same port, told %q, %v", got, err)
			}
			return err
		}))
	}
}

// sockets returns the states of a network namespace's TCP sockets, as the kernel prints them.
func sockets(ns *rig.Netns) (text string) {
	_ = ns.Do(func() error {
		for _, file := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
			lines, err := os.ReadFile(file)
			text += fmt.Sprintf("%s, error %v:\n%s", file, err, lines)
		}
		return nil
	})
	return text
}

// cookies has the node use SYN cookies, so that it remembers nothing about new connections.
func (d *oneNodeWithProxies) cookies() {
	d.t.Helper()
	d.must(d.ns.SetSysctl("net/ipv4/tcp_syncookies", "2"))
	before := d.counter("SyncookiesRecv")
	for is4 := range outsiders {
		d.hears("by a cookie", d.a, nowhere[is4], fmt.Sprintf("mesh for %s from %s", nowhere[is4], d.a.addr[is4]))
	}
	if after := d.counter("SyncookiesRecv"); after == before {
		d.t.Errorf("no connection was begun by a cookie: %s of them", after)
	}
}

// TestProxyGone checks that a pod without its proxy cannot begin a connection, which is counted,
// and continues once the proxy is back, or, with :pass, goes without it; that a pod that names an
// unknown proxy cannot begin a connection either; that only the pod's annotation decides which
// proxy it has, with or without the agent; and that existing connections stay as they are.
func TestProxyGone(t *testing.T) {
	t.Parallel() // it mostly waits
	d := newOneNodeWithProxies(t, "bpf")
	old := map[bool]net.Conn{}
	for is4 := range outsiders {
		old[is4] = d.openConn(is4)
	}
	// waits checks that a connection is not established until then has been called.
	waits := func(when, to, want string, then func()) {
		t.Helper()
		before := d.lost()
		answer := make(chan string, 1)
		go func() {
			var got string
			err := d.a.Do(func() (err error) { got, err = inquireAt(to, 0); return err })
			answer <- fmt.Sprintf("%s, %v", heard(got), err)
		}()
		d.until(when+": counted", func() bool { return d.lost() > before })
		then()
		if got := <-answer; got != want+", <nil>" {
			t.Errorf("%s: told %q, want %q", when, got, want)
		}
	}
	d.annotate("fairlead.io/l7-proxy: mesh")
	d.has("port 15001")
	for is4, conn := range old {
		d.talks("with a proxy since", conn)
		via := fmt.Sprintf("mesh for %s from %s", nowhere[is4], d.a.addr[is4])
		var mesh *rig.Process
		waits("before the proxy", nowhere[is4], via, func() { mesh = d.begin("mesh", "15001") })
		mesh.Kill()
		waits("after the proxy", nowhere[is4], via, func() { mesh = d.begin("mesh", "15001") })
		d.kill()
		d.hears("without the agent", d.a, nowhere[is4], via)
		d.start()
		d.ready()
		d.hears("with the next", d.a, nowhere[is4], via)
		mesh.Kill()
	}
	if text := d.statusText(); !strings.Contains(text, "proxy mesh on port 15001 for 1 pods") {
		t.Errorf("status: %s", text)
	}
	d.annotate("fairlead.io/l7-proxy: none-such")
	d.has("unknown")
	d.until("the pod is told", func() bool { return strings.Contains(d.statusText(), "UnknownProxy") })
	for is4 := range old {
		waits("without a known proxy", abroad[is4], quay[is4], func() { d.annotate(""); d.has("-") })
		d.annotate("fairlead.io/l7-proxy: none-such")
		d.has("unknown")
	}
	d.annotate("fairlead.io/l7-proxy: audit")
	d.has("port 15002, or none")
	for is4, conn := range old {
		d.hears("without a proxy that may be missing", d.a, abroad[is4], quay[is4])
		d.talks("with others since", conn)
	}
	audit := d.begin("audit", "15002")
	for is4 := range old {
		d.hears("with it", d.a, nowhere[is4], fmt.Sprintf("audit for %s from %s", nowhere[is4], d.a.addr[is4]))
	}
	audit.Kill()
	d.annotate("")
	d.has("-")
	for is4, conn := range old {
		d.hears("without the annotation", d.a, abroad[is4], quay[is4])
		d.talks("to the end", conn)
	}
}

// openConn opens a connection from the pod to a server outside that sends back what it receives.
func (d *oneNodeWithProxies) openConn(is4 bool) (conn net.Conn) {
	d.t.Helper()
	var listener net.Listener
	at := netip.AddrPortFrom(outsiders[is4], 8).String()
	d.must(d.outside.Do(func() (err error) { listener, err = net.Listen("tcp", at); return err }))
	d.t.Cleanup(func() { listener.Close() })
	go func() {
		peer, err := listener.Accept()
		if err != nil {
			return
		}
		defer peer.Close()
		_, _ = io.Copy(peer, peer)
	}()
	d.must(d.a.Do(func() (err error) { conn, err = net.DialTimeout("tcp", at, patience); return err }))
	d.t.Cleanup(func() { conn.Close() })
	d.talks("at first", conn)
	return conn
}

func (d *oneNodeWithProxies) talks(when string, conn net.Conn) {
	d.t.Helper()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, err := io.WriteString(conn, "hello")
	buffer := make([]byte, 5)
	if err == nil {
		_, err = io.ReadFull(conn, buffer)
	}
	if err != nil || string(buffer) != "hello" {
		d.t.Errorf("%s: an old connection says %q, %v", when, buffer, err)
	}
}
