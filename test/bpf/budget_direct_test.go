package bpf

import (
	"slices"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
)

// directRoutes returns the paths of flows whose backend answers directly. They come last, because
// the backend's node needs a route to clients, which the other paths do without.
func directRoutes() (list []route) {
	ways := route{"", func(t *testing.T, w *bareNode, _ family) (string, []byte) {
		w.leaves(t)
		return "", nil
	}}
	list = append(list, ways)
	for i, m := range wrappings() {
		list = append(list, slices.Concat(m.frontRoutes(30090+i), m.backendRoutes(30095+i))...)
	}
	return list
}

// frontRoutes returns the paths on the front node.
func (m wrapping) frontRoutes(port int) []route {
	request := func(f family, flags byte) packet {
		return packet{from: f.client + ":7000", to: addrPort(f.node, port), proto: tcp, flags: flags, ack: 1001, payload: 5, whole: true}
	}
	return []route{
		{m.name + ", new, to another node", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			now := w.tick(t, f.client+":7009", addrPort(f.node, port))
			w.setRouteEpoch(t, now-1, now+1)
			from := f.snat
			if m.name == "opt" {
				from = f.client
			}
			way := wayOf(from, f.pod, now)
			way.Smac = [6]uint8{} // lo's address, to which test frames come
			w.knows(t, way)
			w.service(t, addrPort(f.any, port), tcp, maps.NodePort, f.pod+":8090", false)
			w.direct(m.mode)
			return w.in, request(f, syn).bytes()
		}},
		{m.name + ", open now, to another node", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, request(f, ack).bytes()
		}},
		{m.name + ", open, to another node", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, request(f, ack).bytes()
		}},
	}
}

// backendRoutes returns the paths on the backend's node. XDP leaves them to tc.
func (m wrapping) backendRoutes(port int) []route {
	pod := func(f family) string { return addrPort(f.pod, port) }
	forwarded := func(f family, flags byte) []byte {
		p := packet{from: f.client + ":7000", to: addrPort(f.vip, port), proto: tcp, flags: flags, ack: 1001, payload: 5}
		return m.make(f.snat, pod(f), p.bytes())
	}
	answer := func(f family, flags byte) []byte {
		return packet{from: pod(f), to: f.client + ":7000", proto: tcp, flags: flags, seq: 1000}.bytes()
	}
	return []route{
		{m.name + ", new, from another node", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.service(t, addrPort(f.any, port), tcp, maps.NodePort, pod(f), true)
			w.hosts(t, pod(f))
			return w.in, forwarded(f, syn)
		}},
		{m.name + ", new, answer with the frontend as source", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.out, answer(f, syn|ack)
		}},
		{m.name + ", open, from another node", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			if w.out != "" { // without answers nothing is established
				w.run(t, w.in, forwarded(f, ack))
			}
			return w.in, forwarded(f, ack)
		}},
		{m.name + ", open, answer with the frontend as source", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.out, answer(f, ack)
		}},
	}
}
