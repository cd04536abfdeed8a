package nodes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

func node(name, addrs string, cidrs ...string) *model.Node {
	n := &model.Node{Name: name}
	for text := range strings.FieldsSeq(addrs) {
		n.Addrs = append(n.Addrs, netip.MustParseAddr(text))
	}
	for _, cidr := range cidrs {
		n.PodCIDRs = append(n.PodCIDRs, netip.MustParsePrefix(cidr))
	}
	return n
}

func self() *model.Node { return node("self", "192.0.2.1 2001:db8::1", "10.1.0.0/24", "fd00:1::/64") }

// rowsText returns the rows as text: "address is name" and "network of name".
func rowsText(c maps.Cluster, nodes ...*model.Node) []string {
	names := map[uint64]string{}
	for _, n := range append(nodes, self()) {
		names[hashOf(n.Name)] = n.Name
	}
	var list []string
	for addr, row := range c.Nodes {
		list = append(list, fmt.Sprintf("%s is %s", addr, names[row.Name]))
	}
	for prefix, row := range c.Sources {
		if !prefix.IsSingleIP() {
			list = append(list, fmt.Sprintf("%s of %s", prefix, names[row.Name]))
		}
	}
	slices.Sort(list)
	return list
}

func TestCompile(t *testing.T) {
	always := []string{"10.1.0.0/24 of self", "192.0.2.1 is self", "2001:db8::1 is self", "fd00:1::/64 of self"}
	b := node("b", "192.0.2.2 2001:db8::2", "10.2.0.0/24", "fd00:2::/64")
	bs := []string{"10.2.0.0/24 of b", "192.0.2.2 is b", "2001:db8::2 is b", "fd00:2::/64 of b"}
	without := func(list []string, gone ...string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(gone, s) })
	}
	for _, tt := range []struct {
		name    string
		nodes   []*model.Node
		have    []*model.Node // the rows are those of these
		settled Claims
		want    []string
		refused string
	}{
		{name: "both families", nodes: []*model.Node{b}, want: bs},
		{name: "not the loopback", nodes: []*model.Node{b, node("c", "127.0.0.1 ::1")}, want: bs, refused: "127.0.0.1 of node c: a loopback address\n::1 of node c: a loopback address"},
		{name: "not multicast", nodes: []*model.Node{b, node("c", "224.0.0.5")}, want: bs, refused: "224.0.0.5 of node c: a multicast address"},
		{name: "not link-local", nodes: []*model.Node{b, node("c", "169.254.1.1")}, want: bs, refused: "169.254.1.1 of node c: no address by which other nodes could know it"},
		{name: "not a pod of this node", nodes: []*model.Node{b, node("c", "10.1.0.7")}, want: bs,
			refused: "10.1.0.7 of node c: it is in 10.1.0.0/24, where pods have their addresses"},
		{name: "not a pod of another", have: []*model.Node{b}, nodes: []*model.Node{node("a", "10.2.0.7"), b}, want: bs,
			refused: "10.2.0.7 of node a: it is in 10.2.0.0/24, where pods have their addresses"},
		{name: "not a pod by the routes", settled: Claims{b.PodCIDRs[0]: "b", b.PodCIDRs[1]: "b"}, nodes: []*model.Node{node("a", "10.2.0.7"), b}, want: bs,
			refused: "10.2.0.7 of node a: it is in 10.2.0.0/24, where pods have their addresses"},
		{name: "not another's address", have: []*model.Node{b}, nodes: []*model.Node{node("a", "192.0.2.2"), b}, want: bs,
			refused: "192.0.2.2 of node a: another node has it"},
		{name: "not this node's address", nodes: []*model.Node{node("a", "192.0.2.1")}, refused: "192.0.2.1 of node a: another node has it"},
		{name: "the first by name of two at once", nodes: []*model.Node{node("a", "192.0.2.2"), node("b", "192.0.2.2")}, want: []string{"192.0.2.2 is a"},
			refused: "192.0.2.2 of node b: another node has it"},
		{name: "not another's network", have: []*model.Node{b}, nodes: []*model.Node{node("a", "192.0.2.3", "10.2.0.0/25"), b}, want: append([]string{"192.0.2.3 is a"}, bs...),
			refused: "10.2.0.0/25 of node a: it overlaps with 10.2.0.0/24 of node b"},
		{name: "not this node's network", nodes: []*model.Node{node("a", "192.0.2.3", "10.1.0.0/16")}, want: []string{"192.0.2.3 is a"},
			refused: "10.1.0.0/16 of node a: it overlaps with 10.1.0.0/24 of node self"},
		{name: "not the nodes' network", nodes: []*model.Node{node("a", "192.0.2.3", "192.0.2.0/24"), b}, want: append([]string{"192.0.2.3 is a"}, bs...),
			refused: "192.0.2.0/24 of node a: it has the address of a node"},
		{name: "not everything", nodes: []*model.Node{node("a", "192.0.2.3", "10.0.0.0/7"), b}, want: append([]string{"192.0.2.3 is a"}, bs...),
			refused: "10.0.0.0/7 of node a: no node has so many pods"},
		{name: "what the routes say", settled: Claims{netip.MustParsePrefix("10.2.0.0/24"): "a"}, nodes: []*model.Node{node("a", "192.0.2.3", "10.2.0.0/24"), b},
			want: append([]string{"10.2.0.0/24 of a", "192.0.2.3 is a"}, without(bs, "10.2.0.0/24 of b", "fd00:2::/64 of b")...)},
		{name: "not a pod of one that is to come", nodes: []*model.Node{node("a", "192.0.2.3 10.2.0.7"), b}, have: []*model.Node{node("a", "192.0.2.3 10.2.0.7")},
			want: append([]string{"192.0.2.3 is a"}, bs...), refused: "10.2.0.7 of node a: it is in 10.2.0.0/24, where pods have their addresses"},
		{name: "one that went while its routes are settled", settled: Claims{netip.MustParsePrefix("10.9.0.0/24"): "gone"}, nodes: []*model.Node{b},
			want: without(bs, "10.2.0.0/24 of b", "fd00:2::/64 of b")},
		{name: "one that went", have: []*model.Node{b}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			have, _ := compile(input{self: self(), nodes: tt.have, own: self().PodCIDRs})
			got, refused := compile(input{self: self(), nodes: tt.nodes, own: self().PodCIDRs, have: have, accepted: tt.settled})
			want := append(slices.Clone(always), tt.want...)
			slices.Sort(want)
			if list := rowsText(got, tt.nodes...); !slices.Equal(list, want) {
				t.Errorf("rows\n%q, want\n%q", list, want)
			}
			if why := strings.Join(refused, "\n"); why != tt.refused {
				t.Errorf("refused %q, want %q", why, tt.refused)
			}
		})
	}
}

