package source

import (
	"fmt"

	"fairlead.io/fairlead/pkg/model"
)

// ClusterNetworkPolicy translates a ClusterNetworkPolicy. What it cannot understand, it treats as
// the API asks: an Accept rule does not match it, and a rule that denies or passes denies all.
func ClusterNetworkPolicy(in *ClusterPolicy) *model.NetworkPolicy {
	out, _ := clusterNetworkPolicy(in)
	return out
}

// clusterNetworkPolicy also returns how many rules are not followed as they are written.
func clusterNetworkPolicy(in *ClusterPolicy) (out *model.NetworkPolicy, wrong int) {
	p := &problems{}
	out = &model.NetworkPolicy{Name: model.Name{Name: in.Name}, UID: string(in.UID), Priority: in.Spec.Priority}
	switch in.Spec.Tier {
	case "Admin":
		out.Tier = model.TierAdmin
	case "Baseline":
		out.Tier = model.TierBaseline
	default:
		p.add("InvalidTier", "tier %.64q is not known, so the policy is treated as one of the tier Admin that only denies: use Admin or Baseline", in.Spec.Tier)
	}
	subject, valid := clusterSubject(p, &in.Spec.Subject)
	out.Subject = subject
	valid = valid && (in.Spec.Tier == "Admin" || in.Spec.Tier == "Baseline")
	add := func(direction model.Direction, at string, i int, rule *ClusterRule, peers []ClusterPeer) {
		before := p.count()
		out.Rules[direction] = appendCluster(out.Rules[direction], p, fmt.Sprintf("%s[%d]", at, i), i, rule, peers, valid, direction)
		if !valid || p.count() > before {
			wrong++
		}
	}
	for i := range in.Spec.Ingress {
		add(model.Ingress, "spec.ingress", i, &in.Spec.Ingress[i], in.Spec.Ingress[i].From)
	}
	for i := range in.Spec.Egress {
		add(model.Egress, "spec.egress", i, &in.Spec.Egress[i], in.Spec.Egress[i].To)
	}
	out.Problems = p.all()
	return out, wrong
}

// clusterSubject translates a subject. One that is not valid becomes a larger one.
func clusterSubject(p *problems, in *ClusterSubject) (model.PodSet, bool) {
	switch {
	case (in.Namespaces == nil) == (in.Pods == nil):
		p.add("InvalidSubject", "spec.subject is not one of namespaces and pods, so rules that deny are applied to all pods: correct it")
		return model.PodSet{}, false
	case in.Namespaces != nil:
		selector, valid := supersetSelector(p, "spec.subject.namespaces", in.Namespaces)
		return model.PodSet{Namespaces: selector}, valid
	}
	namespaces, validNamespaces := supersetSelector(p, "spec.subject.pods.namespaceSelector", &in.Pods.NamespaceSelector)
	pods, validPods := supersetSelector(p, "spec.subject.pods.podSelector", &in.Pods.PodSelector)
	return model.PodSet{Namespaces: namespaces, Pods: pods}, validNamespaces && validPods
}

// appendCluster adds a rule. Subjects that are not valid get only rules that deny.
func appendCluster(list []model.PolicyRule, p *problems, at string, number int, in *ClusterRule, peers []ClusterPeer, valid bool, direction model.Direction) []model.PolicyRule {
	rule := model.PolicyRule{Number: number, Label: fmt.Sprintf("%.100s", in.Name)}
	switch in.Action {
	case "Accept":
		rule.Action = model.Accept
	case "Deny":
		rule.Action = model.Deny
	case "Pass":
		rule.Action = model.Pass
	default:
		p.add("InvalidAction", "%s denies all, since its action %.64q is not known: use Accept, Deny or Pass", at, in.Action)
		return append(list, denyAll(rule))
	}
	matched, ports := clusterPeers(p, at, peers, direction), clusterPorts(p, at, in.Protocols)
	switch bad := matched.bad || ports.bad; {
	case bad && rule.Action != model.Accept:
		p.add("UnknownRule", "%s denies all, since not all of it is understood: correct it", at)
		return append(list, denyAll(rule))
	case !valid && rule.Action != model.Deny, matched.none(), ports.none():
		return list
	}
	rule.Peers, rule.AnyPort, rule.Ports, rule.Named = matched.list, ports.any, ports.spans, ports.named
	return append(list, rule)
}

func denyAll(rule model.PolicyRule) model.PolicyRule {
	rule.Action, rule.AnyPeer, rule.AnyPort = model.Deny, true, true
	return rule
}

