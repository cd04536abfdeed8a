package outside

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/test/rig"
)

// The nodes of a test with four nodes. The router sends packets for the cluster's services to node a or to
// node c, as if it had moved all flows; their backends are on the other two.
const (
	onA = iota
	onB
	onC
	onD
)

// How many flows of each kind there are at a time.
const (
	connections = 32
	exchanges   = 16 // of datagrams
	busy        = 2  // of connections and of exchanges
)

// kind is what the flows of a set have in common.
type kind struct {
	mode lb.Direct
	v6   bool
	udp  bool
}

// kinds returns all kinds that survive a move, or all that do not.
func kinds(survive bool) (list []kind) {
	for _, mode := range modes() {
		for _, v6 := range []bool{false, true} {
			for _, udp := range []bool{false, true} {
				if k := (kind{mode, v6, udp}); k.survives() == survive {
					list = append(list, k)
				}
			}
		}
	}
	return list
}

func (k kind) String() string {
	proto := "TCP"
	if k.udp {
		proto = "UDP"
	}
	return fmt.Sprintf("%s %s %s", k.mode, proto, familyName(k.v6))
}

// survives reports whether flows continue when their packets come through another node. With SNAT a
// backend identifies a connection by the node that it came through, while datagrams continue from
// another address.
func (k kind) survives() bool { return k.mode != lb.DirectOff || k.udp }

// fronts is a cluster with two front nodes.
type fronts struct {
	*nodesBehindRouter
	agents [4]*child[nodeOrder, nodeState]
	client *child[flowsOrder, []flowSeen]
	front  int // the node to which the router sends flows
}

func newFronts(t *testing.T, s settings) *fronts {
	t.Helper()
	s.nodes = 4
	w := newNodesBehindRouter(t, s)
	f := &fronts{
		nodesBehindRouter: w, agents: [4]*child[nodeOrder, nodeState]{w.onA, w.onB, w.startNode(onC, s), w.startNode(onD, s)},
		client: &child[flowsOrder, []flowSeen]{t, rig.NewChild(t, nil, w.client, "flows")},
	}
	for i, agent := range f.agents {
		agent.do(nodeOrder{Join: string("abcd"[i])})
	}
	for _, v6 := range []bool{false, true} {
		w.process(w.pods[onB]).do(order{Serve: podB.at(v6, targetPort)})
		w.process(w.pods[onD]).do(order{Serve: podD.at(v6, targetPort)})
	}
	f.steer(onA)
	return f
}

