package hostile

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// nested are the tunnels by which the nodes of another cluster reach each other, if they are pods: a
// protocol and a network of package net, the port with UDP, and what comes before the inner packet.
func nested(is4 bool) map[string]struct {
	network string
	port    int
	header  []byte
} {
	type tunnel = struct {
		network string
		port    int
		header  []byte
	}
	ether := append(make([]byte, 12), 8, 0)
	list := map[string]tunnel{
		"IP in IP": {"ip4:4", 0, nil},
		"GRE":      {"ip4:47", 0, []byte{0, 0, 8, 0}},
		"VXLAN":    {"udp", tunnelPort, append([]byte{8, 0, 0, 0, 0, 0, 1, 0}, ether...)},
		"Geneve":   {"udp", 6081, append([]byte{2, 0, 0x65, 0x58, 0, 0, 1, 0, 0x01, 0x02, 0x80, 1, 0, 0, 0, 80}, ether...)},
	}
	if !is4 {
		list["IP in IP"], list["GRE"] = tunnel{"ip6:41", 0, nil}, tunnel{"ip6:47", 0, []byte{0, 0, 0x86, 0xdd}}
	}
	return list
}

// TestNestedCluster sends through the tunnels of a cluster whose nodes are pods, between pods of two
// nodes and so also through the tunnel of those. All get through, to addresses of that cluster. The
// port of a Service's NodePort here is another port there.
func TestNestedCluster(t *testing.T) {
	w := newNodesOnLAN(t, 2, "--routing=vxlan", "--dsr=ipip")
	w.write("service", `---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, uid: uid-web}
spec: {type: NodePort, ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv4, IPv6], clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "fd00:96::10"], ports: [{port: 80, nodePort: 30080, protocol: UDP}]}
`)
	for _, n := range w.nodes {
		n.knowsService("*:30080")
	}
	one, two := w.nodes[0].pod("one"), w.nodes[1].pod("two")
	for _, is4 := range []bool{true, false} {
		inside := func(i int, port uint16) netip.AddrPort {
			return netip.MustParseAddrPort(fmt.Sprintf(map[bool]string{true: "172.30.0.%d:%d", false: "[fd00:30::%x]:%d"}[is4], i, port))
		}
		inner := inTunnel("", inside(1, 99), inside(2, 30080), "nested")[8+14:]
		for kind, tunnel := range nested(is4) {
			t.Run(fmt.Sprintf("%s/4=%t", kind, is4), func(t *testing.T) {
				payload := string(tunnel.header) + inner
				there := open(t, two, tunnel.network, two.addr[is4], tunnel.port)
				from := open(t, one, tunnel.network, one.addr[is4], 0)
				_, err := from.WriteTo([]byte(payload), there.LocalAddr())
				must(t, err)
				must(t, there.SetReadDeadline(time.Now().Add(patience)))
				buffer := make([]byte, 2000)
				if n, _, err := there.ReadFrom(buffer); err != nil || string(buffer[:n]) != payload {
					t.Errorf("got %d bytes (%v), want what was sent; dropped as forged: %d", n, err, w.nodes[0].drops("pod", "forged"))
				}
			})
		}
	}
}

// knowsService waits until a node has a Service with that frontend.
func (n *node) knowsService(frontend string) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !strings.Contains(n.run("service", "list"), frontend); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("%s does not know the Service at %s:\n%s", n.name, frontend, n.run("service", "list"))
		}
	}
}

// open opens a socket of a pod's at one of its addresses.
func open(t *testing.T, p *pod, network string, addr netip.Addr, port int) net.PacketConn {
	t.Helper()
	at := addr.String()
	if network == "udp" {
		at = netip.AddrPortFrom(addr, uint16(port)).String()
	}
	var conn net.PacketConn
	must(t, p.Do(func() (err error) {
		conn, err = net.ListenPacket(network, at)
		return err
	}))
	t.Cleanup(func() { conn.Close() })
	return conn
}
