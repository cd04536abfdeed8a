package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

// The cluster of the figures: 10,000 namespaces with ten pods each, five of which share their labels.
const (
	scaleNamespaces = 10_000
	scalePods       = 100_000
	scaleLocal      = 100 // pods of this node, in as many namespaces
	scalePolicies   = 1000
	mostKept        = 120 // bytes for a pod that no policy names
)

func scalePod(i int) *model.PolicyPod {
	v6 := netip.MustParseAddr("2001:db8::").As16()
	v6[13], v6[14], v6[15] = byte(i>>16), byte(i>>8), byte(i)
	group := i / 5
	return &model.PolicyPod{
		Name:    model.Name{Namespace: fmt.Sprint("namespace-", i/10), Name: fmt.Sprintf("deployment-%d-5d8f9c7b6d-%05d", group, i)},
		Created: int64(i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), netip.AddrFrom16(v6)},
		Labels: map[string]string{
			"app": fmt.Sprint("app-", group%2), "app.kubernetes.io/name": fmt.Sprint("app-", group%7), "tier": fmt.Sprint(group % 3),
			"pod-template-hash": fmt.Sprintf("5d8f9c%04d", group),
		},
		Ports: []model.NamedPort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestMemory checks what a pod costs that no policy names: pods that share their labels with four
// others, and none.
func TestMemory(t *testing.T) {
	for _, unique := range []bool{false, true} {
		before := heap()
		p := newPods()
		for i := range scalePods {
			pod := scalePod(i)
			if unique {
				pod.Labels["statefulset.kubernetes.io/pod-name"] = fmt.Sprint("web-", i)
			}
			p.set(pod)
		}
		each := (heap() - before) / scalePods
		t.Logf("unique labels: %v: %d bytes for each pod, %d shapes", unique, each, len(p.shapes))
		if !unique && each > mostKept {
			t.Errorf("a pod takes %d bytes, more than %d", each, mostKept)
		}
		runtime.KeepAlive(p)
	}
}

// scalePolicy is one of ten in each namespace of this node's pods: some name their own namespace's
// pods, some those of all, some blocks and ports.
func scalePolicy(i int) *model.NetworkPolicy {
	namespace := fmt.Sprint("namespace-", i%scaleLocal*(scaleNamespaces/scaleLocal))
	out := from(namespace, fmt.Sprint("p", i/scaleLocal), fmt.Sprint("app-", i%2), "other")
	out.Isolates[model.Egress] = true
	block := &model.Block{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Except: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i % 3), byte(i % 7), 0}), 24)}}
	out.Rules[model.Ingress] = append(out.Rules[model.Ingress], model.PolicyRule{
		Number: 2, Peers: []model.PolicyPeer{{Pods: &model.PodSet{Namespaces: is("team", fmt.Sprint(i%10)), Pods: is("tier", fmt.Sprint(i%3))}}},
		Ports: []model.PortSpan{{Protocol: model.TCP, First: uint16(8000 + i%10), Last: uint16(8080 + i%10)}},
	})
	out.Rules[model.Egress] = []model.PolicyRule{
		{AnyPort: true, Peers: []model.PolicyPeer{{Block: block}}},
		{Number: 1, Peers: []model.PolicyPeer{{Pods: &model.PodSet{Pods: is("app", "app-1")}}}, Named: []model.NamedPort{{Name: "http", Protocol: model.TCP}}},
	}
	return out
}

func scale() *Compiler {
	c := New("self", DefaultQuota(), 0)
	for i := range scaleNamespaces {
		c.SetNamespace(fmt.Sprint("namespace-", i), map[string]string{"team": fmt.Sprint(i % 50)})
	}
	for i := range scalePods {
		pod := scalePod(i)
		if c.SetPod(pod); i%(scalePods/scaleLocal) == 0 {
			c.SetLocal(pod)
		}
	}
	for i := range scalePolicies {
		c.SetPolicy(scalePolicy(i))
	}
	return c
}

// BenchmarkEdit is the time of one edit of a policy, which selects what it did before.
func BenchmarkEdit(b *testing.B) { edit(b, false) }

// BenchmarkSelector is the time of one edit that selects something else.
func BenchmarkSelector(b *testing.B) { edit(b, true) }

func edit(b *testing.B, selectors bool) {
	before := heap()
	c := scale()
	c.Update()
	t := c.Tables()
	b.Logf("%d MB in all; %d subjects, %d classes, %d peers, %d regions, %d views, %d rows, %d decisions, %d rules, problems %v", (heap()-before)>>20,
		len(t.Subjects), len(t.classes), len(t.Peers), len(t.Regions), len(t.Views), len(t.Rows), len(t.Decisions), len(t.Rules), t.Problems)
	i := 0
	for b.Loop() {
		policy := scalePolicy(i % scalePolicies)
		policy.Rules[model.Ingress][0].Label = fmt.Sprint(i)
		if selectors {
			policy.Rules[model.Ingress][1].Peers[0].Pods.Pods = is("app", fmt.Sprint("new-", i))
		}
		c.SetPolicy(policy)
		if c.Update(); c.due {
			b.Fatal("it is still due")
		}
		i++
	}
	runtime.KeepAlive(c)
}

// BenchmarkPod is the time of one change of a pod elsewhere that policies name: it comes, changes its
// labels, or goes.
func BenchmarkPod(b *testing.B) {
	c := scale()
	c.Update()
	i := 0
	for b.Loop() {
		pod := scalePod(100_001 + i/3%1000)
		switch i % 3 {
		case 1:
			pod.Labels["app"] = "other"
		case 2:
			pod.Addrs = nil
		}
		c.SetPod(pod)
		c.Update()
		i++
	}
}

// BenchmarkEvaluate is the time of one verdict.
func BenchmarkEvaluate(b *testing.B) {
	c := scale()
	c.Update()
	t, i := c.Tables(), 0
	for b.Loop() {
		t.Evaluate(Packet{
			Src: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Dst: netip.AddrFrom4([4]byte{10, 0, 0, 0}), Protocol: model.TCP, Port: uint16(i),
		})
		i++
	}
}

// BenchmarkHostile is the time of one edit in a namespace with a thousand selectors of a thousand
// ports each and as many pods with labels of their own, all of which every tenth selects.
func BenchmarkHostile(b *testing.B) {
	for _, ports := range []int{100, 1000} {
		b.Run(fmt.Sprint(ports, " ports"), func(b *testing.B) {
			before := heap()
			c := New("self", DefaultQuota(), 0)
			c.SetLocal(pod("bad", "server", "server", server.String()))
			policies := hostile("bad", 1000, ports)
			for i, policy := range policies {
				if i%10 == 0 {
					policy.Rules[model.Ingress][0].Peers[0].Pods.Pods = nil
				}
				c.SetPolicy(policy)
				c.SetPod(pod("bad", fmt.Sprint("c", i), fmt.Sprint("app", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250)))
			}
			c.Update()
			b.Logf("%d MB, %d rows, %d decisions, problems %v", (heap()-before)>>20, len(c.Tables().Rows), len(c.Tables().Decisions), c.Tables().Problems)
			i := 0
			for b.Loop() {
				policy := *policies[0]
				policy.UID = fmt.Sprint(i)
				c.SetPolicy(&policy)
				c.Update()
				i++
			}
		})
	}
}