// steer has the router send flows to another node from now on.
func (f *fronts) steer(to int) {
	f.t.Helper()
	f.front = to
	err := f.router.Do(func() error {
		var errs []error
		for i, text := range vips {
			_, vip, err := net.ParseCIDR(text)
			errs = append(errs, err, netlink.RouteReplace(&netlink.Route{Dst: vip, Gw: f.nodeAddr(i == 1).AsSlice()}))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// nodeAddr returns the address of the front node.
func (f *fronts) nodeAddr(v6 bool) netip.Addr {
	if f.front == onC {
		return nodeC.at(v6, 0).Addr()
	}
	return nodeA.at(v6, 0).Addr()
}

// flowSet is a set of flows of one kind that began together.
type flowSet struct {
	*fronts
	kind
	name string
	from uint16
	was  []flowSeen // the results of their first requests
}

// begin opens flows of some kinds from ports that no others use: a node that has to translate one
// of two flows between the same ends would give it another port.
func (f *fronts) begin(name string, first uint16, of []kind) (sets []*flowSet) {
	f.t.Helper()
	for i, k := range of {
		s := &flowSet{fronts: f, kind: k, name: name + " " + k.String(), from: first + uint16(i)*connections}
		s.open()
		sets = append(sets, s)
	}
	return sets
}

func (s *flowSet) open() {
	s.t.Helper()
	o := flowsOrder{
		Group: s.name, Dial: vipOf(s.mode).at(s.v6, vipPort), UDP: s.udp, From: s.from, Count: connections, Busy: busy, Bytes: 20_000, Turns: 1,
	}
	if s.udp {
		o.Count, o.Bytes = exchanges, 1200
	}
	was := s.was
	s.was = s.client.do(o)
	s.check("begins", s.was)
	for i := range was {
		if s.was[i].Server != was[i].Server {
			s.t.Errorf("%s: flow %d reconnects to %s, want %s as before", s.name, i, s.was[i].Server, was[i].Server)
		}
	}
}

// check checks that flows are served by their backends, which see the right clients.
func (s *flowSet) check(when string, have []flowSeen) {
	s.t.Helper()
	met := map[netip.AddrPort]int{}
	for i, h := range have {
		want := netip.AddrPortFrom(clientAddr.at(s.v6, 0).Addr(), s.from+uint16(i))
		if s.mode == lb.DirectOff {
			want = netip.AddrPortFrom(s.nodeAddr(s.v6), h.Client.Port())
		}
		if h.Err != "" || h.Server != s.was[i].Server || h.Client != want {
			s.t.Errorf("%s, flow %d, %s: %+v, want client %s and server %s", s.name, i, when, h, want, s.was[i].Server)
		}
		met[h.Server]++
	}
	if len(met) != 2 || met[podB.at(s.v6, targetPort)] == 0 || met[podD.at(s.v6, targetPort)] == 0 {
		s.t.Errorf("%s, %s: the backends have %v", s.name, when, met)
	}
}

// goOn checks that open flows continue.
func (s *flowSet) goOn(when string) {
	s.t.Helper()
	s.check(when, s.client.do(flowsOrder{Group: s.name, Turns: 2}))
}

// broken checks that the client of a connection that cannot continue is told so, and reaches the
// same backend when it reconnects.
func (s *flowSet) broken(when string) {
	s.t.Helper()
	const reset = "connection reset by peer"
	for i, h := range s.client.do(flowsOrder{Group: s.name, Turns: 1 << 30}) {
		if !strings.Contains(h.Err, reset) {
			s.t.Errorf("%s, flow %d, %s: %q, want %s", s.name, i, when, h.Err, reset)
		}
	}
	s.end()
	s.open()
	s.end()
}

func (s *flowSet) end() {
	s.t.Helper()
	s.client.do(flowsOrder{Group: s.name, Close: true})
}

// TestFronts checks that flows continue through another node, to the same backend, when the router
// moves them midway and when the node they came through dies; and that new flows are treated alike
// whichever of two nodes they reach. With SNAT, connections are reset, as docs/algorithms.md says.
func TestFronts(t *testing.T) {
	rig.Root(t)
	for _, s := range []settings{{xdp: "off", sums: true}, {xdp: "off", mtu: 9000, sums: true}, {xdp: "native"}, {xdp: "native", mtu: 9000}} {
		t.Run(fmt.Sprintf("xdp %s mtu %d sums left %t", s.xdp, s.mtu, s.sums), func(t *testing.T) {
			f := newFronts(t, s)
			first, torn := f.begin("first", 20000, kinds(true)), f.begin("torn", 21000, kinds(false))
			f.steer(onC)
			each(first, func(s *flowSet) { s.goOn("moved to node c") })
			each(torn, func(s *flowSet) { s.broken("moved to node c") })
			second := f.begin("second", 22000, kinds(true))
			each(second, (*flowSet).end)

			f.steer(onA)
			each(first, func(s *flowSet) { s.goOn("moved back to node a") })
			each(second, (*flowSet).open)
			torn = f.begin("torn again", 23000, kinds(false))
			f.cut(portOf(onA + 1))
			f.steer(onC)
			each(append(first, second...), func(s *flowSet) { s.goOn("after node a died") })
			each(torn, func(s *flowSet) { s.broken("after node a died") })
			f.checkDrops()
		})
	}
}

func each(sets []*flowSet, do func(*flowSet)) {
	for _, s := range sets {
		do(s)
	}
}

// checkDrops checks that the nodes dropped only packets for which the client was told what fits.
func (f *fronts) checkDrops() {
	f.t.Helper()
	for i, agent := range f.agents {
		drops := agent.do(nodeOrder{State: true}).Drops
		for _, hook := range []bpf.MapsHook{bpf.MapsHookHOOK_TC, bpf.MapsHookHOOK_XDP} {
			if i == onA || i == onC {
				delete(drops, fmt.Sprintf("%v/%v", hook, bpf.MapsReasonREASON_TOO_BIG))
			}
		}
		if len(drops) > 0 {
			f.t.Errorf("node %c counted %v", "abcd"[i], drops)
		}
	}
}
