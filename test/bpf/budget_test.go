package bpf

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

const budgetFile = "testdata/budgets.txt"

const budgetHead = `# What each path of a packet may cost: the calls of helpers, exactly, those of maps with the map's name (with both names
# where one call is for either map, depending on the configuration; these have the standard one); and the most
# instructions, as compiled, that are executed. After a change that is worth it:
#
#	go test ./test/bpf -run TestBudgets -update
`

var updateBudgets = flag.Bool("update", false, "write the cost of paths to "+budgetFile)

// route is a path through the programs that has a budget. All are taken in order on one node, so
// each may build on those before it.
type route struct {
	name string
	run  func(t *testing.T, w *bareNode, f family) (program string, frame []byte)
}

// bouncing plants a row whose packets go back where they came from, which is lo in a test run.
func (w *bareNode) bouncing(t *testing.T, proto uint8, from, to, newFrom, newTo string, reply bool) {
	t.Helper()
	row := rowOf(newFrom, newTo, reply)
	row.Ifindex, row.Dmac, row.Seen = 1, [6]uint8{2, 0, 0, 0, 0, 1}, w.tick(t, from, to)
	row.SeqHi = 1 // the packets that follow have sequence number zero
	w.plant(t, w.maps.Ct, flowOf(from, to, proto), row)
}

// tick has a packet record the current tick in a row, and returns it.
func (w *bareNode) tick(t *testing.T, from, to string) uint32 {
	t.Helper()
	w.plant(t, w.maps.Ct, flowOf(from, to, tcp), rowOf(to, from, true))
	w.run(t, w.in, packet{from: from, to: to, proto: tcp, flags: ack}.bytes())
	row, ok := w.row(t, from, to, tcp)
	if !ok {
		t.Fatal("the row that was just used is gone")
	}
	return row.Seen
}

// first plants a flow that was last used two ticks ago, and returns its next packet. As far as the
// programs are told, ways changed the given number of ticks after that. A client that keeps its
// address has a backend on this node.
func (w *bareNode) first(t *testing.T, f family, from string, changed int32) (program string, frame []byte) {
	t.Helper()
	request, answer := f.client+":4001", f.node+":30080"
	now := w.tick(t, request, answer)
	w.setRouteEpoch(t, now-2+uint32(changed), now+1)
	row := rowOf(from+":61001", f.pod+":8080", false)
	row.Ifindex, row.Dmac, row.Seen = 1, [6]uint8{2, 0, 0, 0, 0, 1}, now-2
	row.SeqHi = 1 // the packets that follow have sequence number zero
	if from == f.client {
		row.Kind, row.Ifindex, row.Dmac = uint8(maps.FlowLocal), 0, [6]uint8{}
	}
	w.plant(t, w.maps.Ct, flowOf(request, answer, tcp), row)
	return w.in, packet{from: request, to: answer, proto: tcp, flags: ack}.bytes()
}

// guarded plants a flow to a load balancer's address that was last used two ticks ago, and returns
// its next packet. The source ranges of the address changed the given number of ticks after that.
func (w *bareNode) guarded(t *testing.T, f family, vip string, changed int32) (program string, frame []byte) {
	t.Helper()
	client := f.client + ":4002"
	if w.services == 0 {
		w.service(t, vip, tcp, maps.LoadBalancer, f.pod+":8080", false)
	}
	now := w.tick(t, client, vip)
	w.setRouteEpoch(t, now-9, now+1)
	w.setRangeEpoch(t, now-2+uint32(changed))
	row := rowOf(f.snat+":61002", f.pod+":8080", false)
	row.Ifindex, row.Dmac, row.Seen, row.Kind = 1, [6]uint8{2, 0, 0, 0, 0, 1}, now-2, maps.FlowHasRanges
	row.SeqHi = 1 // the packets that follow have sequence number zero
	w.plant(t, w.maps.Ct, flowOf(client, vip, tcp), row)
	return w.in, packet{from: client, to: vip, proto: tcp, flags: ack}.bytes()
}

// setRouteEpoch has the programs believe that ways last changed in one tick, and that the agent follows
// changes until another.
func (w *bareNode) setRouteEpoch(t *testing.T, changed, until uint32) {
	t.Helper()
	if err := w.maps.RouteEpoch.Put(uint32(0), maps.RouteEpoch{Changed: changed, Until: until}); err != nil {
		t.Fatal(err)
	}
}

// routes returns all paths.
func routes() []route {
	return slices.Concat(openRoutes(), newRoutes(), otherRoutes(), directRoutes())
}

// association returns a packet of an SCTP association, whose checksum depends on the ports.
func association(f family, payload int) []byte {
	return packet{from: f.client + ":4000", to: f.node + ":30080", proto: sctp, ack: 1000, payload: payload, whole: true}.bytes()
}

