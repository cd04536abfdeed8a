package bpf

import (
	"fmt"
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
)

// podRoutes returns the paths of what a pod sends and gets, on a node where packets bypass the
// stack.
func podRoutes() []route {
	from := func(f family, port string) string {
		return map[bool]string{true: "[" + pod6 + "]", false: pod4}[f.any == "[::]"] + port
	}
	other := func(f family, port string) string {
		return map[bool]string{true: "[" + other6 + "]", false: other4}[f.any == "[::]"] + port
	}
	plain := func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return "tc_from_pod", packet{from: from(f, ":4000"), to: other(f, ":80"), proto: tcp, flags: ack}.bytes()
	}
	outside := func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return "tc_from_pod", packet{from: from(f, ":4000"), to: f.client + ":80", proto: tcp, flags: ack}.bytes()
	}
	in := func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return "tc_to_pod", packet{from: other(f, ":80"), to: from(f, ":4000"), proto: tcp, flags: ack}.bytes()
	}
	request := func(flags byte) func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return func(t *testing.T, w *bareNode, f family) (string, []byte) {
			return "tc_from_pod", packet{from: from(f, ":5000"), to: f.clusterIP() + ":80", proto: tcp, flags: flags, seq: 1, ack: 1001}.bytes()
		}
	}
	answer := func(flags byte) func(t *testing.T, w *bareNode, f family) (string, []byte) {
		return func(t *testing.T, w *bareNode, f family) (string, []byte) {
			return "tc_to_pod", packet{from: other(f, ":8080"), to: from(f, ":5000"), proto: tcp, flags: flags, seq: 1000, ack: 2}.bytes()
		}
	}
	return []route{
		{"pods, to another", plain},
		{"pods, to the outside", outside},
		{"pods, by the stack", in},
		{"pods, to a service, first", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.service(t, f.clusterIP()+":80", tcp, maps.ClusterIP, other(f, ":8080"), true)
			return request(syn)(t, w, f)
		}},
		{"pods, to a service, first answer", answer(syn | ack)},
		{"pods, to a service, proof", request(ack)},
		{"pods, to a service, open", request(ack)},
		{"pods, to a service, answer", answer(ack)},
		{"pods, where one dials services, to another", plain},
		{"pods, where one dials services, to the outside", outside},
		{"pods, where one dials services, by the stack", in},
		{"pods, with a proxy, of an older connection", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			addr := netip.MustParseAddr(map[bool]string{true: pod6, false: pod4}[f.any == "[::]"])
			pod := maps.Pod{
				Addrs: []netip.Addr{addr}, Index: 1, MAC: [6]byte([]byte(podMAC)), HostMAC: [6]byte([]byte(hostMAC)),
				Proxy: maps.Proxy{Asked: true, Port: proxyPort},
			}
			if err := w.maps.AddPod(pod); err != nil {
				t.Fatal(err)
			}
			return plain(t, w, f)
		}},
		{"loopback, of others, way out", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			_, frame := plain(t, w, f)
			return "tc_to_lo", frame
		}},
		{"loopback, of others, way in", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			_, frame := plain(t, w, f)
			return "tc_from_lo", frame
		}},
	}
}

// spendPods takes every path of pods' devices in a family.
func spendPods(t *testing.T, version string, f family) (list []budget) {
	t.Helper()
	config := standardConfig()
	config.TickShift, config.Bypass = 31, 1
	w := newBareNodeTwoPods(t, config, false)
	m := w.meter(t)
	for _, r := range podRoutes() {
		program, frame := r.run(t, w, f)
		frame = sent{frame: frame}.bytes()
		m.reset(t)
		b := budget{path: fmt.Sprintf("%s, tc %s", r.name, version)}
		b.verdict, _ = w.run(t, program, frame)
		b.instructions, b.calls = m.read(t)
		list = append(list, b)
	}
	return list
}
