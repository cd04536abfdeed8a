package hostile

import (
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// TestNodeExternalIPs sends to an address of a node that a tenant's Service has in spec.externalIPs, at
// a port where a process of the node listens. The process gets it, from outside and from pods. With
// --node-external-ips the Service does, and what the node has at other ports stays its own.
func TestNodeExternalIPs(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		t.Run(fmt.Sprintf("allowed=%t", allowed), func(t *testing.T) {
			w := newNodesOnLAN(t, 1, fmt.Sprintf("--node-external-ips=%t", allowed))
			n := w.nodes[0]
			backend, client := n.pod("backend"), n.pod("client")
			w.write("service", fmt.Sprintf(external, backend.addr[true], backend.addr[false]))
			n.knowsService(map[bool]string{true: "198.51.100.1:7", false: "10.96.0.20:7"}[allowed])
			pod, own, other := listen(t, backend.Netns, 8080), listen(t, n.ns, 7), listen(t, n.ns, 9)
			for i, addr := range []string{"198.51.100.1", "2001:db8:1::1"} {
				to := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(addr), port) }
				for who, from := range map[string]*rig.Netns{"outside": w.outside, "a pod": client.Netns} {
					service, node := fmt.Sprint(who, i, " to the Service"), fmt.Sprint(who, i, " to the node")
					send(t, from, netip.AddrPort{}, to(7), service)
					send(t, from, netip.AddrPort{}, to(9), node)
					if allowed {
						hear(t, pod, service)
					} else {
						hear(t, own, service)
					}
					hear(t, other, node)
				}
			}
		})
	}
}

const external = `
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: shop, uid: uid-ingress}
spec: {type: ClusterIP, ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv4, IPv6], clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20, "fd00:96::20"], externalIPs: [198.51.100.1, "2001:db8:1::1"], ports: [{port: 7, targetPort: 8080, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ingress-4, namespace: shop, labels: {kubernetes.io/service-name: ingress}}
addressType: IPv4
ports: [{port: 8080, protocol: UDP}]
endpoints: [{addresses: [%s], conditions: {ready: true}, nodeName: n1}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ingress-6, namespace: shop, labels: {kubernetes.io/service-name: ingress}}
addressType: IPv6
ports: [{port: 8080, protocol: UDP}]
endpoints: [{addresses: ["%s"], conditions: {ready: true}, nodeName: n1}]
`
