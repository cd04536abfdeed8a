package hostile

import (
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/rig"
)

// TestBroadcast is the attack of a tenant that lists the broadcast address of the nodes' network in
// the externalIPs of a Service, to get what processes of nodes send to all hosts there. They go on
// reaching the hosts of the network.
func TestBroadcast(t *testing.T) {
	w := newNodesOnLAN(t, 1)
	n := w.nodes[0]
	rig.Route(t, n.ns, "0.0.0.0/0", "198.51.100.200")
	accomplice := n.pod("accomplice")
	w.write("services", `---
apiVersion: v1
kind: Service
metadata: {namespace: evil, name: taker}
spec: {clusterIP: 10.96.0.66, externalIPs: [198.51.100.255, 203.0.113.66], ports: [{port: 400, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: evil, name: taker-1, labels: {kubernetes.io/service-name: taker}}
addressType: IPv4
ports: [{port: 400, protocol: UDP}]
endpoints: [{addresses: [`+accomplice.addr[true].String()+`]}]
`)
	taken, there := listen(t, accomplice.Netns, 400), listen(t, w.outside, 400)
	// What is free is served, and so is all that would be of this Service.
	for deadline := time.Now().Add(patience); ; {
		n.broadcast(t, "203.0.113.66:400", "served")
		must(t, taken.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		if _, _, err := taken.ReadFromUDPAddrPort(make([]byte, 100)); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the Service is not served")
		}
	}
	n.broadcast(t, "198.51.100.255:400", "to all")
	hear(t, there, "to all")
	n.broadcast(t, "203.0.113.66:400", "and to the Service")
	hear(t, taken, "and to the Service", "to all")
}

// broadcast sends a datagram from a process of the node that may send to all.
func (n *node) broadcast(t *testing.T, to, payload string) {
	t.Helper()
	if out, err := rig.RunChild(n.cgroup, n.ns, "broadcast", to, payload); err != nil {
		t.Fatalf("broadcast: %v\n%s", err, out)
	}
}

// broadcast is that process.
func broadcast(args []string) int {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
	}
	if err == nil {
		err = unix.Sendto(s, []byte(args[1]), 0, sockaddr(netip.MustParseAddrPort(args[0])))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
