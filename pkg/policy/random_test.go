package policy

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// random makes objects from few names, labels, addresses and ports, so that they often meet.
type random struct{ *rand.Rand }

func (r random) one(n int) bool { return r.IntN(n) == 0 }

func pick[T any](r random, from ...T) T { return from[r.IntN(len(from))] }

func (r random) labels() map[string]string {
	out := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if !r.one(3) {
			out[key] = pick(r, "a", "b", "c")
		}
	}
	return out
}

func (r random) selector() model.Selector {
	var out model.Selector
	for range r.IntN(3) {
		switch label := pick(r, "app", "tier"); r.IntN(4) {
		case 0:
			out = append(out, model.Requirement{Label: label, Operator: pick(r, model.Present, model.Absent)})
		default:
			out = append(out, model.Requirement{Label: label, Operator: pick(r, model.In, model.In, model.NotIn), Values: pick(r, []string{"a"}, []string{"a", "b"}, []string{"c"})})
		}
	}
	return out
}

func (r random) addr() netip.Addr {
	if r.one(3) {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0xd, 0xb8, 15: byte(1 + r.IntN(12))})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + r.IntN(12))})
}

func (r random) block() *model.Block {
	addr := r.addr()
	bits := addr.BitLen() - r.IntN(6)
	if r.one(5) {
		bits = 0
	}
	prefix, _ := addr.Prefix(bits)
	block := &model.Block{Prefix: prefix}
	for range r.IntN(3) {
		inside := r.addr()
		if except, err := inside.Prefix(inside.BitLen() - r.IntN(4)); err == nil && except.Bits() > bits && prefix.Contains(except.Addr()) {
			block.Except = append(block.Except, except)
		}
	}
	return block
}

func (r random) protocol() model.Protocol { return pick(r, model.TCP, model.UDP, model.SCTP) }

func (r random) pod(name string) *model.PolicyPod {
	pod := &model.PolicyPod{
		Name: model.Name{Namespace: pick(r, "n1", "n2", "n3"), Name: name}, Created: int64(r.IntN(3)), Labels: r.labels(), HostNetwork: r.one(12),
	}
	for range r.IntN(4) {
		if addr := r.addr(); len(pod.Addrs) == 0 || len(pod.Addrs) == 1 && pod.Addrs[0].Is4() != addr.Is4() {
			pod.Addrs = append(pod.Addrs, addr)
		}
	}
	for range r.IntN(3) {
		pod.Ports = append(pod.Ports, model.NamedPort{Name: pick(r, "http", "dns"), Protocol: r.protocol(), Port: uint16(80 + r.IntN(4))})
	}
	return pod
}

func (r random) rule(number int, cluster bool, direction model.Direction) model.PolicyRule {
	rule := model.PolicyRule{Number: number, AnyPort: r.one(3), AnyPeer: !cluster && r.one(5)}
	if cluster {
		rule.Action = pick(r, model.Accept, model.Deny, model.Pass)
	}
	for range 1 + r.IntN(2) {
		switch kind := r.IntN(6); {
		case kind == 0 && cluster && direction == model.Egress:
			selector := r.selector()
			rule.Peers = append(rule.Peers, model.PolicyPeer{Nodes: &selector})
		case kind < 3:
			rule.Peers = append(rule.Peers, model.PolicyPeer{Block: r.block()})
		case kind == 3:
			rule.Peers = append(rule.Peers, model.PolicyPeer{Pods: &model.PodSet{Namespace: pick(r, "n1", "n2", "n3"), Pods: r.selector()}})
		default:
			rule.Peers = append(rule.Peers, model.PolicyPeer{Pods: &model.PodSet{Namespaces: r.selector(), Pods: r.selector()}})
		}
	}
	for range r.IntN(3) {
		first := uint16(80 + r.IntN(4))
		rule.Ports = append(rule.Ports, model.PortSpan{Protocol: r.protocol(), First: first, Last: pick(r, first, first+2, 65535)})
	}
	for range r.IntN(2) {
		rule.Named = append(rule.Named, model.NamedPort{Name: pick(r, "http", "dns"), Protocol: r.protocol()})
	}
	return rule
}

