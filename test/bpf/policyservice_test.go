package bpf

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

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

// What the node itself sends to a service by packets reaches a pod whatever its policies say, and so do the
// answers, but nothing else that the pod sends.
func TestPolicyOwnService(t *testing.T) {
	for name, f := range families() {
		for _, bypass := range []uint32{0, 1} {
			t.Run(name+map[uint32]string{0: " by the stack", 1: " past it, masquerading"}[bypass], func(t *testing.T) {
				config := standardConfig()
				config.Policies, config.HostFlows, config.Bypass, config.Masquerade = 1, 1, bypass, uint16(bypass)
				h := newRouterPoliciesOf(t, f, config)
				h.outside.reach(t, f.client, true)
				h.native(t, map[bool]string{true: "::/0", false: "0.0.0.0/0"}[f.any == "[::]"])
				h.isolate(t, 1, 1, 0)
				for _, direction := range []uint32{ingress, egress} {
					h.decide(t, 1, direction, 0, all(denyRule))
				}
				proto := uint16(unix.ETH_P_IP)
				if f.any == "[::]" {
					proto = unix.ETH_P_IPV6
				}
				s := &self{routerTwoPods: h.routerTwoPods, out: h.frames(t, 0, h.outside), in: h.frames(t, proto, nil)}
				pod := s.mates()[0]
				for i, proto := range []byte{tcp, udp, sctp} {
					frontend, backend := addrPort(f.clusterIP(), 80+i), addrPort(pod.addr, 8080+i)
					s.service(t, frontend, proto, maps.ClusterIP, backend, true)
					s.converse(t, pod, f.node+":1500", frontend, backend, proto)
					s.converse(t, pod, f.node+":700", frontend, backend, proto)
				}
				h.answersInFragments(t, s, pod, addrPort(f.clusterIP(), 81), addrPort(pod.addr, 8081))
				for _, p := range []packet{
					{from: addrPort(pod.addr, 8081), to: f.node + ":701", proto: udp}, {from: addrPort(pod.addr, 8080), to: f.node + ":702", proto: tcp, flags: syn},
					{from: addrPort(pod.addr, 1000), to: addrPort(f.clusterIP(), 81), proto: udp},
				} {
					h.denied(t, h.pods[1], p)
				}
				// what the pod says is judged by another generation too
				h.isolate(t, 1, 2, 0)
				s.converse(t, pod, f.node+":703", addrPort(f.clusterIP(), 80), addrPort(pod.addr, 8080), tcp)
			})
		}
	}
}

// answersInFragments has a pod answer the node, which dials a service by packets, in pieces.
func (h *routerPolicies) answersInFragments(t *testing.T, s *self, pod mate, frontend, backend string) {
	t.Helper()
	client := s.f.node + ":704"
	s.send(t, packet{from: client, to: frontend, proto: udp})
	seen := s.gets(t, pod, packet{from: pod.seen(client, frontend), to: backend, proto: udp})
	first := packet{from: backend, to: seen, proto: udp, fragment: 0x2000, payload: 800}
	s.answers(t, pod, first)
	first.from, first.to = frontend, client
	s.wants(t, first)
	later := datagram{from: host(pod.addr), to: netip.MustParseAddrPort(seen).Addr().String(), proto: udp, id: 7, fragment: 101, payload: make([]byte, 64)}
	pod.wire.later(t, later)
	later.from, later.to = host(s.f.clusterIP()), host(s.f.node)
	s.wantsLater(t, later)
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
