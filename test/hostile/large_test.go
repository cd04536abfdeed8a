package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// TestLargeDatagrams is what the fences must let pass: datagrams that do not fit the tunnel to
// their backend and that routers may fragment, from clients that no ICMP error makes send less. They
// arrive in pieces, and so do the replies. That is so too where netfilter collects the pieces.
func TestLargeDatagrams(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=vxlan")
	client, server := w.nodes[0].pod("client"), w.nodes[1].pod("server")
	w.write("echo", fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: shop, uid: uid-echo}
spec: {type: NodePort, clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7], ipFamilies: [IPv4], ports: [{port: 53, nodePort: 30053, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-1, namespace: shop, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{port: 53, protocol: UDP}]
endpoints: [{addresses: [%s], nodeName: n2, conditions: {ready: true}}]
`, server.addr[true]))
	w.nodes[0].run("status", "--wait")
	there := listen(t, server.Netns, 53)
	go func() {
		for buffer := make([]byte, 65536); ; {
			n, from, err := there.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			if _, err := there.WriteToUDPAddrPort(buffer[:n], from); err != nil && !errors.Is(err, net.ErrClosed) {
				fmt.Fprintln(os.Stderr, "echo:", err)
			}
		}
	}()
	nodePort, own := netip.MustParseAddrPort("198.51.100.1:30053"), netip.AddrPortFrom(server.addr[true], 53)
	check := func(t *testing.T) {
		large(t, "outside", unshrinking(t, w.outside, nodePort))
		merged(t, unshrinking(t, w.outside, nodePort))
		large(t, "pod to a Service", unshrinking(t, client.Netns, netip.MustParseAddrPort("10.96.0.7:53")))
		large(t, "pod to a pod", unshrinking(t, client.Netns, own))
		large(t, "node to a pod", unshrinking(t, w.nodes[0].ns, own))
	}
	t.Run("without netfilter", check)
	t.Run("with netfilter", func(t *testing.T) {
		for _, n := range w.nodes {
			n.collect(t)
		}
		check(t)
	})
}

// large sends datagrams up to a large size, and fails unless each comes back.
func large(t *testing.T, who string, conn *net.UDPConn) {
	t.Helper()
	for _, size := range []int{100, 1402, 1440, 1472, 1500, 3000, 8000} {
		sent, deadline := bytes.Repeat([]byte{byte(size)}, size), time.Now().Add(patience)
		for answered := false; !answered; { // the first may come before the Service is known
			if _, err := conn.Write(sent); err != nil {
				t.Fatalf("%s, %d bytes: %v", who, size, err)
			}
			must(t, conn.SetReadDeadline(time.Now().Add(time.Second)))
			buffer := make([]byte, 9000)
			n, err := conn.Read(buffer)
			if answered = err == nil; answered && !bytes.Equal(buffer[:n], sent) {
				t.Errorf("%s: %d bytes come back as %d others", who, size, n)
			}
			if !answered && (size > 100 || time.Now().After(deadline)) {
				t.Errorf("%s: %d bytes get no reply: %v", who, size, err)
				break
			}
		}
	}
}

// merged sends datagrams that the programs see as one packet, and fails unless each comes back.
func merged(t *testing.T, conn *net.UDPConn) {
	t.Helper()
	const size, count = 1440, 4
	raw, err := conn.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size) }))
	must(t, err)
	if _, err := conn.Write(bytes.Repeat([]byte{7}, size*count)); err != nil {
		t.Fatal(err)
	}
	must(t, conn.SetReadDeadline(time.Now().Add(patience)))
	buffer := make([]byte, 9000)
	for i := range count {
		if n, err := conn.Read(buffer); err != nil || !bytes.Equal(buffer[:n], bytes.Repeat([]byte{7}, size)) {
			t.Fatalf("reply %d of %d to merged datagrams has %d bytes: %v", i+1, count, n, err)
		}
	}
}

// collect has netfilter follow connections on the node, for which it puts fragments together.
func (n *node) collect(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		rig.Lacking(t, "cluster", "nft of Debian's package nftables is not installed")
	}
	must(t, n.ns.Do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader("table ip collect {\n chain in {\n type filter hook prerouting priority 0\n ct state invalid counter\n }\n}\n")
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("nft: %w: %s", err, out)
		}
		return err
	}))
}

// unshrinking connects a socket that ignores what it is told about the path's MTU, and lets routers
// fragment.
func unshrinking(t *testing.T, ns *rig.Netns, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	must(t, ns.Do(func() (err error) {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		return err
	}))
	t.Cleanup(func() { conn.Close() })
	raw, err := conn.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_OMIT)
	}))
	must(t, err)
	return conn
}
