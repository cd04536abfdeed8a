package bpf

import (
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
)

// every returns the runs that accept one port of every protocol.
func every(port uint32) (runs []bpf.MapsPolicyRun) {
	for _, proto := range []byte{tcp, udp, sctp} {
		runs = append(runs, only(proto, port)...)
	}
	for i := range runs {
		if i%3 == 0 && i > 0 {
			runs[i].From = key([]byte{tcp, udp, sctp}[i/3], 0)
		}
	}
	return runs
}

// What a pod sends to a service is judged by the backend that is chosen, at both ends, and by the backend's
// port. A pod that reaches itself by a service must be allowed to send that and to receive it.
func TestPolicyService(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		f := h.f
		h.outside.reach(t, f.client, true)
		h.native(t, map[bool]string{true: "::/0", false: "0.0.0.0/0"}[f.any == "[::]"])
		for pod := range 2 {
			h.isolate(t, pod, uint32(pod+1), 0)
			for _, direction := range []uint32{ingress, egress} {
				h.decide(t, pod, direction, 0, all(denyRule))
			}
		}
		h.decide(t, 0, egress, 0, every(8080)...)
		h.decide(t, 0, egress, 1, every(8080)...)
		h.decide(t, 0, ingress, 1, every(8080)...)
		h.decide(t, 0, egress, 2, every(8080)...)
		h.decide(t, 1, ingress, 1, every(8080)...)
		for i, to := range h.ends(f) {
			for j, proto := range []byte{tcp, udp, sctp} {
				frontend := addrPort(f.clusterIP(), 80+10*i+j)
				h.service(t, frontend, proto, maps.ClusterIP, addrPort(to.addr, 8080), to.what != "on another node")
				h.converse(t, f, to, addrPort(h.addrs[0], 1000), frontend, addrPort(to.addr, 8080), proto)

				denied := addrPort(f.clusterIP(), 8080+10*i+j)
				h.service(t, denied, proto, maps.ClusterIP, addrPort(to.addr, 80), to.what != "on another node")
				h.denied(t, h.pods[0], packet{from: addrPort(h.addrs[0], 1001), to: denied, proto: proto, flags: syn})
			}
		}
		h.decide(t, 0, ingress, 1, all(denyRule))
		h.denied(t, h.pods[0], packet{from: addrPort(h.addrs[0], 1002), to: addrPort(f.clusterIP(), 100), proto: tcp, flags: syn})
	})
}

// A client outside that dials a port of the node is judged by its own address and the backend's port.
func TestPolicyNodePort(t *testing.T) {
	policyRouters(t, func(t *testing.T, h *routerPolicies) {
		f := h.f
		h.isolate(t, 1, 1, 0)
		h.decide(t, 1, ingress, 0, only(udp, 8080)...)
		h.decide(t, 1, egress, 0, all(denyRule))
		for i, port := range []int{8080, 8081} {
			h.service(t, addrPort(f.any, 30080+i), udp, maps.NodePort, addrPort(h.addrs[1], port), true)
		}
		request := packet{from: h.remote + ":1000", to: addrPort(f.node, 30080), proto: udp}
		h.outside.send(t, request)
		request.to = addrPort(h.addrs[1], 8080)
		h.pods[1].want(t, withTTL(request, 63))
		h.pods[1].send(t, packet{from: request.to, to: request.from, proto: udp})
		h.outside.want(t, withTTL(packet{from: addrPort(f.node, 30080), to: request.from, proto: udp}, 63))
		h.denied(t, h.outside, packet{from: h.remote + ":1000", to: addrPort(f.node, 30081), proto: udp})
	})
}
