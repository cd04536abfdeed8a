package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/model"
)

func pod(namespace, name, app string, addr string) *model.PolicyPod {
	return &model.PolicyPod{
		Name: model.Name{Namespace: namespace, Name: name}, Labels: map[string]string{"app": app}, Addrs: []netip.Addr{netip.MustParseAddr(addr)},
	}
}

func is(label, value string) model.Selector {
	return model.Selector{{Label: label, Operator: model.In, Values: []string{value}}}
}

// from is a policy of a namespace that lets pods of it in that have one of the labels.
func from(namespace, name string, apps ...string) *model.NetworkPolicy {
	out := &model.NetworkPolicy{
		Name: model.Name{Namespace: namespace, Name: name}, Tier: model.TierNetworkPolicy,
		Subject: model.PodSet{Namespace: namespace}, Isolates: [2]bool{true, false},
	}
	for i, app := range apps {
		out.Rules[model.Ingress] = append(out.Rules[model.Ingress], model.PolicyRule{
			Number: i, AnyPort: true, Peers: []model.PolicyPeer{{Pods: &model.PodSet{Namespace: namespace, Pods: is("app", app)}}},
		})
	}
	return out
}

var (
	server = netip.MustParseAddr("10.0.0.1")
	client = netip.MustParseAddr("10.0.1.1")
)

func (c *Compiler) accepts(t *testing.T, src netip.Addr, want bool) Verdict {
	t.Helper()
	verdict := c.Tables().Evaluate(Packet{Src: src, Dst: server, Protocol: model.TCP, Port: 80})
	if verdict.Accepted != want {
		t.Errorf("from %s: %v, by %s", src, verdict.Accepted, verdict.Rule)
	}
	return verdict
}

// isolated is a node with one pod, which lets pods with app=web in.
func isolated() *Compiler {
	c := New("self", DefaultQuota(), 100)
	c.SetNamespace("n", nil)
	c.SetLocal(pod("n", "server", "server", server.String()))
	c.SetPolicy(from("n", "p", "web"))
	c.Update()
	return c
}

// TestGenerations checks when verdicts that are cached are judged again.
func TestGenerations(t *testing.T) {
	other := pod("n", "other", "batch", client.String())
	other.Created = 5
	steps := []struct {
		name   string
		change func(c *Compiler)
		raised bool
		accept bool
	}{
		{"a first class for an address", func(c *Compiler) { c.SetPod(pod("n", "web", "web", client.String())) }, false, true},
		{"a label that no policy names", func(c *Compiler) {
			p := pod("n", "web", "web", client.String())
			p.Labels["other"] = "x"
			c.SetPod(p)
		}, false, true},
		{"a policy that accepts more", func(c *Compiler) { c.SetPolicy(from("n", "p", "web", "db")) }, false, true},
		{"another label of the peer", func(c *Compiler) { c.SetPod(pod("n", "web", "batch", client.String())) }, true, false},
		{"the label again", func(c *Compiler) { c.SetPod(pod("n", "web", "web", client.String())) }, false, true},
		{"the peer goes away", func(c *Compiler) { c.DeletePod(model.Name{Namespace: "n", Name: "web"}) }, false, false},
		{"another pod gets the address", func(c *Compiler) { c.SetPod(other) }, true, false},
		{"it goes too", func(c *Compiler) { c.DeletePod(other.Name) }, false, false},
		{"an old pod has it", func(c *Compiler) { c.SetPod(pod("n", "web", "web", client.String())) }, false, true},
		{"a younger pod takes it before it ends", func(c *Compiler) { c.SetPod(other) }, true, false},
		{"the old one changes", func(c *Compiler) { c.SetPod(pod("n", "web", "db", client.String())) }, false, false},
		{"the younger one ends", func(c *Compiler) { c.DeletePod(other.Name) }, false, true},
		{"the policy accepts less", func(c *Compiler) { c.SetPolicy(from("n", "p", "web")) }, true, false},
		{"the policy goes", func(c *Compiler) { c.DeletePolicy(model.Name{Namespace: "n", Name: "p"}) }, false, true},
		{"a policy comes", func(c *Compiler) { c.SetPolicy(from("n", "q", "web")) }, true, false},
	}
	c := isolated()
	for _, step := range steps {
		before := c.Tables().Pods[server].Generation
		step.change(c)
		c.Update()
		if raised := c.Tables().Pods[server].Generation != before; raised != step.raised {
			t.Errorf("%s: raised: %v", step.name, raised)
		}
		c.accepts(t, client, step.accept)
	}
}