// openRoutes returns the paths of established flows.
func openRoutes() []route {
	request := func(f family, payload int) packet {
		return packet{from: f.client + ":4000", to: f.node + ":30080", proto: tcp, flags: ack, payload: payload, whole: true}
	}
	open := func(t *testing.T, w *bareNode, f family) {
		w.bouncing(t, tcp, f.client+":4000", f.node+":30080", f.snat+":61000", f.pod+":8080", false)
	}
	return []route{
		{"open, request", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			open(t, w, f)
			return w.in, request(f, 5).bytes()
		}},
		{"open, request of 1400 bytes", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, request(f, 1400).bytes()
		}},
		{"open, answer from another node", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.bouncing(t, tcp, f.pod+":8080", f.snat+":61000", f.node+":30080", f.client+":4000", true)
			return w.in, packet{from: f.pod + ":8080", to: f.snat + ":61000", proto: tcp, flags: ack}.bytes()
		}},
		{"open, answer from this node", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			from, to := f.pod+":8080", f.client+":4002"
			row := rowOf(f.node+":30080", to, true)
			row.Kind, row.Seen, row.SeqHi = uint8(maps.FlowLocal)|maps.FlowReply, w.tick(t, from, to), 1
			w.plant(t, w.maps.Ct, flowOf(from, to, tcp), row)
			return w.out, packet{from: from, to: to, proto: tcp, flags: ack}.bytes()
		}},
		{"open, no hops left", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, withTTL(request(f, 5), 1).bytes()
		}},
		{"open, first in its tick", func(t *testing.T, w *bareNode, f family) (string, []byte) { return w.first(t, f, f.snat, -1) }},
		{"open, first in its tick, to this node", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			return w.first(t, f, f.client, -1)
		}},
		{"open, first in its tick after a change", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			return w.first(t, f, f.snat, 0)
		}},
		{"open, error about an answer", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			about := packet{from: f.node + ":30080", to: f.client + ":4000", proto: tcp, flags: ack}
			return w.in, message{from: host(f.client), to: host(f.node), kind: f.kinds().tooBig, code: 4, rest: 1400, body: quoted(about, 20)}.bytes()
		}},
		{"open, association", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.bouncing(t, sctp, f.client+":4000", f.node+":30080", f.snat+":61000", f.pod+":8080", false)
			return w.in, association(f, 5)
		}},
		{"open, association with 1400 bytes", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, association(f, 1400)
		}},
		{"open, first in its tick, to a load balancer", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			return w.guarded(t, f, guardedIn(f).vip+":443", -1)
		}},
		{"open, first in its tick after the range epoch changed, to a load balancer", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			return w.guarded(t, f, guardedIn(f).vip+":443", 0)
		}},
		{"open, first in its tick after the range epoch changed, within a source range", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			program, frame := w.guarded(t, f, guardedIn(f).vip+":443", 0)
			w.guard(t, guardedIn(f).around)
			return program, frame
		}},
	}
}

// newRoutes returns the paths of flows that begin.
func newRoutes() []route {
	dial := func(f family, port string, flags byte) packet {
		return packet{from: f.client + ":5000", to: f.node + ":" + port, proto: tcp, flags: flags, ack: 1001}
	}
	toUDP := func(f family, addr string, n int) []datagram {
		return split(udpTo(f.client+":5000", addr, n), 800, 9)
	}
	return []route{
		{"new, to another node", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.service(t, f.any+":30080", tcp, maps.NodePort, f.pod+":8080", false)
			return w.in, dial(f, "30080", syn).bytes()
		}},
		{"new, the same packet again", func(_ *testing.T, w *bareNode, f family) (string, []byte) { return w.in, dial(f, "30080", syn).bytes() }},
		{"new, first answer from another node", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			_, out := w.run(t, w.in, dial(f, "30080", syn).bytes())
			return w.in, packet{from: f.pod + ":8080", to: f.snat + ":" + portOf(out, f), proto: tcp, flags: syn | ack, seq: 1000}.bytes()
		}},
		{"new, what establishes it", func(_ *testing.T, w *bareNode, f family) (string, []byte) { return w.in, dial(f, "30080", ack).bytes() }},
		{"new, to another node by ways that are known", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			now := w.tick(t, f.client+":5009", f.node+":30080")
			w.setRouteEpoch(t, now-1, now+1)
			w.knows(t, wayOf(f.snat, f.pod, now))
			return w.in, packet{from: f.client + ":5005", to: f.node + ":30080", proto: tcp, flags: syn}.bytes()
		}},
		{"new, to this node", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.service(t, f.any+":30081", tcp, maps.NodePort, f.pod+":8081", true)
			return w.in, dial(f, "30081", syn).bytes()
		}},
		{"new, first answer from this node", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.out, packet{from: f.pod + ":8081", to: f.client + ":5000", proto: tcp, flags: syn | ack, seq: 1000}.bytes()
		}},
		{"new, datagram within a source range", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			g := guardedIn(f)
			w.service(t, g.vip+":53", udp, maps.LoadBalancer, f.pod+":53", true)
			w.guard(t, g.around)
			return w.in, toUDP(f, g.vip+":53", 100)[0].bytes()
		}},
		{"new, first fragment", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.service(t, f.any+":30053", udp, maps.NodePort, f.pod+":54", true)
			return w.in, toUDP(f, f.node+":30053", 1000)[0].bytes()
		}},
		{"new, later fragment", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, toUDP(f, f.node+":30053", 1000)[1].bytes()
		}},
		{"new, no backend", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.service(t, f.any+":30082", tcp, maps.NodePort, "", false)
			return w.in, dial(f, "30082", syn).bytes()
		}},
		{"new, to a ClusterIP", func(t *testing.T, w *bareNode, f family) (string, []byte) {
			w.service(t, f.vip+":80", tcp, maps.ClusterIP, f.pod+":8080", true)
			return w.in, packet{from: f.client + ":5000", to: f.vip + ":80", proto: tcp, flags: syn}.bytes()
		}},
	}
}

