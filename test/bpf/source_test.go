package bpf

import (
	"bytes"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
)

// Who is no pod of this node does not send as one by the node's devices: not to pods, services,
// clients outside or the node, and not in the place of a backend's answer. Where there is a tunnel,
// pods of other nodes reach neither pods nor the node's end of the tunnel past it; what they answer to
// the node and to clients goes past it.
func TestPodSources(t *testing.T) {
	for _, tunnel := range []bool{false, true} {
		config := standardConfig()
		config.Bypass, config.Masquerade = 1, 1
		if tunnel {
			config.TunnelPort = 8472
		}
		eachWith(t, config, func(t *testing.T, w *bareNode, f family) {
			w.listNodes(t)
			own, far := map[string]string{"0.0.0.0": other4, "[::]": "[" + other6 + "]"}[f.any], map[string]string{"0.0.0.0": "10.244.2.9", "[::]": "[fd03::9]"}[f.any]
			if _, err := w.maps.SetPods([]maps.Pod{{
				Addrs: []netip.Addr{netip.MustParseAddr(other4), netip.MustParseAddr(other6)}, Index: 2, MAC: [6]byte([]byte(otherMAC)),
			}}); err != nil {
				t.Fatal(err)
			}
			end := map[string]string{"0.0.0.0": "10.244.1.0", "[::]": "fd02::"}[f.any]
			if err := w.maps.SetTunnelAddr(netip.MustParseAddr(end)); err != nil {
				t.Fatal(err)
			}
			end = netip.AddrPortFrom(netip.MustParseAddr(end), 60024).String()
			w.service(t, f.vip+":80", tcp, maps.LoadBalancer, own+":8080", true)
			for _, c := range []struct {
				what, from, to string
				proto, flags   byte
				drop           bool
			}{
				{"to a pod", own + ":8080", own + ":4000", tcp, syn, true},
				{"to a service", own + ":4000", f.vip + ":80", tcp, syn, true},
				{"to the node", own + ":4000", f.node + ":80", udp, 0, true},
				{"to a client", own + ":8080", f.client + ":4000", tcp, ack, true},
				{"pods of other nodes, to a pod", far + ":4000", own + ":8080", tcp, syn, tunnel},
				{"pods of other nodes, to a service", far + ":4000", f.vip + ":80", tcp, syn, tunnel},
				{"pods of other nodes, to the node's end of the tunnel", far + ":8080", end, udp, 0, tunnel},
				{"a client, to the node's end of the tunnel", f.client + ":8080", end, udp, 0, false},
				{"another node, to a service", map[string]string{"0.0.0.0": "192.0.2.2", "[::]": "[2001:db8::2]"}[f.any] + ":4000", f.vip + ":80", tcp, syn, false},
				{"pods of other nodes, to the node", far + ":4000", f.node + ":8080", tcp, ack, false},
				{"pods of other nodes, to a client", far + ":4000", f.client + ":8080", tcp, ack, false},
				{"a client, to a pod", f.client + ":4001", own + ":8080", tcp, syn, false},
			} {
				w.wantSourceDrop(t, c.what, packet{from: c.from, to: c.to, proto: c.proto, flags: c.flags}, c.drop)
			}
			if w.out == "" {
				return // answers leave by another hook
			}
			w.open(t, f, own)
			w.wantSourceDrop(t, "in the place of an answer", packet{from: own + ":8080", to: f.client + ":4000", proto: tcp, flags: ack}, true)
		})
	}
}

// open establishes a client's flow with a backend that is a pod of this node.
func (w *bareNode) open(t *testing.T, f family, pod string) {
	t.Helper()
	request, answer := packet{from: f.client + ":4000", to: f.vip + ":80", proto: tcp, flags: syn}, packet{from: pod + ":8080", to: f.client + ":4000", proto: tcp, flags: syn | ack, seq: 1000}
	w.run(t, w.in, request.bytes())
	w.run(t, w.out, answer.bytes())
	request.flags, request.ack = ack, 1001
	w.run(t, w.in, request.bytes())
	if open, _ := w.rows(t); open != 2 {
		t.Fatalf("%d rows are established, want 2", open)
	}
}

// wantSourceDrop fails unless a packet that comes in by a device is dropped for its source, or is not. XDP
// leaves what is to be dropped to tc, as it is.
func (w *bareNode) wantSourceDrop(t *testing.T, what string, p packet, drop bool) {
	t.Helper()
	frame, before := p.bytes(), w.counted(t, "pod-source")
	verdict, out := w.run(t, w.in, frame)
	dropped := w.counted(t, "pod-source") - before
	if w.in == "xdp_from_netdev" {
		if dropped != 0 || (drop && (verdict != "pass" || !bytes.Equal(frame, out))) {
			t.Errorf("%s: %s, dropped %d, changed %t", what, verdict, dropped, !bytes.Equal(frame, out))
		}
		return
	}
	if (dropped == 1) != drop || (drop && verdict != "drop") {
		t.Errorf("%s: %s, dropped %d, want that %t; counted: %v", what, verdict, dropped, drop, w.reasons(t))
	}
}
