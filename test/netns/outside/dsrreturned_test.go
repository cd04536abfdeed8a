package outside

import (
	"fmt"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

// TestDSRReturned checks that clients on the backend's own node, which that node cannot answer
// from the address they dialed, are served from the other node's address, while clients outside are
// still answered directly.
func TestDSRReturned(t *testing.T) {
	rig.Root(t)
	for _, mode := range []lb.Direct{lb.DirectIPIP, lb.DirectGeneve} {
		for _, s := range []settings{{xdp: "off", sums: true}, {xdp: "native"}, {xdp: "native", mtu: 9000}} {
			t.Run(fmt.Sprintf("%s xdp %s mtu %d", mode, s.xdp, s.mtu), func(t *testing.T) { inside(t, mode, s) })
		}
	}
}

func inside(t *testing.T, mode lb.Direct, s settings) {
	w := newNodesBehindRouter(t, s)
	clients := map[string]*child[order, seen]{
		"process of the backend's node": w.process(w.b),
		"the backend":                   w.process(w.pods[1]),
		"pod of the backend's node":     w.process(w.secondPod(s)),
	}
	for _, v6 := range []bool{false, true} {
		for port, at := range map[uint16]family{toDirect: podB, toDirect + 1: nodeB} {
			backend := at.at(v6, 8080)
			where := w.pods[1]
			if at == nodeB {
				where = w.b
			}
			w.process(where).do(order{Serve: backend})
			for i, node := range []*child[nodeOrder, nodeState]{w.onA, w.onB} {
				node.do(nodeOrder{Service: &service{At: anyAddr.at(v6, port), Kind: maps.NodePort, Backend: backend, Local: i == 1, Direct: mode}})
			}
			for name, client := range clients {
				t.Run(fmt.Sprintf("%s %s %s", name, backend, familyName(v6)), func(t *testing.T) {
					for _, o := range []order{{Bytes: 5}, {Bytes: 4 << 20}, {UDP: true, Bytes: 5}, {UDP: true, Bytes: 1200}} {
						w.askInside(t, client, o, path{port: port, to: at}, v6)
						w.follow(t, path{port: port, established: true, to: at, at: 8080}, v6, o)
					}
				})
			}
		}
	}
	given := fmt.Sprintf("%v/%v", bpf.MapsHookHOOK_TC, bpf.MapsReasonREASON_DSR_RETURNED)
	if drops := w.onB.do(nodeOrder{State: true}).Drops; drops[given] == 0 || len(drops) != 1 {
		t.Errorf("node b counted %v, want only packets given back", drops)
	}
	drops := w.onA.do(nodeOrder{State: true}).Drops
	delete(drops, fmt.Sprintf("%v/%v", bpf.MapsHookHOOK_TC, bpf.MapsReasonREASON_TOO_BIG)) // these tell clients outside what fits
	if len(drops) > 0 {
		t.Errorf("node a counted %v", drops)
	}
}

// secondPod adds a second pod to node b.
func (w *nodesBehindRouter) secondPod(s settings) *rig.Netns {
	t := w.t
	t.Helper()
	pod := rig.NewNetns(t, "second")
	rig.Veth(t, w.b, "pod1", pod, "eth0")
	rig.Address(t, w.b, "pod1", "10.244.3.1/24", "fd02:3::1/64")
	rig.Address(t, pod, "eth0", "10.244.3.5/24", "fd02:3::5/64")
	rig.Route(t, pod, "0.0.0.0/0", "10.244.3.1")
	rig.Route(t, pod, "::/0", "fd02:3::1")
	rig.Route(t, w.a, "10.244.3.0/24", "192.0.2.2")
	rig.Route(t, w.a, "fd02:3::/64", "2001:db8::2")
	for _, d := range []struct {
		n    *rig.Netns
		name string
	}{{w.b, "pod1"}, {pod, "eth0"}} {
		if s.mtu != 0 {
			rig.SetMTU(t, d.n, d.name, s.mtu)
		}
		rig.SetOffloads(t, d.n, d.name, rig.Offloads{Sums: s.sums, Merge: s.sums})
	}
	return pod
}

// askInside has a client inside dial node a, which shows its own address to the backend.
func (w *nodesBehindRouter) askInside(t *testing.T, client *child[order, seen], o order, p path, v6 bool) {
	t.Helper()
	client.t = t
	o.Dial = nodeA.at(v6, p.port)
	got, err := client.try(o)
	if err != nil {
		t.Errorf("%+v: %v; node a counted %v, node b %v", o, err, w.onA.do(nodeOrder{State: true}).Drops, w.onB.do(nodeOrder{State: true}).Drops)
		return
	}
	if want := p.to.at(v6, 8080); got.Server != want {
		t.Errorf("%s answered, want %s", got.Server, want)
	}
	if want := nodeA.at(v6, 0).Addr(); got.Client.Addr() != want {
		t.Errorf("the server saw %s, want %s", got.Client, want)
	}
}