func clusterPeers(p *problems, at string, in []ClusterPeer, direction model.Direction) matchedPeers {
	out := matchedPeers{bad: len(in) == 0}
	if out.bad {
		p.add("NoPeer", "%s has no peer: add one", at)
	}
	for i := range in {
		if !out.addCluster(p, fmt.Sprintf("%s peer %d", at, i), &in[i], direction) {
			out.bad = true
		}
	}
	return out
}

// addCluster adds one peer, and reports whether it is understood.
func (m *matchedPeers) addCluster(p *problems, at string, in *ClusterPeer, direction model.Direction) bool {
	if fields := in.fields(); fields != 1 || direction == model.Ingress && in.Namespaces == nil && in.Pods == nil {
		p.add("InvalidPeer", "%s is not understood: give it exactly one of namespaces and pods, or for egress of nodes and networks", at)
		return false
	}
	switch {
	case in.Namespaces != nil:
		selector, ok := exactSelector(p, at+".namespaces", in.Namespaces)
		if ok {
			m.list = append(m.list, model.PolicyPeer{Pods: &model.PodSet{Namespaces: selector}})
		}
		return ok
	case in.Pods != nil:
		namespaces, ok := exactSelector(p, at+".pods.namespaceSelector", &in.Pods.NamespaceSelector)
		pods, also := exactSelector(p, at+".pods.podSelector", &in.Pods.PodSelector)
		if ok && also {
			m.list = append(m.list, model.PolicyPeer{Pods: &model.PodSet{Namespaces: namespaces, Pods: pods}})
		}
		return ok && also
	case in.Nodes != nil:
		selector, ok := exactSelector(p, at+".nodes", in.Nodes)
		if ok {
			m.list = append(m.list, model.PolicyPeer{Nodes: &selector})
		}
		return ok
	case len(in.DomainNames) > 0:
		p.add("DomainNames", "%s matches nothing, since domainNames are not supported: use networks", at)
		return false
	}
	understood := true
	for _, text := range in.Networks {
		prefix, ok := parsePrefix(text)
		if !ok {
			p.add("InvalidCIDR", "%s has the network %.64q: write it like 192.0.2.0/24 or 2001:db8::/64", at, text)
			understood = false
			continue
		}
		m.list = append(m.list, model.PolicyPeer{Block: &model.Block{Prefix: prefix.Masked()}})
	}
	return understood
}

func (c *ClusterPeer) fields() int {
	n := 0
	for _, set := range []bool{c.Namespaces != nil, c.Pods != nil, c.Nodes != nil, len(c.Networks) > 0, len(c.DomainNames) > 0} {
		if set {
			n++
		}
	}
	return n
}

func clusterPorts(p *problems, at string, in []ClusterProtocol) matchedPorts {
	out := matchedPorts{any: len(in) == 0}
	for i := range in {
		at := fmt.Sprintf("%s.protocols[%d]", at, i)
		if !out.addProtocol(p, at, &in[i]) {
			out.bad = true
		}
	}
	out.sort()
	return out
}

func (m *matchedPorts) addProtocol(p *problems, at string, in *ClusterProtocol) bool {
	proto, match, fields := model.AnyProtocol, (*ClusterPortMatch)(nil), 0
	for _, one := range []struct {
		proto model.Protocol
		match *ClusterPortMatch
	}{{model.TCP, in.TCP}, {model.UDP, in.UDP}, {model.SCTP, in.SCTP}} {
		if one.match != nil {
			proto, match = one.proto, one.match
			fields++
		}
	}
	switch {
	case fields == 0 && in.DestinationNamedPort != "":
		m.named = append(m.named, model.NamedPort{Name: in.DestinationNamedPort})
		return true
	case fields != 1 || in.DestinationNamedPort != "":
		p.add("InvalidPort", "%s is not understood: give it exactly one of tcp, udp, sctp and destinationNamedPort", at)
		return false
	case match.DestinationPort == nil:
		m.spans = append(m.spans, model.PortSpan{Protocol: proto, Last: 65535})
		return true
	}
	port := match.DestinationPort
	first, last := port.Number, port.Number
	if port.Range != nil {
		if port.Number != 0 {
			p.add("InvalidPort", "%s is not understood: give it either number or range", at)
			return false
		}
		first, last = port.Range.Start, port.Range.End
	}
	before := len(m.spans)
	m.addSpan(p, at, proto, first, last)
	return len(m.spans) > before
}
