package outside

import (
	"fmt"
	"strings"
	"testing"

	"fairlead.io/fairlead/test/rig"
)

// A client that dials a service without backends is refused at once, whether the checksums of its
// packets are complete or left to devices: a socket accepts an answer only if the checksums and
// sequence numbers in it are right.
func TestRefused(t *testing.T) {
	for _, test := range []struct {
		name      string
		completed bool // the node's device completes the checksums left to it
		settings
	}{
		{"sums left to devices", false, settings{sums: true, xdp: "off"}},
		{"sums left to the node's device", true, settings{sums: true, xdp: "off"}},
		{"every packet complete", false, settings{xdp: "off"}},
		{"by XDP", false, settings{xdp: "generic"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.services = true
			w := newNodesBehindRouter(t, test.settings)
			if test.completed {
				rig.SetOffloads(t, w.a, "eth0", rig.Offloads{})
			}
			for _, v6 := range []bool{false, true} {
				for _, o := range []order{{Bytes: 5}, {UDP: true, Bytes: 5}, {UDP: true, Bytes: 1400}, {UDP: true, Bytes: 701}, {UDP: true, Bytes: 5, NoSum: true}} {
					o.Dial = nodeA.at(v6, nowhere)
					if got, err := w.user.try(o); err == nil || !strings.Contains(err.Error(), "connection refused") {
						t.Errorf("%+v: %v, %v, want connection refused; node a counted %v", o, got, err, w.onA.do(nodeOrder{State: true}).Drops)
					}
				}
			}
		})
	}
}

// Datagrams larger than any link travel in fragments, in both directions.
func TestFragments(t *testing.T) {
	for _, xdp := range []string{"off", "generic"} {
		t.Run(xdp, func(t *testing.T) {
			w := newNodesBehindRouter(t, settings{sums: xdp == "off", xdp: xdp, services: true})
			w.followAll(t, 5, 4000, 20000)
		})
	}
}

// The link to a pod has a smaller MTU than the others: a client that sends a packet that must not
// be fragmented is told at once, and its next datagram goes in fragments.
func TestSmallerLinkBehind(t *testing.T) {
	for _, sums := range []bool{true, false} {
		t.Run(fmt.Sprint("sums ", sums), func(t *testing.T) {
			w := newNodesBehindRouter(t, settings{sums: sums, xdp: "off", services: true})
			rig.SetMTU(t, w.a, "pod0", 1300)
			rig.SetMTU(t, w.pods[0], "eth0", 1300)
			for _, v6 := range []bool{false, true} {
				w.follow(t, paths()[0], v6, order{UDP: true, Bytes: 5})
				o := order{Dial: nodeA.at(v6, toPodA), UDP: true, Bytes: 1400}
				if _, err := w.user.try(o); err == nil || !strings.Contains(err.Error(), "message too long") {
					t.Errorf("%v, want message too long; node a counted %v", err, w.onA.do(nodeOrder{State: true}).Drops)
				}
				w.follow(t, paths()[0], v6, o)
			}
		})
	}
}

// The link to another node has a smaller MTU than the others, and datagrams may be fragmented on
// the way, by the stack, although the programs give them the node's own address. So nothing is
// lost, and the client need not be told.
func TestSmallerLinkToNode(t *testing.T) {
	for _, sums := range []bool{true, false} {
		t.Run(fmt.Sprint("sums ", sums), func(t *testing.T) {
			w := newNodesBehindRouter(t, settings{sums: sums, xdp: "off", services: true, devices: "eth0,eth1"})
			rig.Veth(t, w.a, "eth1", w.b, "eth1")
			rig.SetMTU(t, w.a, "eth1", 1300)
			rig.SetMTU(t, w.b, "eth1", 1300)
			rig.Address(t, w.a, "eth1", "192.0.3.1/24")
			rig.Address(t, w.b, "eth1", "192.0.3.2/24")
			rig.Route(t, w.a, "10.244.2.5/32", "192.0.3.2")
			for o := (order{Dial: nodeA.at(false, toPodB), UDP: true, Cut: true, Bytes: 1400}); o.Bytes < 4000; o.Bytes += 1200 {
				if _, err := w.user.try(o); err != nil {
					t.Errorf("%d bytes: %v", o.Bytes, err)
				}
			}
			for reason, n := range w.onA.do(nodeOrder{State: true}).Drops {
				if n > 0 && strings.Contains(reason, "too-big") {
					t.Errorf("node a counts %d as %s", n, reason)
				}
			}
		})
	}
}