func (r random) policy(name string) *model.NetworkPolicy {
	policy := &model.NetworkPolicy{Name: model.Name{Namespace: pick(r, "n1", "n2", "n3"), Name: name}, Tier: model.TierNetworkPolicy}
	policy.Subject = model.PodSet{Namespace: policy.Namespace, Pods: r.selector()}
	policy.Isolates = [2]bool{!r.one(3), !r.one(3)}
	cluster := r.one(3)
	if cluster {
		policy.Namespace, policy.Isolates = "", [2]bool{}
		policy.Tier, policy.Priority = pick(r, model.TierAdmin, model.TierBaseline), int32(r.IntN(3))
		policy.Subject = model.PodSet{Namespaces: r.selector(), Pods: r.selector()}
	}
	for direction := range policy.Rules {
		if cluster || policy.Isolates[direction] {
			for i := range r.IntN(4) {
				policy.Rules[direction] = append(policy.Rules[direction], r.rule(i, cluster, model.Direction(direction)))
			}
		}
	}
	return policy
}

// state is all objects, so that a Compiler can be made anew from them.
type state struct {
	pods map[model.Name]*model.PolicyPod
}

func (r random) change(c *Compiler, s *state) {
	name := fmt.Sprint(r.IntN(8))
	switch r.IntN(10) {
	case 0:
		c.SetNamespace(pick(r, "n1", "n2", "n3"), r.labels())
	case 1:
		if r.one(4) {
			c.DeleteNamespace(pick(r, "n1", "n2", "n3"))
		}
	case 2, 3:
		if r.one(3) {
			if names := slices.SortedFunc(maps.Keys(c.policies), model.Name.Compare); len(names) > 0 {
				c.DeletePolicy(names[r.IntN(len(names))])
			}
			return
		}
		c.SetPolicy(r.policy(name))
	case 4:
		pod := r.pod("l" + name)
		for _, other := range c.local {
			if other.Name != pod.Name { // a node gives no address twice
				pod.Addrs = slices.DeleteFunc(pod.Addrs, func(addr netip.Addr) bool { return slices.Contains(other.Addrs, addr) })
			}
		}
		s.pods[pod.Name] = pod
		c.SetPod(pod)
		c.SetLocal(pod)
	case 5:
		node := &model.PolicyNode{Name: pick(r, "self", "other"), Labels: r.labels(), Addrs: []netip.Addr{r.addr()}}
		c.SetNode(node)
	default:
		pod := r.pod(name)
		if r.one(3) {
			delete(s.pods, pod.Name)
			c.DeletePod(pod.Name)
			return
		}
		s.pods[pod.Name] = pod
		c.SetPod(pod)
	}
}

func (r random) packet() Packet {
	return Packet{Src: r.addr(), Dst: r.addr(), Protocol: pick(r, model.TCP, model.UDP, model.SCTP, model.Protocol(1)), Port: uint16(79 + r.IntN(6))}
}

// flow is a verdict that is cached.
type flow struct {
	packet   Packet
	src, dst PodRow
}