// TestNobody checks that pods without policies have no rows.
func TestNobody(t *testing.T) {
	c := isolated()
	for i := range 100 {
		c.SetPod(pod("m", fmt.Sprint(i), "web", fmt.Sprintf("10.0.2.%d", i)))
	}
	c.SetLocal(pod("m", "free", "web", "10.0.3.1"))
	if change := c.Update(); len(change.Peers)+len(change.Views)+len(change.Rows) > 0 {
		t.Errorf("pods that no policy names change %+v", change)
	}
	if row := c.Tables().Pods[netip.MustParseAddr("10.0.3.1")]; row.Subject != 0 || row.Generation != 0 {
		t.Errorf("a pod that no policy selects has %+v", row)
	}
}

// hostile is a thousand selectors with a thousand ports each, in the policies of one namespace.
func hostile(namespace string, selectors, ports int) []*model.NetworkPolicy {
	var out []*model.NetworkPolicy
	for i := range selectors {
		policy := from(namespace, fmt.Sprint("p", i), fmt.Sprint("app", i))
		rule := &policy.Rules[model.Ingress][0]
		rule.AnyPort = false
		for port := range ports {
			number := uint16(1 + 2*port + i%2)
			rule.Ports = append(rule.Ports, model.PortSpan{Protocol: model.TCP, First: number, Last: number})
		}
		out = append(out, policy)
	}
	return out
}

// TestQuota checks that policies over their quota deny what they select, and change nothing for
// others.
func TestQuota(t *testing.T) {
	tests := []struct {
		name      string
		quota     Quota
		selectors int
		ports     int
		want      string
	}{
		{"within", DefaultQuota(), 100, 100, ""},
		{"selectors", DefaultQuota(), 2049, 1, "2048 selectors and blocks"},
		{"terms", Quota{Selectors: 100, Terms: 100, Rows: 1 << 20, Runs: 1 << 20, Work: 1 << 20}, 60, 1, "100 requirements and values"},
		{"rows", Quota{Selectors: 100, Terms: 1000, Rows: 30, Runs: 1 << 20, Work: 1 << 20}, 50, 1, "30 decisions"},
		{"runs", DefaultQuota(), 1000, 1000, "262144 runs of ports"},
		{"work", Quota{Selectors: 100, Terms: 1000, Rows: 1 << 20, Runs: 1 << 20, Work: 500}, 50, 50, "500 ports of rules to look at"},
	}
	for _, tt := range tests {
		c := New("self", tt.quota, 0)
		c.SetLocal(pod("n", "server", "server", server.String()))
		c.SetPolicy(from("n", "p", "web"))
		c.SetPod(pod("n", "web", "web", client.String()))
		c.SetLocal(pod("bad", "victim", "x", "10.0.0.2"))
		for _, policy := range hostile("bad", tt.selectors, tt.ports) {
			c.SetPolicy(policy)
		}
		for i := range tt.selectors {
			c.SetPod(pod("bad", fmt.Sprint("c", i), fmt.Sprint("app", i), fmt.Sprintf("10.1.%d.%d", i/250, i%250)))
		}
		c.Update()
		c.accepts(t, client, true)
		tables := c.Tables()
		verdict := tables.Evaluate(Packet{Src: netip.MustParseAddr("10.1.0.0"), Dst: netip.MustParseAddr("10.0.0.2"), Protocol: model.TCP, Port: 1})
		if verdict.Accepted != (tt.want == "") {
			t.Errorf("%s: the pod with such policies is judged %+v", tt.name, verdict)
		}
		problems := fmt.Sprint(tables.Problems)
		if (tt.want == "") != (len(tables.Problems) == 0) || !strings.Contains(problems, tt.want) {
			t.Errorf("%s: problems are %s, want one with %q", tt.name, problems, tt.want)
		}
		if rows := len(tables.Rows) + len(tables.Decisions); tt.want != "" && rows > 20 {
			t.Errorf("%s: %d rows are left of what is refused", tt.name, rows)
		}
	}
}

// TestQuotaLater checks that a pod elsewhere may bring a namespace over its quota.
func TestQuotaLater(t *testing.T) {
	quota := DefaultQuota()
	quota.Rows = 10
	c := New("self", quota, 0)
	c.SetLocal(pod("n", "server", "server", server.String()))
	for _, policy := range hostile("n", 20, 1) {
		c.SetPolicy(policy)
	}
	c.Update()
	for i := range 20 {
		c.SetPod(pod("n", fmt.Sprint(i), fmt.Sprint("app", i), fmt.Sprintf("10.0.1.%d", i)))
		c.Update()
	}
	if rule := c.accepts(t, netip.MustParseAddr("10.0.1.0"), false).Rule; rule.Why != OverQuota {
		t.Errorf("denied by %s", rule)
	}
}
