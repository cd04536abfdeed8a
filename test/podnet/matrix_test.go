package podnet

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/test/rig"
)

// role is what one end of a connection is.
type role string

const (
	aPod     role = "pod"
	aHost    role = "host"             // a process of the node that lets the kernel choose its address
	aHostPod role = "host-network pod" // a process that is bound to the node's address
	outside  role = "outside"
)

// kinds are the ways to ask, in the order of the table.
var kinds = []struct {
	name, protocol string
	size           int
}{{"TCP", "tcp", 20_000}, {"UDP", "udp", 10}, {"UDP, 8 KB", "udp", 8000}, {"ICMP echo", "icmp", 0}}

// most is how many cells of a setting may be wrong before the rest is skipped, because each may wait
// long for an answer.
const most = 5

// TestMatrix checks that pods, nodes and hosts outside reach each other by every protocol, and are
// seen under the address that docs/pod-network.md states. The table of the results is in the log
// and in _output/podnet/matrix.txt.
func TestMatrix(t *testing.T) {
	made, ran := &table{}, map[string]bool{}
	for _, l := range []lanForm{
		{name: "dual stack", addr4: true, addr6: true, pods4: true, pods6: true},
		{name: "IPv6 only", addr6: true, pods6: true},
	} {
		for _, mode := range []string{fabric.Native, fabric.VXLAN} {
			for _, byStack := range []bool{false, true} {
				l.mode, l.byPrograms, l.byStack = mode, true, byStack
				t.Run(fmt.Sprintf("%s, %s, %s", mode, l.name, l.how()), func(t *testing.T) {
					newNodesAndHosts(t, l, made).talk()
					ran[mode] = true
				})
			}
		}
	}
	text := made.String()
	for _, mode := range []string{fabric.Native, fabric.VXLAN} {
		if !ran[mode] {
			text += fmt.Sprintf("NOT TESTED: %s\n", mode)
		}
	}
	t.Logf("\n%s", text)
	path := filepath.Join("..", "..", "_output", "podnet", "matrix.txt")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// how says what carries the packets of pods.
func (l *lanForm) how() string {
	if l.byStack {
		return "by the stack"
	}
	return "by programs"
}

// person is one end of a connection at some place.
type person struct {
	*resident
	role   role
	node   int                 // the node of the pod or process; -1 for none
	addrs  map[bool]netip.Addr // by whether they are IPv4
	second bool                // the second pod of its node, with which the first one speaks
}

// nodesAndHosts is nodesOnLAN with two pods on each node, and with two hosts outside: one has routes to
// each pod by the pod's node, and the other by the node before that.
type nodesAndHosts struct {
	*nodesOnLAN
	lanForm
	t       *testing.T
	people  []*person
	table   *table
	wrong   int
	echoes  int
	through map[*person]bool // the hosts outside that reach pods by another node
}

func newNodesAndHosts(t *testing.T, l lanForm, made *table) *nodesAndHosts {
	t.Helper()
	n := &nodesAndHosts{nodesOnLAN: newNodesOnLAN(t, l), lanForm: l, t: t, table: made, through: map[*person]bool{}}
	n.announceNodes(n.objects)
	for i, node := range n.nodes {
		second := node.pod(fmt.Sprintf("q%d", i+1))
		node.mustAdd(second)
		for _, p := range []*pod{n.pods[i], second} {
			n.people = append(n.people, &person{resident: newResident(t, p.Netns), role: aPod, node: i, addrs: p.addr, second: p == second})
		}
		addrs := byFamily(n.objects[i].Addrs)
		r := newResident(t, node.ns, n.objects[i].Addrs...)
		n.people = append(n.people, &person{resident: r, role: aHost, node: i, addrs: addrs}, &person{resident: r, role: aHostPod, node: i, addrs: addrs})
	}
	n.addOutsider(7, 0)
	n.through[n.addOutsider(8, len(n.nodes)-1)] = true
	return n
}

func byFamily(addrs []netip.Addr) map[bool]netip.Addr {
	list := map[bool]netip.Addr{}
	for _, addr := range addrs {
		list[addr.Is4()] = addr
	}
	return list
}

// addOutsider adds a host outside that reaches the pods of each node by the node that many places
// further on.
func (n *nodesAndHosts) addOutsider(number, further int) *person {
	n.t.Helper()
	ns := rig.NewNetns(n.t, fmt.Sprintf("outside%d", number))
	n.connect(n.t, ns, fmt.Sprintf("out%d", number))
	// It ignores redirects, so that it keeps using the routes that it was given.
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, scope := range []string{"all", "eth0"} {
			if err := ns.SetSysctl("net/"+family+"/conf/"+scope+"/accept_redirects", "0"); err != nil {
				n.t.Fatal(err)
			}
		}
	}
	p := &person{role: outside, node: -1, addrs: map[bool]netip.Addr{}}
	for is4, prefix := range map[bool]string{true: "198.51.100.%d/24", false: "2001:db8:1::%d/64"} {
		if is4 && !n.addr4 || !is4 && !n.addr6 {
			continue
		}
		text := fmt.Sprintf(prefix, number)
		rig.Address(n.t, ns, "eth0", text)
		p.addrs[is4] = netip.MustParsePrefix(text).Addr()
	}
	for i, object := range n.objects {
		via := byFamily(n.objects[(i+further)%len(n.objects)].Addrs)
		for _, cidr := range object.PodCIDRs {
			rig.Route(n.t, ns, cidr.String(), via[cidr.Addr().Is4()].String())
		}
	}
	p.resident = newResident(n.t, ns)
	n.people = append(n.people, p)
	return p
}

