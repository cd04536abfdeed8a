package enforce

import (
	"net/netip"
	"testing"

	"fairlead.io/fairlead/pkg/bpf"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/test/rig"
)

func labeled(value string) model.Selector {
	return model.Selector{{Label: "app", Operator: model.In, Values: []string{value}}}
}

// webOnly lets pods of n0 with the label strict send to those with the label web only.
func webOnly() *model.NetworkPolicy {
	p := &model.NetworkPolicy{Name: model.Name{Namespace: "n0", Name: "web"}, Tier: model.TierNetworkPolicy, Subject: model.PodSet{Namespace: "n0", Pods: labeled("strict")}}
	p.Isolates[model.Egress] = true
	p.Rules[model.Egress] = []model.PolicyRule{{Action: model.Accept, AnyPort: true, Peers: []model.PolicyPeer{{Pods: &model.PodSet{Namespace: "n0", Pods: labeled("web")}}}}}
	return p
}

func podOf(name, app string, last byte) *model.PolicyPod {
	return &model.PolicyPod{Name: model.Name{Namespace: "n0", Name: name}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, last})}, Labels: map[string]string{"app": app}}
}

func objectsOf(c *policy.Compiler, pods ...*model.PolicyPod) map[model.Name]*model.PolicyPod {
	local := map[model.Name]*model.PolicyPod{}
	c.SetNamespace("n0", nil)
	c.SetPolicy(webOnly())
	for _, pod := range pods {
		c.SetPod(pod)
		if pod.Labels["app"] == "strict" {
			c.SetLocal(pod)
			local[pod.Name] = pod
		}
	}
	return local
}

// began has a row say that a pod began a flow that was accepted with a generation.
func began(t *testing.T, m *kernel.Maps, from, to *model.PolicyPod, generation uint32) {
	t.Helper()
	key := bpf.MapsFlow{Saddr: kernel.AddrOf(from.Addrs[0]), Daddr: kernel.AddrOf(to.Addrs[0]), Sport: kernel.PortOf(4000), Dport: kernel.PortOf(80), Proto: 6}
	row := bpf.MapsPolicyFlow{Generation: generation, Flags: uint16(bpf.MapsPolicyFlowFlagPOLICY_FLOW_EGRESS)}
	if err := m.PolicyPending.Put(key, row); err != nil {
		t.Fatal(err)
	}
}

