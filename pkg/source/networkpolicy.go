package source

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"fairlead.io/fairlead/pkg/model"
)

// AddNetworkPolicies registers the type. A watch cannot decode what its scheme does not know, while a list can.
func AddNetworkPolicies(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(networkingv1.SchemeGroupVersion, &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicyList{})
	metav1.AddToGroupVersion(scheme, networkingv1.SchemeGroupVersion)
	return nil
}

// NetworkPolicy translates a NetworkPolicy. What it leaves out never lets more traffic through: a
// rule without its invalid peers and ports accepts less, and one that has no valid one accepts
// nothing.
func NetworkPolicy(in *networkingv1.NetworkPolicy) *model.NetworkPolicy {
	p := &problems{}
	out := &model.NetworkPolicy{
		Name: model.Name{Namespace: in.Namespace, Name: in.Name},
		UID:  string(in.UID),
		Tier: model.TierNetworkPolicy,
	}
	out.Isolates[model.Ingress], out.Isolates[model.Egress] = isolates(p, &in.Spec)
	pods, valid := supersetSelector(p, "spec.podSelector", &in.Spec.PodSelector)
	out.Subject = model.PodSet{Namespace: in.Namespace, Pods: pods}
	// A selector that lost a requirement selects too many pods, so that rules could open some of them.
	if valid && out.Isolates[model.Ingress] {
		for i := range in.Spec.Ingress {
			rule := &in.Spec.Ingress[i]
			at := fmt.Sprintf("spec.ingress[%d]", i)
			out.Rules[model.Ingress] = appendAccept(out.Rules[model.Ingress], i, policyPeers(p, at+".from", in.Namespace, rule.From), policyPorts(p, at, rule.Ports))
		}
	}
	if valid && out.Isolates[model.Egress] {
		for i := range in.Spec.Egress {
			rule := &in.Spec.Egress[i]
			at := fmt.Sprintf("spec.egress[%d]", i)
			out.Rules[model.Egress] = appendAccept(out.Rules[model.Egress], i, policyPeers(p, at+".to", in.Namespace, rule.To), policyPorts(p, at, rule.Ports))
		}
	}
	out.Problems = p.all()
	return out
}

// isolates returns the directions of a NetworkPolicy, with the defaults that the API server sets.
func isolates(p *problems, spec *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	for _, kind := range spec.PolicyTypes {
		switch kind {
		case networkingv1.PolicyTypeIngress:
			ingress = true
		case networkingv1.PolicyTypeEgress:
			egress = true
		default:
			p.add("InvalidPolicyType", "policy type %.64q is not known, so the pods are isolated in both directions: use Ingress or Egress", kind)
			ingress, egress = true, true
		}
	}
	if len(spec.PolicyTypes) == 0 {
		return true, len(spec.Egress) > 0
	}
	return ingress, egress
}

// appendAccept adds a rule that accepts, unless it matches nothing.
func appendAccept(list []model.PolicyRule, number int, peers matchedPeers, ports matchedPorts) []model.PolicyRule {
	if peers.none() || ports.none() {
		return list
	}
	return append(list, model.PolicyRule{
		Number: number, Action: model.Accept,
		AnyPeer: peers.any, Peers: peers.list,
		AnyPort: ports.any, Ports: ports.spans, Named: ports.named,
	})
}

// matchedPeers are the peers of a rule. Bad says that some could not be understood.
type matchedPeers struct {
	any, bad bool
	list     []model.PolicyPeer
}

func (m *matchedPeers) none() bool { return !m.any && len(m.list) == 0 }

// matchedPorts are the ports of a rule. Bad says that some could not be understood.
type matchedPorts struct {
	any, bad bool
	spans    []model.PortSpan
	named    []model.NamedPort
}

func (m *matchedPorts) none() bool { return !m.any && len(m.spans) == 0 && len(m.named) == 0 }

func policyPeers(p *problems, at, namespace string, in []networkingv1.NetworkPolicyPeer) matchedPeers {
	out := matchedPeers{any: len(in) == 0}
	for i := range in {
		at := fmt.Sprintf("%s[%d]", at, i)
		if peer, ok := policyPeer(p, at, namespace, &in[i]); ok {
			out.list = append(out.list, peer)
		}
	}
	return out
}

func policyPeer(p *problems, at, namespace string, in *networkingv1.NetworkPolicyPeer) (model.PolicyPeer, bool) {
	pods := in.PodSelector != nil || in.NamespaceSelector != nil
	if pods == (in.IPBlock != nil) {
		p.add("InvalidPeer", "%s is ignored, so it accepts nothing: give it either selectors or ipBlock", at)
		return model.PolicyPeer{}, false
	}
	if in.IPBlock != nil {
		block, ok := policyBlock(p, at+".ipBlock", in.IPBlock)
		return model.PolicyPeer{Block: block}, ok
	}
	set := &model.PodSet{}
	var ok bool
	if in.PodSelector != nil {
		if set.Pods, ok = exactSelector(p, at+".podSelector", in.PodSelector); !ok {
			return model.PolicyPeer{}, false
		}
	}
	if in.NamespaceSelector == nil {
		set.Namespace = namespace
	} else if set.Namespaces, ok = exactSelector(p, at+".namespaceSelector", in.NamespaceSelector); !ok {
		return model.PolicyPeer{}, false
	}
	return model.PolicyPeer{Pods: set}, true
}

