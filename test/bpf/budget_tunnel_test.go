package bpf

import (
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// outOfTunnel has packets of the node come out of the tunnel, from the other node, by a program of
// that name.
func (w *bareNode) outOfTunnel(t *testing.T, f family, name string) {
	t.Helper()
	sender := netip.MustParseAddr(map[bool]string{true: "2001:db8::2", false: "192.0.2.2"}[f.any == "[::]"])
	w.programs[name], w.context = rig.OutOfTunnel(t, w.programs["tc_from_tunnel"]), rig.TunnelContext(1, sender)
}

// tunnelRoutes returns the paths of what comes out of the tunnel, on a node where packets bypass the
// stack. "open, request" is what the first costs where it comes in by another device.
func tunnelRoutes() []route {
	const program = "out of the tunnel"
	far := func(f family, port string) string {
		return map[bool]string{true: "[fd03::9]", false: "10.244.2.9"}[f.any == "[::]"] + port
	}
	pod := func(f family, port string) string {
		return map[bool]string{true: brackets(other6), false: other4}[f.any == "[::]"] + port
	}
	open := func(from func(f family, port string) string) func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.bouncing(t, tcp, from(f, ":4000"), f.node+":30080", f.snat+":61000", f.pod+":8080", false)
			return program, packet{from: from(f, ":4000"), to: f.node + ":30080", proto: tcp, flags: ack, payload: 5, whole: true}.bytes()
		}
	}
	client := func(f family, port string) string { return f.client + port }
	toPod := func(from func(f family, port string) string) func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return func(_ *testing.T, _ *bareNode, f family) (string, []byte) {
			return program, packet{from: from(f, ":4000"), to: pod(f, ":80"), proto: tcp, flags: ack}.bytes()
		}
	}
	own := func(f family, port string) string { return f.node + port }
	return []route{
		{"tunnel, open, request of another node's pod", open(far)},
		{"tunnel, open, request of a client outside", open(client)},
		{"tunnel, to a pod", toPod(far)},
		{"tunnel, to a pod, as this node", toPod(own)},
	}
}

// spendTunnel takes these paths in a family.
func spendTunnel(t *testing.T, version string, f family) (list []budget) {
	t.Helper()
	config := standardConfig()
	config.TickShift, config.Bypass, config.Masquerade, config.TunnelPort = 31, 1, 1, 8472
	w := newBareNodeOf(t, hooks()[0], config)
	w.listNodes(t)
	if _, err := w.maps.SetPods([]maps.Pod{{
		Addrs: []netip.Addr{netip.MustParseAddr(other4), netip.MustParseAddr(other6)}, Index: 1, MAC: [6]byte([]byte(otherMAC)),
	}}); err != nil {
		t.Fatal(err)
	}
	m := w.meter(t)
	w.outOfTunnel(t, f, "out of the tunnel")
	for _, r := range tunnelRoutes() {
		program, frame := r.run(t, w, f)
		m.reset(t)
		b := budget{path: fmt.Sprintf("%s, tc %s", r.name, version)}
		b.verdict, _ = w.run(t, program, frame)
		b.instructions, b.calls = m.read(t)
		list = append(list, b)
	}
	return list
}