// Each network of pods that a node has gives it the first address, where its end of the tunnel is. A network that
// is refused gives none.
func TestTunnelEnds(t *testing.T) {
	b := node("b", "192.0.2.2", "10.2.0.9/24", "fd00:2::/64")
	thief := node("c", "192.0.2.3", "10.2.0.128/25", "10.3.0.0/24")
	nodes := []*model.Node{b, thief}
	for name, settled := range map[string]Claims{
		"no routes": nil,
		"routes":    {netip.MustParsePrefix("10.2.0.0/24"): "b", netip.MustParsePrefix("fd00:2::/64"): "b", netip.MustParsePrefix("10.3.0.0/24"): "c"},
	} {
		got, _ := compile(input{self: self(), nodes: nodes, own: self().PodCIDRs, accepted: settled})
		ends := map[string]string{}
		for prefix, row := range got.Sources {
			if !row.Tunnel {
				continue
			}
			for _, n := range append(nodes, self()) {
				if row == (maps.ClusterNode{Name: hashOf(n.Name), Number: row.Number, Self: n.Name == "self", Tunnel: true}) {
					ends[prefix.String()] = n.Name
				}
			}
		}
		want := map[string]string{"10.1.0.0/32": "self", "fd00:1::/128": "self", "10.2.0.0/32": "b", "fd00:2::/128": "b", "10.3.0.0/32": "c"}
		if diff := cmp.Diff(want, ends); diff != "" {
			t.Errorf("%s: ends of the tunnel (-want +got):\n%s", name, diff)
		}
		if again, _ := compile(input{self: self(), nodes: nodes, own: self().PodCIDRs, accepted: settled, have: got}); !again.Equal(got) {
			t.Errorf("%s: a second look changes %v to %v", name, got.Sources, again.Sources)
		}
	}
}

