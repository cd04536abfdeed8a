package main

import (
	"net"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/fabric"
)

// tunneled are two nodes, and a Service whose only backend is a pod of the other one.
const tunneled = `
apiVersion: v1
kind: Node
metadata: {name: node-a, uid: uid-a}
spec: {podCIDR: 10.244.1.0/24, podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Node
metadata: {name: node-b, uid: uid-b}
spec: {podCIDR: 10.244.2.0/24, podCIDRs: [10.244.2.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.7}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [10.244.2.5], nodeName: node-b}]
`

// TestExplainThroughTunnel checks that explain and status name the address that a backend behind the
// tunnel sees, and the device that leads there.
func TestExplainThroughTunnel(t *testing.T) {
	s := newServed(t, tunneled, "--pod-network=main", "--routing=vxlan")
	var own string
	err := s.ns.Do(func() error {
		device, err := net.InterfaceByName(fabric.DeviceName)
		if err != nil {
			return err
		}
		addrs, err := device.Addrs()
		for _, addr := range addrs {
			if ip := addr.(*net.IPNet).IP; ip.To4() != nil {
				own = ip.String()
			}
		}
		return err
	})
	if err != nil || own == "" {
		t.Fatalf("the tunnel's address: %q, %v", own, err)
	}
	e := s.explainOutside(outsideClient, toWeb)
	if e.Outcome != explain.ToBackend || e.Trial.Source.Addr().String() != own || e.Trial.Way != fabric.DeviceName {
		t.Errorf("the backend would see %s, by %q; it sees %s, by %s", e.Trial.Source, e.Trial.Way, own, fabric.DeviceName)
	}
	if !strings.Contains(e.Mode, "sees this node's address "+own) {
		t.Errorf("mode: %s", e.Mode)
	}
	if text := s.run("status"); !strings.Contains(text, "; other nodes see "+outsideNode+", or "+own+" through the tunnel "+fabric.DeviceName+", ports") {
		t.Errorf("status:\n%s", text)
	}
}
