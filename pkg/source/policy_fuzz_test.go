package source

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"fairlead.io/fairlead/pkg/model"
)

// Whatever a policy says, what comes out is in the form that the compiler relies on, is the same each
// time, and says in a few printable lines what is wrong.
func FuzzPolicies(f *testing.F) {
	for _, seed := range []string{
		`{"podSelector":{"matchLabels":{"a":"b"}},"policyTypes":["Egress"],"egress":[{"ports":[{"port":80,"endPort":90},{"port":"http"}],"to":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}]}]}`,
		`{"ingress":[{"from":[{"podSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]},"namespaceSelector":{}}]}]}`,
		`{"tier":"Admin","priority":1,"subject":{"namespaces":{}},"egress":[{"action":"Pass","to":[{"networks":["::/0"]},{"nodes":{}}],"protocols":[{"tcp":{"destinationPort":{"range":{"start":1,"end":9}}}}]}]}`,
		`{"tier":"Baseline","subject":{"pods":{"namespaceSelector":{},"podSelector":{}}},"ingress":[{"name":"x","action":"Deny","from":[{"pods":{}}],"protocols":[{"destinationNamedPort":"http"}]}]}`,
		`{"tier":"Admin","subject":{"namespaces":{"matchLabels":{"a":"b"}}},"ingress":[{"action":"Accept","from":[{"namespaces":{}}],"protocols":[{"tcp":{"destinationPort":{"number":80}}},{"destinationNamedPort":"x"}]}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		policy := &networkingv1.NetworkPolicy{}
		if json.Unmarshal(text, &policy.Spec) == nil {
			out := NetworkPolicy(policy)
			checkPolicy(t, out, NetworkPolicy(policy))
			for _, rules := range out.Rules {
				for i := range rules {
					if rules[i].Action != model.Accept {
						t.Errorf("a NetworkPolicy has %+v", rules[i])
					}
				}
			}
		}
		cluster := &ClusterPolicy{}
		if json.Unmarshal(slices.Concat([]byte(`{"spec":`), text, []byte(`}`)), cluster) == nil {
			out := ClusterNetworkPolicy(cluster)
			checkPolicy(t, out, ClusterNetworkPolicy(cluster.DeepCopyObject().(*ClusterPolicy)))
			checkCondition(t, ClusterPolicyCondition(cluster))
			checkUnread(t, text, out)
		}
	})
}

// checkUnread adds a field of a later version to each object of a spec, which must not make the policy wider.
func checkUnread(t *testing.T, text []byte, before *model.NetworkPolicy) {
	t.Helper()
	for at := range 50 {
		var spec any
		if json.Unmarshal(text, &spec) != nil {
			return
		}
		n := at
		if !addField(spec, &n) {
			return
		}
		changed, err := json.Marshal(map[string]any{"spec": spec})
		if err != nil {
			t.Fatal(err)
		}
		policy := &ClusterPolicy{}
		if json.Unmarshal(changed, policy) != nil || len(policy.Unread()) == 0 { // a map of labels takes any field, of texts
			continue
		}
		checkNotWider(t, changed, before, ClusterNetworkPolicy(policy))
	}
}

// addField adds a field to the nth object within a value, and reports whether there is one.
func addField(value any, n *int) bool {
	switch value := value.(type) {
	case map[string]any:
		if *n--; *n < 0 {
			value["later"] = map[string]any{}
			return true
		}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			if addField(value[key], n) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(value, func(one any) bool { return addField(one, n) })
	}
	return false
}

func checkNotWider(t *testing.T, text []byte, before, after *model.NetworkPolicy) {
	t.Helper()
	if len(after.Problems) == 0 {
		t.Errorf("%s: no word of the field that is not known", text)
	}
	for direction := range after.Rules {
		byNumber := map[int]*model.PolicyRule{}
		for i := range after.Rules[direction] {
			byNumber[after.Rules[direction][i].Number] = &after.Rules[direction][i]
		}
		for i := range before.Rules[direction] {
			was := &before.Rules[direction][i]
			is := byNumber[was.Number]
			delete(byNumber, was.Number)
			denies := is != nil && is.Action == model.Deny && (is.AnyPeer && is.AnyPort || reflect.DeepEqual(is, was))
			switch {
			case was.Action == model.Deny && !denies, was.Action == model.Pass && is != nil && !denies && !reflect.DeepEqual(is, was),
				was.Action == model.Accept && is != nil && (is.Action != model.Accept || !isWithin(is, was)):
				t.Errorf("%s: rule %+v became %+v", text, was, is)
			}
		}
		for _, is := range byNumber {
			if is.Action != model.Deny {
				t.Errorf("%s: there is a new rule %+v", text, is)
			}
		}
	}
}

// isWithin reports whether a rule matches no more than another.
func isWithin(is, was *model.PolicyRule) bool {
	peers := !slices.ContainsFunc(is.Peers, func(peer model.PolicyPeer) bool {
		return !slices.ContainsFunc(was.Peers, func(other model.PolicyPeer) bool { return reflect.DeepEqual(peer, other) })
	})
	spans := !slices.ContainsFunc(is.Ports, func(span model.PortSpan) bool {
		return !slices.ContainsFunc(was.Ports, func(o model.PortSpan) bool {
			return span.Protocol == o.Protocol && span.First >= o.First && span.Last <= o.Last
		})
	})
	named := !slices.ContainsFunc(is.Named, func(port model.NamedPort) bool { return !slices.Contains(was.Named, port) })
	return (was.AnyPeer || !is.AnyPeer && peers) && (was.AnyPort || !is.AnyPort && spans && named)
}

func checkPolicy(t *testing.T, p, again *model.NetworkPolicy) {
	t.Helper()
	if !reflect.DeepEqual(p, again) {
		t.Errorf("read twice: %+v and %+v", p, again)
	}
	for _, problem := range p.Problems {
		if problem.Reason == "" || len(problem.Message) > 2000 || strings.ContainsFunc(problem.Message, func(r rune) bool { return r < ' ' }) {
			t.Errorf("problem %q", problem)
		}
	}
	if len(p.Problems) > maxProblems+1 {
		t.Errorf("%d problems", len(p.Problems))
	}
	for _, rules := range p.Rules {
		for i := range rules {
			checkRule(t, &rules[i])
		}
	}
}

func checkRule(t *testing.T, r *model.PolicyRule) {
	t.Helper()
	if !r.AnyPeer && len(r.Peers) == 0 || !r.AnyPort && len(r.Ports)+len(r.Named) == 0 {
		t.Errorf("it matches nothing: %+v", r)
	}
	for i, span := range r.Ports {
		if span.First > span.Last || i > 0 && r.Ports[i-1].Protocol == span.Protocol && r.Ports[i-1].Last >= span.First {
			t.Errorf("ports %+v", r.Ports)
		}
	}
	for _, peer := range r.Peers {
		if b := peer.Block; b != nil {
			for _, except := range b.Except {
				if except.Bits() <= b.Prefix.Bits() || !b.Prefix.Contains(except.Addr()) || except != except.Masked() {
					t.Errorf("block %+v", b)
				}
			}
		}
	}
}