// otherRoutes returns the paths of packets that are not for a service.
func otherRoutes() []route {
	return []route{
		{"other, to this node", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, packet{from: f.client + ":6000", to: f.node + ":22", proto: tcp, flags: ack}.bytes()
		}},
		{"other, to elsewhere", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, packet{from: f.client + ":6000", to: f.pod + ":22", proto: tcp, flags: ack}.bytes()
		}},
		{"other, from here", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.out, packet{from: f.pod + ":22", to: f.client + ":6000", proto: tcp, flags: ack}.bytes()
		}},
		{"other, without ports", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, datagram{from: host(f.client), to: host(f.node), proto: 47, payload: make([]byte, 40)}.bytes()
		}},
		{"other, ping", func(_ *testing.T, w *bareNode, f family) (string, []byte) {
			return w.in, message{from: host(f.client), to: host(f.node), kind: f.kinds().echo, body: make([]byte, 40)}.bytes()
		}},
	}
}

// budget is what a path costs.
type budget struct {
	path         string // with hook and family
	verdict      string
	calls        string
	instructions uint64
}

// parseBudget parses a line that budget.String wrote.
func parseBudget(line string) (b budget, err error) {
	fields := strings.Split(line, " | ")
	if len(fields) != 4 {
		return b, fmt.Errorf("parse budget %q: not four parts", line)
	}
	b.path, b.verdict, b.calls = fields[0], fields[1], fields[2]
	_, err = fmt.Sscan(fields[3], &b.instructions)
	return b, err
}

func (b budget) String() string {
	return fmt.Sprintf("%s | %s | %s | %d", b.path, b.verdict, b.calls, b.instructions)
}

// spend takes every path of a hook in a family.
func spend(t *testing.T, h hook, version string, f family) (list []budget) {
	config := standardConfig()
	config.TickShift = 31 // one tick for the whole test
	w := newBareNodeOf(t, h, config)
	m := w.meter(t)
	for _, r := range routes() {
		program, frame := r.run(t, w, f)
		if program == "" {
			continue
		}
		m.reset(t)
		b := budget{path: fmt.Sprintf("%s, %s %s", r.name, h.name, version)}
		b.verdict, _ = w.run(t, program, frame)
		b.instructions, b.calls = m.read(t)
		list = append(list, b)
	}
	return list
}

// No path does more than its reviewed budget allows.
func TestBudgets(t *testing.T) {
	rig.Root(t)
	var have []budget
	for _, h := range hooks() {
		for _, version := range []string{"v4", "v6"} {
			have = append(have, spend(t, h, version, families()[version])...)
		}
	}
	for _, version := range []string{"v4", "v6"} {
		have = append(have, spendPods(t, version, families()[version])...)
		have = append(have, spendPolicies(t, version, families()[version])...)
		have = append(have, spendOwn(t, version, families()[version])...)
		have = append(have, spendTunnel(t, version, families()[version])...)
	}
	slices.SortStableFunc(have, func(a, b budget) int { return strings.Compare(a.path, b.path) })
	if *updateBudgets {
		text := budgetHead
		for _, b := range have {
			b.instructions = (b.instructions*105/100 + 9) / 10 * 10 // slack for the compiler to reorder code
			text += b.String() + "\n"
		}
		if err := os.WriteFile(budgetFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	checkBudgets(t, have)
}

func checkBudgets(t *testing.T, have []budget) {
	t.Helper()
	text, err := os.ReadFile(budgetFile)
	if err != nil {
		t.Fatal(err)
	}
	budgets := map[string]budget{}
	for line := range strings.Lines(strings.TrimPrefix(string(text), budgetHead)) {
		b, err := parseBudget(strings.TrimSuffix(line, "\n"))
		if err != nil {
			t.Fatal(err)
		}
		budgets[b.path] = b
	}
	for _, b := range have {
		want, ok := budgets[b.path]
		delete(budgets, b.path)
		if b.verdict != want.verdict || b.calls != want.calls || b.instructions > want.instructions {
			t.Errorf("%s: has a budget: %v\nhave  %v\nwant  %v", b.path, ok, b, want)
		}
	}
	for path := range budgets {
		t.Errorf("%s: no test takes that path any more", path)
	}
}