// talk has everybody ask those on the same node, on the next node and outside.
func (n *nodesAndHosts) talk() {
	for _, from := range n.people {
		for _, to := range n.people {
			for _, is4 := range []bool{true, false} {
				if from.addrs[is4].IsValid() && to.addrs[is4].IsValid() && n.asks(from, to) {
					n.try(from, to, is4)
				}
			}
		}
	}
}

// asks reports whether one asks another. It leaves out pairs that are like another pair.
func (n *nodesAndHosts) asks(from, to *person) bool {
	switch {
	case from.second || n.through[to] || from == to && from.role == aPod:
		return false
	case from.role == outside:
		return to.role == aPod || to.role != outside && !n.through[from]
	case to.role == outside || from.node == to.node:
		return true
	}
	return !to.second && (from.node+1)%len(n.nodes) == to.node
}

// try has one ask another by every protocol.
func (n *nodesAndHosts) try(from, to *person, is4 bool) {
	n.t.Helper()
	var cells []string
	for i, kind := range kinds {
		q := question{Protocol: kind.protocol, Size: kind.size, To: netip.AddrPortFrom(to.addrs[is4], everywhere)}
		if to.role == aHostPod {
			q.To = netip.AddrPortFrom(q.To.Addr(), bound)
		}
		if from.role == aHostPod {
			q.From = from.addrs[is4]
		}
		// A tunnel makes the MTU of pods smaller than that of others. With IPv6, nothing on the way
		// fragments packets that are too big: their sender is told, and in time also those who send
		// through a tunnel between the same nodes. The programs pass such packets on as they are.
		q.Again = !is4 && n.mode == fabric.VXLAN && kind.size > 1000 && (n.byStack || n.through[from])
		seen, by := n.want(from, to, is4)
		got := n.ask(from, to, q)
		if got.Seen != seen || got.By != by || got.Error != "" {
			n.t.Errorf("%s by %s, IPv4 %t: came from %v and was answered by %v, want %v and %v; %s",
				n.way(from, to), kinds[i].name, is4, got.Seen, got.By, seen, by, got.Error)
			if n.wrong++; n.wrong > most {
				n.t.Fatal("too much is wrong to go on")
			}
		}
		cells = append(cells, n.cell(from, to, is4, got))
	}
	setting := map[bool]string{true: "IPv4", false: "IPv6"}[is4]
	if !n.addr4 {
		setting = n.name
	}
	n.table.add(n.way(from, to), setting+" "+n.how(), cells)
}

