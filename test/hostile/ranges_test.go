package hostile

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// TestSourceRangesOfNodes is the attack of a process on a node, such as a pod on the host's network,
// that dials a load balancer's address whose source ranges do not contain the node: nothing of it
// may reach a backend, nor leave the node, since the load balancer may let it in as somebody else.
// A node in the ranges reaches a backend past the load balancer. That has to hold also where
// another plugin has the pods' network, and for sockets that no socket program sees, as here.
func TestSourceRangesOfNodes(t *testing.T) {
	for _, network := range []string{"main", "off"} {
		t.Run(network, func(t *testing.T) {
			w := newNodesOnLAN(t, 1, "--pod-network="+network)
			w.write("front", guarded)
			n, server := w.nodes[0].ns, netip.MustParseAddr("198.51.100.200")
			must(t, n.Do(func() error {
				link, err := netlink.LinkByName("eth0")
				if err != nil {
					return err
				}
				_, balancers, err := net.ParseCIDR("203.0.113.0/24")
				if err != nil {
					return err
				}
				return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: balancers, Gw: server.AsSlice()})
			}))
			allowed, refused := netip.MustParseAddrPort("203.0.113.50:53"), netip.MustParseAddrPort("203.0.113.51:53")
			backend, balancer, none := listen(t, w.outside, 8080), listen(t, w.outside, 53), netip.AddrPort{}
			deadline := time.Now().Add(patience)
			for known, buffer := false, make([]byte, 16); !known; { // until the agent has read the Service
				if time.Now().After(deadline) {
					t.Fatal("a node in the ranges does not reach the backend")
				}
				send(t, n, none, allowed, "hello")
				must(t, backend.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
				_, _, err := backend.ReadFromUDPAddrPort(buffer)
				known = err == nil
			}
			before := w.nodes[0].drops("tc", "source-range")
			send(t, n, none, refused, "refused")
			if after := w.nodes[0].drops("tc", "source-range"); after != before+1 {
				t.Errorf("%d of 1 datagram dropped", after-before)
			}
			send(t, n, none, allowed, "allowed")
			hear(t, backend, "allowed", "refused")
			send(t, n, none, netip.AddrPortFrom(server, 53), "end")
			hear(t, balancer, "end", "refused", "allowed")
		})
	}
}

const guarded = `
apiVersion: v1
kind: Service
metadata: {name: one, namespace: shop, uid: uid-one}
spec: {type: LoadBalancer, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], loadBalancerSourceRanges: [198.51.100.1/32], ports: [{port: 53, protocol: UDP}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.50}]}}
---
apiVersion: v1
kind: Service
metadata: {name: two, namespace: shop, uid: uid-two}
spec: {type: LoadBalancer, clusterIP: 10.96.0.2, clusterIPs: [10.96.0.2], ipFamilies: [IPv4], loadBalancerSourceRanges: [198.51.100.3/32], ports: [{port: 53, protocol: UDP}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.51}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: one-1, namespace: shop, labels: {kubernetes.io/service-name: one}}
addressType: IPv4
ports: [{port: 8080, protocol: UDP}]
endpoints: [{addresses: [198.51.100.200], conditions: {ready: true}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: two-1, namespace: shop, labels: {kubernetes.io/service-name: two}}
addressType: IPv4
ports: [{port: 8080, protocol: UDP}]
endpoints: [{addresses: [198.51.100.200], conditions: {ready: true}}]
`
