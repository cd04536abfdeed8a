package hostile

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// hops is the hop limit of what a process sends.
const hops = 64

// TestLoop is the attack of a tenant whose two Services have each other's node ports for endpoints,
// at different nodes, so that a packet goes round between the nodes. It ends with its hop limit,
// whether it is translated or encapsulated on the way, and so does what answers it.
func TestLoop(t *testing.T) {
	for _, flags := range [][]string{{"--dsr=off"}, {"--dsr=geneve", "--dsr-accept=true"}} {
		t.Run(flags[0], func(t *testing.T) {
			w := newNodesOnLAN(t, 2, append(flags, "--routing=native")...)
			w.write("services", pointingAtNode("a", 30001, 2, 30002)+pointingAtNode("b", 30002, 1, 30001))
			pod := w.nodes[0].pod("attacker")
			for _, is4 := range []bool{true, false} {
				to := netip.AddrPortFrom(netip.MustParseAddr(map[bool]string{true: "198.51.100.1", false: "2001:db8:1::1"}[is4]), 30001)
				if n := w.packetsInLoop(pod, to); n > 3*hops {
					t.Errorf("IPv4 %t: a datagram makes %d packets between the nodes", is4, n)
				}
			}
		})
	}
}

// pointingAtNode returns a Service of both families whose endpoint is a port of a node.
func pointingAtNode(name string, nodePort, node, port int) string {
	text := fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {namespace: evil, name: %[1]s}
spec: {type: NodePort, clusterIPs: [10.96.1.%[2]d, "fd96::1:%[2]d"], ports: [{port: 80, protocol: UDP, nodePort: %[3]d}]}
`, name, nodePort%100, nodePort)
	for family, addr := range map[string]string{"IPv4": fmt.Sprintf("198.51.100.%d", node), "IPv6": fmt.Sprintf("2001:db8:1::%x", node)} {
		text += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: evil, name: %[1]s-%[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[2]s
ports: [{port: %[3]d, protocol: UDP}]
endpoints: [{addresses: ["%[4]s"]}]
`, name, family, port, addr)
	}
	return text
}

// packetsInLoop returns how many packets the nodes send on the link for a datagram of a pod to a node port
// that leads round, as soon as it does.
func (w *nodesOnLAN) packetsInLoop(from *pod, to netip.AddrPort) uint64 {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		before := w.packetsSent()
		send(w.t, from.Netns, netip.AddrPortFrom(from.addr[to.Addr().Is4()], 0), to, "round and round")
		if n := w.waitQuiet(before) - before; n > hops/2 {
			return n
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s leads nowhere", to)
		}
	}
}

// waitQuiet returns how many packets the nodes have sent on the link once no more come.
func (w *nodesOnLAN) waitQuiet(before uint64) uint64 {
	w.t.Helper()
	deadline := time.Now().Add(patience)
	for last := before; ; {
		time.Sleep(300 * time.Millisecond) // a packet goes round within microseconds
		now := w.packetsSent()
		if now-last < 5 { // the kernel's neighbors and multicast groups
			return now
		}
		if last = now; time.Now().After(deadline) {
			w.t.Fatalf("%d packets, and no end", now-before)
		}
	}
}

// packetsSent returns how many packets the nodes have sent on the link.
func (w *nodesOnLAN) packetsSent() (packets uint64) {
	w.t.Helper()
	must(w.t, w.link.Do(func() error {
		for i := range w.nodes {
			port, err := netlink.LinkByName(fmt.Sprintf("port%d", i+1))
			if err != nil {
				return err
			}
			packets += port.Attrs().Statistics.RxPackets
		}
		return nil
	}))
	return packets
}