// Whatever nodes claim, in whatever order they come and go: who has something keeps it as long as it
// is claimed, no number has two nodes, not even one after the other, and a restart changes nothing.
func TestNothingIsTaken(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	var have maps.Cluster
	names := []string{"a", "b", "c", "z"}
	for range 3000 {
		var nodes []*model.Node
		for _, name := range names {
			if random.IntN(4) == 0 {
				continue
			}
			nodes = append(nodes, node(name, pick("192.0.2.2", "192.0.2.3", "192.0.2.2 192.0.2.4", "10.2.0.9", "192.0.2.1"), pick("10.2.0.0/24", "10.3.0.0/24", "10.2.0.0/16", "192.0.2.0/24", "10.1.0.0/25")))
		}
		got, _ := compile(input{self: self(), nodes: nodes, own: self().PodCIDRs, have: have})
		if again, _ := compile(input{self: self(), nodes: nodes, own: self().PodCIDRs, have: got}); !slices.Equal(rowsText(again, nodes...), rowsText(got, nodes...)) {
			t.Fatalf("a second look changes %q to %q", rowsText(got, nodes...), rowsText(again, nodes...))
		}
		byName := map[uint64]*model.Node{}
		for _, n := range nodes {
			byName[hashOf(n.Name)] = n
		}
		numbers := map[uint32]uint64{}
		for addr, row := range got.Nodes {
			if other, ok := numbers[row.Number]; ok && other != row.Name {
				t.Fatalf("number %d is of two nodes", row.Number)
			}
			numbers[row.Number] = row.Name
			if had, ok := have.Nodes[addr]; ok && had.Name != row.Name && byName[had.Name] != nil && slices.Contains(byName[had.Name].Addrs, addr) {
				t.Fatalf("%s goes to another node while its own has it", addr)
			}
		}
		for _, had := range have.Nodes {
			if now, ok := numbers[had.Number]; ok && now != had.Name {
				t.Fatalf("number %d goes from one node to another", had.Number)
			}
		}
		for addr := range got.Nodes {
			for prefix := range got.Sources {
				if !prefix.IsSingleIP() && prefix.Contains(addr) && !prefix.Contains(netip.MustParseAddr("192.0.2.200")) {
					t.Fatalf("%s is a node and in %s", addr, prefix)
				}
			}
		}
		have = got
	}
}

func BenchmarkCompile(b *testing.B) {
	var nodes []*model.Node
	for i := range 5000 {
		nodes = append(nodes, node(fmt.Sprintf("n%04d", i), fmt.Sprintf("192.168.%d.%d fd01::%x", i/250, i%250+1, i+1), fmt.Sprintf("10.%d.%d.0/24", 16+i/250, i%250), fmt.Sprintf("fd02:0:0:%x::/64", i+1)))
	}
	have, refused := compile(input{self: self(), nodes: nodes, own: self().PodCIDRs})
	if len(have.Nodes) != 10002 || len(refused) > 0 {
		b.Fatalf("%d addresses, refused %d: %.200q", len(have.Nodes), len(refused), refused)
	}
	for b.Loop() {
		compile(input{self: self(), nodes: nodes, own: self().PodCIDRs, have: have})
	}
}