// ask asks, and finds out who sent an echo request.
func (n *nodesAndHosts) ask(from, to *person, q question) answer {
	n.t.Helper()
	if q.Protocol != "icmp" {
		return from.ask(q)
	}
	n.echoes++
	q.Token = fmt.Sprintf("echo %d", n.echoes)
	got := from.ask(q)
	if got.Error == "" {
		heard := to.ask(question{Token: q.Token})
		got.Seen, got.Error = heard.Seen, heard.Error
	}
	return got
}

// isTunneled reports whether the tunnel is on the way.
func (n *nodesAndHosts) isTunneled(from, to *person) bool {
	return n.mode == fabric.VXLAN && to.role == aPod && (n.through[from] || from.role != outside && from.node != to.node)
}

// want returns the address that is to be seen as the source, and the one that is to answer.
func (n *nodesAndHosts) want(from, to *person, is4 bool) (seen, by netip.Addr) {
	node := func(p *person) netip.Addr { return byFamily(n.objects[p.node].Addrs)[is4] }
	seen, by = from.addrs[is4], to.addrs[is4]
	switch {
	case from.role == aPod && to.role == outside:
		seen = node(from)
	case from.role == aPod && to.role != aPod && from.node != to.node && n.mode == fabric.VXLAN:
		seen = node(from) // the network between the nodes need not know pods
	case from.role == aHost && n.isTunneled(from, to):
		seen = networkOf(n.objects[from.node], is4)
	}
	return seen, by
}

// way says who asks whom, for the table.
func (n *nodesAndHosts) way(from, to *person) string {
	where := "same node"
	switch {
	case n.through[from]:
		where = "by another node"
	case from.role == outside && to.role == aPod:
		where = "by its node"
	case from.role == outside || to.role == outside:
		where = ""
	case from.node != to.node:
		where = "other node"
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s", n.mode, from.role, to.role, where)
}

// cell says which address was seen, and which one answered if it was not the one that was asked.
func (n *nodesAndHosts) cell(from, to *person, is4 bool, got answer) string {
	if got.Error != "" {
		return "FAILS"
	}
	name := func(addr netip.Addr) string {
		if from.node >= 0 && addr == networkOf(n.objects[from.node], is4) {
			return "its node, in the tunnel"
		}
		for _, p := range []*person{from, to} {
			switch {
			case p.addrs[is4] == addr && p == from:
				return "itself"
			case p.node >= 0 && addr == byFamily(n.objects[p.node].Addrs)[is4]:
				return map[bool]string{true: "its node", false: "the other's node"}[p == from]
			}
		}
		return addr.String()
	}
	text := name(got.Seen)
	if got.By != to.addrs[is4] {
		text += "; WRONG ANSWER, of " + name(got.By)
	}
	return text
}

// table is what was seen on each way, and in which settings.
type table struct {
	ways []string
	rows map[string][]row // by way
}

// row is what was seen by every protocol, in some settings.
type row struct {
	cells    string
	settings []string
}

// add records what was seen on a way in a setting; several ways may have the same name.
func (m *table) add(way, setting string, cells []string) {
	if m.rows == nil {
		m.rows = map[string][]row{}
	}
	if m.rows[way] == nil {
		m.ways = append(m.ways, way)
	}
	text := strings.Join(cells, "\t")
	at := slices.IndexFunc(m.rows[way], func(r row) bool { return r.cells == text })
	if at < 0 {
		at = len(m.rows[way])
		m.rows[way] = append(m.rows[way], row{cells: text})
	}
	if r := &m.rows[way][at]; !slices.Contains(r.settings, setting) {
		r.settings = append(r.settings, setting)
	}
}

// String returns a line for each way, or several where settings differ.
func (m *table) String() string {
	var text strings.Builder
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprint(out, "ROUTING\tFROM\tTO\t\tIN")
	for _, kind := range kinds {
		fmt.Fprintf(out, "\t%s", kind.name)
	}
	fmt.Fprintln(out)
	slices.Sort(m.ways)
	for _, way := range m.ways {
		for _, r := range m.rows[way] {
			settings := "all"
			if len(m.rows[way]) > 1 {
				settings = strings.Join(r.settings, ", ")
			}
			fmt.Fprintf(out, "%s\t%s\t%s\n", way, settings, r.cells)
		}
	}
	out.Flush()
	return text.String()
}
