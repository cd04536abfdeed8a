package bpf

import (
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
)

// ownRoutes returns the paths of packets that leave a node which balances its own packets to
// services.
func ownRoutes() []route {
	leaving := func(from, to func(f family) string, proto byte) func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return func(t *testing.T, w *bareNode, f family) (string, []byte) {
			return w.out, packet{from: from(f) + ":4000", to: to(f) + ":443", proto: proto, flags: ack}.bytes()
		}
	}
	node, pod := func(f family) string { return f.node }, func(f family) string { return f.pod }
	outside, other := func(f family) string { return f.client }, func(f family) string {
		return map[bool]string{true: brackets(other6), false: other4}[f.any == "[::]"]
	}
	request := func(flags byte) func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return func(t *testing.T, w *bareNode, f family) (string, []byte) {
			return w.out, packet{from: f.node + ":700", to: f.clusterIP() + ":80", proto: tcp, flags: flags, seq: 1, ack: 1001}.bytes()
		}
	}
	answer := func(flags byte) func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return func(t *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, packet{from: f.client + ":8080", to: f.node + ":700", proto: tcp, flags: flags, seq: 1000, ack: 2}.bytes()
		}
	}
	return []route{
		{"the node, to elsewhere, a segment", leaving(node, outside, tcp)},
		{"the node, to elsewhere, a datagram", leaving(node, outside, udp)},
		{"the node, a pod's segment to another node", leaving(pod, other, tcp)},
		{"the node, a pod's datagram to another node", leaving(pod, other, udp)},
		{"the node, to a service, first", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.service(t, f.clusterIP()+":80", tcp, maps.ClusterIP, f.client+":8080", false)
			return request(syn)(t, w, f)
		}},
		{"the node, to a service, first answer", answer(syn | ack)},
		{"the node, to a service, proof", request(ack)},
		{"the node, to a service, open", request(ack)},
		{"the node, to a service, answer", answer(ack)},
	}
}

// spendOwn takes these paths in a family.
func spendOwn(t *testing.T, version string, f family) (list []budget) {
	t.Helper()
	config := standardConfig()
	config.TickShift, config.Masquerade, config.HostFlows = 31, 1, 1
	w := newBareNodeOf(t, hooks()[0], config)
	_, err := w.maps.SetPods([]maps.Pod{{Addrs: []netip.Addr{netip.MustParseAddr(host(f.pod))}, Index: 1}})
	if err != nil {
		t.Fatal(err)
	}
	h := &routerTwoPods{routerNode: &routerNode{bareNode: w}}
	h.native(t, map[bool]string{true: "::/0", false: "0.0.0.0/0"}[f.any == "[::]"])
	m := w.meter(t)
	for _, r := range ownRoutes() {
		program, frame := r.run(t, w, f)
		m.reset(t)
		b := budget{path: fmt.Sprintf("%s, tc %s", r.name, version)}
		b.verdict, _ = w.run(t, program, frame)
		b.instructions, b.calls = m.read(t)
		list = append(list, b)
	}
	return list
}