// TestRandom changes objects at random, and holds what follows from them to what the API says: every
// verdict, the changes that lead from tables to tables, and that what is no longer accepted has
// another generation. WALKS says how often from the beginning, by default 150 times.
func TestRandom(t *testing.T) {
	walks, err := strconv.ParseUint(cmp.Or(os.Getenv("WALKS"), "150"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range walks {
		r := random{rand.New(rand.NewPCG(seed, 1))}
		c, s := New("self", DefaultQuota(), 0), &state{pods: map[model.Name]*model.PolicyPod{}}
		applied := NewTables()
		var cached []flow
		for step := range 60 {
			for range 1 + r.IntN(3) {
				r.change(c, s)
			}
			change := c.Update()
			if what := changesMeaning(applied, change); what != "" {
				t.Fatalf("seed %d, step %d: %s", seed, step, what)
			}
			apply(applied, change)
			tables := c.Tables()
			if diff := difference(applied, tables, false); diff.Size() > 0 {
				t.Fatalf("seed %d, step %d: the changes do not lead to the tables: %+v", seed, step, diff)
			}
			n := naive{c}
			for _, f := range cached {
				if tables.Pods[f.packet.Src] != f.src || tables.Pods[f.packet.Dst] != f.dst || n.evaluate(s.pods, f.packet) {
					continue
				}
				if n.holder(s.pods, f.packet.Src) == nil || n.holder(s.pods, f.packet.Dst) == nil {
					continue // nobody is there to send or to answer
				}
				t.Fatalf("seed %d, step %d: %+v was accepted, is not now, and has no other generation", seed, step, f)
			}
			cached = slices.DeleteFunc(cached, func(f flow) bool {
				return tables.Pods[f.packet.Src] != f.src || tables.Pods[f.packet.Dst] != f.dst || r.one(5)
			})
			for range 40 {
				p := r.packet()
				have, want := tables.Evaluate(p), n.evaluate(s.pods, p)
				if have.Accepted != want {
					t.Fatalf("seed %d, step %d: %+v: have %+v, want %v", seed, step, p, have, want)
				}
				if have.Accepted {
					cached = append(cached, flow{p, tables.Pods[p.Src], tables.Pods[p.Dst]})
				}
			}
		}
		again(t, seed, c, s)
	}
}

// changesMeaning returns what a change makes of a row that others lead to already. Such a row would be
// seen before the rest of the change.
func changesMeaning(before *Tables, c *Change) string {
	for view, reduced := range c.Views {
		if was := before.Views[view]; was != 0 && reduced != 0 && was != reduced {
			return fmt.Sprintf("view %+v changes from %d to %d", view, was, reduced)
		}
		if _, known := before.Views[view]; !known && isScope(before, view.Scope) && before.classes[view.Class] != nil {
			return fmt.Sprintf("view %+v comes for a scope and a class that were there", view)
		}
	}
	for row, number := range c.Rows {
		if was := before.Rows[row]; was != 0 && number != 0 && was != number {
			return fmt.Sprintf("row %+v changes from %d to %d", row, was, number)
		}
	}
	for number, runs := range c.Decisions {
		if was := before.Decisions[number]; was != nil && runs != nil && !slices.Equal(was, runs) {
			return fmt.Sprintf("decision %d changes from %v to %v", number, was, runs)
		}
	}
	for subject, scope := range c.Subjects {
		if was := before.Subjects[subject]; was != 0 && scope != 0 && was != scope {
			return fmt.Sprintf("subject %d moves from scope %d to %d", subject, was, scope)
		}
	}
	for number, rule := range c.Rules {
		if was, known := before.Rules[number]; known && rule != (Rule{}) && was != rule {
			return fmt.Sprintf("rule %d changes from %s to %s", number, was, rule)
		}
	}
	return ""
}

func isScope(t *Tables, scope uint32) bool {
	for _, is := range t.Subjects {
		if is == scope {
			return true
		}
	}
	return false
}

// apply makes changes in tables as they are made in the maps of the kernel.
func apply(t *Tables, c *Change) {
	put(t.Pods, c.Pods)
	put(t.Peers, c.Peers)
	for prefix, class := range c.Regions {
		if t.Regions[prefix] = class; class == Absent {
			delete(t.Regions, prefix)
		}
	}
	put(t.Views, c.Views)
	put(t.Rows, c.Rows)
	put(t.Rules, c.Rules)
	put(t.Subjects, c.Subjects)
	for number, runs := range c.Decisions {
		if t.Decisions[number] = runs; runs == nil {
			delete(t.Decisions, number)
		}
	}
}

func put[K, V comparable](in, from map[K]V) {
	for key, value := range from {
		var none V
		if in[key] = value; value == none {
			delete(in, key)
		}
	}
}

// again compiles the same objects anew, twice in different orders, and compares.
func again(t *testing.T, seed uint64, c *Compiler, s *state) {
	t.Helper()
	fresh := func() *Tables {
		o := New("self", DefaultQuota(), 0)
		fill(o, c, s)
		o.Update()
		return o.Tables()
	}
	one, two := fresh(), fresh()
	if !reflect.DeepEqual(one, two) {
		t.Fatalf("seed %d: the same objects compile to different tables: %+v", seed, difference(one, two, false))
	}
}

// fill gives a Compiler the objects of another one.
func fill(o, c *Compiler, s *state) {
	for name, labels := range c.namespaces {
		o.SetNamespace(name, labels)
	}
	for _, policy := range c.policies {
		o.SetPolicy(policy)
	}
	for _, pod := range s.pods {
		o.SetPod(pod)
	}
	for _, pod := range c.local {
		o.SetLocal(pod)
	}
	for _, node := range c.nodes {
		o.SetNode(node)
	}
}