// policyBlock translates an ipBlock. An except that is no CIDR could have been any part of the
// block, so nothing of the block is left.
func policyBlock(p *problems, at string, in *networkingv1.IPBlock) (*model.Block, bool) {
	prefix, ok := parsePrefix(in.CIDR)
	if !ok {
		p.add("InvalidCIDR", "%s.cidr %.64q is ignored, so it accepts nothing: write it like 192.0.2.0/24 or 2001:db8::/64", at, in.CIDR)
		return nil, false
	}
	block := &model.Block{Prefix: prefix.Masked()}
	for i, text := range in.Except {
		except, ok := parsePrefix(text)
		switch {
		case !ok:
			p.add("InvalidCIDR", "%s is ignored with all its addresses, since except[%d] %.64q is not a CIDR: write it like 192.0.2.0/24 or 2001:db8::/64", at, i, text)
			return nil, false
		case except.Bits() <= prefix.Bits() && except.Contains(prefix.Addr()):
			p.add("InvalidCIDR", "%s accepts nothing, since except[%d] %.64q is all of it: correct one of them", at, i, text)
			return nil, false
		case !prefix.Contains(except.Addr()):
			p.add("InvalidCIDR", "%s.except[%d] %.64q has no effect: it is not within %s, correct it", at, i, text, prefix)
		default:
			block.Except = append(block.Except, except.Masked())
		}
	}
	slices.SortFunc(block.Except, netip.Prefix.Compare)
	block.Except = slices.Compact(block.Except)
	return block, true
}

func policyPorts(p *problems, at string, in []networkingv1.NetworkPolicyPort) matchedPorts {
	out := matchedPorts{any: len(in) == 0}
	for i := range in {
		port := &in[i]
		at := fmt.Sprintf("%s.ports[%d]", at, i)
		proto := model.TCP
		if port.Protocol != nil {
			known := false
			if proto, known = protocol(*port.Protocol); !known {
				p.add("UnsupportedProtocol", "%s is ignored, so it accepts nothing: its protocol %.64q is not known, use TCP, UDP or SCTP", at, *port.Protocol)
				continue
			}
		}
		switch {
		case port.Port == nil && port.EndPort == nil:
			out.spans = append(out.spans, model.PortSpan{Protocol: proto, Last: 65535})
		case port.Port != nil && port.Port.Type == intstr.String && port.EndPort == nil && port.Port.StrVal != "":
			out.named = append(out.named, model.NamedPort{Name: port.Port.StrVal, Protocol: proto})
		case port.Port == nil || port.Port.Type == intstr.String:
			p.add("InvalidPort", "%s is ignored, so it accepts nothing: endPort needs a port that is a number", at)
		default:
			last := port.Port.IntVal
			if port.EndPort != nil {
				last = *port.EndPort
			}
			out.addSpan(p, at, proto, port.Port.IntVal, last)
		}
	}
	out.sort()
	return out
}

func (m *matchedPorts) addSpan(p *problems, at string, proto model.Protocol, first, last int32) {
	if !isPort(first) || !isPort(last) || last < first {
		m.bad = true
		p.add("InvalidPort", "%s is not used: %d to %d are no ports, use 1 to 65535 with the last not below the first", at, first, last)
		return
	}
	m.spans = append(m.spans, model.PortSpan{Protocol: proto, First: uint16(first), Last: uint16(last)})
}

// sort brings the ports into order and merges those that touch, so that a long list costs no more
// than what it says.
func (m *matchedPorts) sort() {
	slices.SortFunc(m.spans, func(a, b model.PortSpan) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	merged := m.spans[:0]
	for _, span := range m.spans {
		if n := len(merged); n > 0 && merged[n-1].Protocol == span.Protocol && int(span.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, span.Last)
			continue
		}
		merged = append(merged, span)
	}
	m.spans = slices.Clip(merged)
	slices.SortFunc(m.named, func(a, b model.NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
	})
	m.named = slices.Compact(m.named)
}

// exactSelector translates a selector of peers.
func exactSelector(p *problems, at string, in *metav1.LabelSelector) (model.Selector, bool) {
	selector, err := labelSelector(in)
	if err != nil {
		p.add("InvalidSelector", "%s cannot be used: correct it: %.256q", at, err)
	}
	return selector, err == nil
}

// supersetSelector translates a selector of subjects. If it is invalid, it is what remains without
// its invalid requirements, which selects at least as many.
func supersetSelector(p *problems, at string, in *metav1.LabelSelector) (selector model.Selector, valid bool) {
	if selector, valid = exactSelector(p, at, in); valid {
		return selector, true
	}
	rest := metav1.LabelSelector{}
	for _, requirement := range in.MatchExpressions {
		if _, err := labelSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{requirement}}); err == nil {
			rest.MatchExpressions = append(rest.MatchExpressions, requirement)
		}
	}
	for key, value := range in.MatchLabels {
		if _, err := labelSelector(&metav1.LabelSelector{MatchLabels: map[string]string{key: value}}); err == nil {
			metav1.AddLabelToSelector(&rest, key, value)
		}
	}
	selector, _ = labelSelector(&rest)
	return selector, false
}

// labelSelector translates a selector. How much a namespace may select with is the compiler's to
// say.
func labelSelector(in *metav1.LabelSelector) (model.Selector, error) {
	selector, err := metav1.LabelSelectorAsSelector(in)
	if err != nil {
		return nil, err
	}
	all, _ := selector.Requirements()
	return requirements(all), nil
}
