package outside

import (
	"cmp"
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// path is a path that a connection takes.
type path struct {
	name        string
	port        uint16
	established bool // the backend sees the client's own address
	to          family
	at          uint16
}

func paths() []path {
	return []path{
		{"pod of this node", toPodA, true, podA, 8080},
		{"pod of another node", toPodB, false, podB, 8080},
		{"this node", toNodeA, true, nodeA, 9090},
		{"another node", toNodeB, false, nodeB, 9090},
	}
}

// follow sends bytes along a path and expects them back, from the right server, which must see the
// right client.
func (w *nodesBehindRouter) follow(t *testing.T, p path, v6 bool, o order) {
	t.Helper()
	w.user.t = t
	o.Dial = nodeA.at(v6, p.port)
	got, err := w.user.try(o)
	if err != nil {
		t.Errorf("%v; node a counted %v", err, w.onA.do(nodeOrder{State: true}).Drops)
		return
	}
	if want := p.to.at(v6, p.at); got.Server != want {
		t.Errorf("%s answered, want %s", got.Server, want)
	}
	from := nodeA
	if p.established {
		from = clientAddr
	}
	if want := from.at(v6, 0).Addr(); got.Client.Addr() != want {
		t.Errorf("the server saw %s, want %s", got.Client, want)
	}
	if p.established && o.From != 0 && got.Client.Port() != o.From {
		t.Errorf("the server saw port %d, want %d", got.Client.Port(), o.From)
	}
}

func familyName(v6 bool) string { return map[bool]string{false: "v4", true: "v6"}[v6] }

// followAll takes every path in both families, by TCP and with datagrams of each size.
func (w *nodesBehindRouter) followAll(t *testing.T, bytes int, datagrams ...int) {
	for _, p := range paths() {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %s", p.name, familyName(v6)), func(t *testing.T) {
				w.follow(t, p, v6, order{Bytes: 5})
				w.follow(t, p, v6, order{Bytes: bytes})
				for _, n := range datagrams {
					w.follow(t, p, v6, order{UDP: true, Bytes: n})
					w.follow(t, p, v6, order{UDP: true, Bytes: n, NoSum: true})
				}
			})
		}
	}
}

const large = 10 << 20

// NodePorts of one node lead to backends on this node and others. XDP cannot complete checksums
// that a veth leaves to a device, so where XDP runs the senders complete them.
func TestPaths(t *testing.T) {
	for _, test := range []struct {
		name string
		settings
		datagrams []int
	}{
		{"sums and large packets left to devices", settings{sums: true}, []int{0, 1, 1400}},
		{"every packet complete", settings{}, []int{0, 1, 1400}},
		{"jumbo frames", settings{sums: true, mtu: 9000}, []int{8900}},
		{"jumbo frames, every packet complete", settings{mtu: 9000}, []int{8900}},
		{"XDP", settings{xdp: "native"}, []int{0, 1, 1400}},
		{"XDP, jumbo frames", settings{xdp: "native", mtu: 9000}, []int{8900}},
		{"XDP in the stack", settings{xdp: "generic"}, []int{0, 1, 1400}},
		{"XDP of somebody else in the stack, jumbo frames", settings{sums: true, mtu: 9000, passed: true}, []int{8900}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := deviceState{Name: "eth0", XDP: test.xdp, XDPWhy: "off"}
			switch test.xdp {
			case "":
				test.xdp = "off"
			case "generic":
				want.XDPWhy = "asked for"
			default:
				want.XDPWhy = ""
			}
			test.services = true
			w := newNodesBehindRouter(t, test.settings)
			w.followAll(t, large, test.datagrams...)
			state := w.onA.do(nodeOrder{State: true})
			if len(state.Devices) == 1 {
				want.TC = cmp.Or(state.Devices[0].TC, "something")
			}
			if diff := gocmp.Diff([]deviceState{want}, state.Devices); diff != "" {
				t.Errorf("devices (-want +have):\n%s", diff)
			}
		})
	}
}