// What was accepted to an address is judged again when another pod gets it, also if the agent started in between.
func TestAttackAddressOfAnother(t *testing.T) {
	rig.Root(t)
	m, err := kernel.Create(kernel.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	strict, web, db := podOf("here0", "strict", 1), podOf("web", "web", 2), podOf("db", "db", 2)
	for _, restarts := range []bool{false, true} {
		w, c, at := restart(t, m, false, func(c *policy.Compiler) map[model.Name]*model.PolicyPod { return objectsOf(c, strict, web) })
		before := generations(t, w)[100]
		began(t, m, strict, web, before)
		c.DeletePod(web.Name)
		if err := w.Apply(c.Update(), c.Tables(), at); err != nil {
			t.Fatal(err)
		}
		if restarts {
			w, _, _ = restart(t, m, false, func(c *policy.Compiler) map[model.Name]*model.PolicyPod { return objectsOf(c, strict, db) })
		} else {
			c.SetPod(db)
			if err := w.Apply(c.Update(), c.Tables(), at); err != nil {
				t.Fatal(err)
			}
		}
		after := generations(t, w)[100]
		t.Logf("restarts: %t, generation %d, then %d", restarts, before, after)
		if before == after {
			t.Errorf("restarts: %t: generation %d stays, so what was accepted to the previous owner of an address is to another pod that nothing accepts", restarts, before)
		}
	}
}

// No pod gets the generation of one that is gone, of which rows may be left.
func TestAttackGenerationOfAnother(t *testing.T) {
	rig.Root(t)
	m, err := kernel.Create(kernel.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	w, c, _ := restart(t, m, false, func(c *policy.Compiler) map[model.Name]*model.PolicyPod {
		return objectsOf(c, podOf("here0", "strict", 1), podOf("here1", "strict", 2), podOf("here2", "strict", 3))
	})
	was := generations(t, w)[102]
	began(t, m, podOf("here2", "strict", 3), podOf("web", "web", 9), was)
	first := podOf("here0", "strict", 1)
	for _, gone := range []*model.PolicyPod{podOf("here1", "strict", 2), podOf("here2", "strict", 3)} {
		c.DeletePod(gone.Name)
		c.DeleteLocal(gone.Name)
	}
	if err := w.Apply(c.Update(), c.Tables(), devices(map[model.Name]*model.PolicyPod{first.Name: first})); err != nil {
		t.Fatal(err)
	}
	w, _, _ = restart(t, m, false, func(c *policy.Compiler) map[model.Name]*model.PolicyPod {
		return objectsOf(c, first, podOf("here3", "strict", 3))
	})
	if is := generations(t, w)[103]; is == was {
		t.Errorf("the pod that now has 10.0.0.3 has generation %d, as the one that had this address before", is)
	}
}

// A pod that is new is judged by its own rules or denied everything, also while an agent that has started writes: numbers
// of subjects are not those of the previous agent.
func TestAttackNumbersOfPreviousAgent(t *testing.T) {
	rig.Root(t)
	m, err := kernel.Create(kernel.Sizes{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	strict, web := podOf("here0", "strict", 1), podOf("web", "web", 2)
	restart(t, m, false, func(c *policy.Compiler) map[model.Name]*model.PolicyPod { return objectsOf(c, strict, web) })
	w := newWriter(t, m)
	highest, err := w.Generation()
	if err != nil {
		t.Fatal(err)
	}
	c := policy.New("self", policy.DefaultQuota(), highest)
	fresh := podOf("here3", "sealed", 4)
	c.SetNamespace("n0", nil)
	sealed := &model.NetworkPolicy{Name: model.Name{Namespace: "n0", Name: "sealed"}, Tier: model.TierNetworkPolicy, Subject: model.PodSet{Namespace: "n0", Pods: labeled("sealed")}}
	sealed.Isolates[model.Egress] = true
	c.SetPolicy(sealed)
	c.SetPod(web)
	c.SetPod(fresh)
	c.SetLocal(fresh)
	// What Apply does until it puts the new version in force.
	next, err := w.collect(c.Update(), c.Tables(), devices(map[model.Name]*model.PolicyPod{fresh.Name: fresh}))
	if err != nil {
		t.Fatal(err)
	}
	if err := next.write(w.maps); err != nil {
		t.Fatal(err)
	}
	row, found := lookup[uint32, bpf.MapsPolicyPod](t, m.PolicyPods, 103)
	if !found {
		t.Fatal("the pod has no row")
	}
	for direction := range model.Direction(model.Directions) {
		s := row.Subject[w.version]
		verdict := decide(t, m, w.version, s, direction, web.Addrs[0], 1<<16|80)
		want := c.Tables().Decide(c.Tables().Pods[fresh.Addrs[0]].Subject, direction, web.Addrs[0], model.TCP, 80)
		if verdict>>31 == 1 && !want.Accepted {
			t.Errorf("%s to 10.0.0.2 is accepted by the version in force for a pod that may send nothing, and flows keep that: subject %d, generation %d in both versions: %+v", direction, s.Subject, s.Generation, row.Subject)
		}
	}
}

// spread gives a namespace policies within its quota that come to so many runs of ports for each of 1000 blocks.
func spread(c *policy.Compiler, namespace string, ports int) {
	for i := range 10 {
		p := &model.NetworkPolicy{Name: model.Name{Namespace: namespace, Name: string(rune('a' + i))}, Tier: model.TierNetworkPolicy, Subject: model.PodSet{Namespace: namespace}}
		p.Isolates[model.Egress] = true
		for j := range 100 {
			rule := model.PolicyRule{Number: j, Action: model.Accept, Peers: []model.PolicyPeer{{Block: &model.Block{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, byte(i), byte(j), 0}), 24)}}}}
			for k := range ports {
				rule.Ports = append(rule.Ports, model.PortSpan{Protocol: model.TCP, First: uint16(2*k + 1), Last: uint16(2*k + 1)})
			}
			p.Rules[model.Egress] = append(p.Rules[model.Egress], rule)
		}
		c.SetPolicy(p)
	}
}

// Whatever a namespace has within its quota, the policies of others can still be changed, also after a start.
func TestAttackQuotaFillsTheNode(t *testing.T) {
	rig.Root(t)
	for _, namespaces := range []int{1, 2} {
		m, err := kernel.Create(kernel.Sizes{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		strict, web := podOf("here0", "strict", 1), podOf("web", "web", 2)
		local := map[model.Name]*model.PolicyPod{strict.Name: strict}
		fill := func(c *policy.Compiler) map[model.Name]*model.PolicyPod {
			objectsOf(c, strict, web)
			for i := range namespaces {
				evil := &model.PolicyPod{Name: model.Name{Namespace: string(rune('w' + i)), Name: "here" + string(rune('1'+i))}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(9 + i)})}}
				c.SetNamespace(evil.Name.Namespace, nil)
				c.SetPod(evil)
				c.SetLocal(evil)
				local[evil.Name] = evil
				if namespaces == 1 {
					spread(c, evil.Name.Namespace, 80)
				}
			}
			return local
		}
		w, c, at := restart(t, m, false, fill)
		if namespaces == 1 { // a start
			w = newWriter(t, m)
			highest, err := w.Generation()
			if err != nil {
				t.Fatal(err)
			}
			c = policy.New("self", policy.DefaultQuota(), highest)
			fill(c)
		} else {
			for name := range local {
				if name.Namespace != "n0" {
					spread(c, name.Namespace, 80)
				}
			}
		}
		err = w.Apply(c.Update(), c.Tables(), at)
		t.Logf("%d namespaces of a tenant: %v, problems %v", namespaces, err, c.Tables().Problems)
		sealed := webOnly()
		sealed.Rules[model.Egress] = nil
		c.SetPolicy(sealed)
		if err := w.Apply(c.Update(), c.Tables(), at); err != nil {
			t.Errorf("%d namespaces: another namespace closes its own pod: %v", namespaces, err)
		}
		row, _ := lookup[uint32, bpf.MapsPolicyPod](t, m.PolicyPods, 100)
		if decide(t, m, w.version, row.Subject[w.version], model.Egress, web.Addrs[0], 1<<16|80)>>31 == 1 {
			t.Errorf("%d namespaces: what that policy denies is still accepted", namespaces)
		}
	}
}
