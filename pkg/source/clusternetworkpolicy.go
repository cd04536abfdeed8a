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
	valid := true
	switch in.Spec.Tier {
	case "Admin":
		out.Tier = model.TierAdmin
	case "Baseline":
		out.Tier = model.TierBaseline
	default:
		p.add("InvalidTier", "tier %.64q is not known, so the policy is treated as one of the tier Admin that only denies: use Admin or Baseline", in.Spec.Tier)
		valid = false
	}
	all := unreadOf(in.Unread())
	if elsewhere := all.except(in.Spec.parts()); len(elsewhere) > 0 {
		p.add("UnknownField", "the policy is treated as one that only denies, since %.64q is not known to this version: remove it", elsewhere[0])
		valid = false
	}
	subject, understood := clusterSubject(p, &in.Spec.Subject, all)
	out.Subject = subject
	valid = valid && understood
	for direction := range model.Direction(model.Directions) {
		rules, peers := in.Spec.rules(direction)
		for i := range rules {
			at := fmt.Sprintf("spec.%s[%d]", direction, i)
			r := clusterRule{problems: p, unread: all.in(at), at: at, peers: peers, direction: direction, valid: valid}
			before := p.count()
			out.Rules[direction] = r.appendTo(out.Rules[direction], i, &rules[i])
			if !valid || p.count() > before {
				wrong++
			}
		}
	}
	out.Problems = p.all()
	return out, wrong
}

// rules returns the rules of a direction, and the name of the field that their peers are in.
func (s *ClusterPolicySpec) rules(direction model.Direction) (list []ClusterRule, peers string) {
	if direction == model.Ingress {
		return s.Ingress, "from"
	}
	return s.Egress, "to"
}

// parts returns the paths of the subject and of all rules.
func (s *ClusterPolicySpec) parts() []string {
	paths := []string{"spec.subject"}
	for direction := range model.Direction(model.Directions) {
		list, _ := s.rules(direction)
		for i := range list {
			paths = append(paths, fmt.Sprintf("spec.%s[%d]", direction, i))
		}
	}
	return paths
}

// clusterSubject translates a subject. One that is not valid becomes a larger one.
func clusterSubject(p *problems, in *ClusterSubject, all unread) (model.PodSet, bool) {
	unread := all.in("spec.subject")
	valid := len(unread) == 0
	if !valid {
		p.add("UnknownField", "the policy only denies, since %.64q is not known to this version: remove it", unread[0])
	}
	switch {
	case (in.Namespaces == nil) == (in.Pods == nil), len(unread.except([]string{"spec.subject.namespaces", "spec.subject.pods"})) > 0:
		p.add("InvalidSubject", "spec.subject is not one of namespaces and pods, so rules that deny are applied to all pods: correct it")
		return model.PodSet{}, false
	case in.Namespaces != nil:
		selector, ok := supersetSelector(p, "spec.subject.namespaces", in.Namespaces)
		return model.PodSet{Namespaces: selector}, ok && valid
	}
	namespaces, validNamespaces := supersetSelector(p, "spec.subject.pods.namespaceSelector", &in.Pods.NamespaceSelector)
	if in.Pods.PodSelector == nil {
		p.add("InvalidSubject", "spec.subject.pods has no podSelector, so rules that deny are applied to all pods of the namespaces: add it")
		return model.PodSet{Namespaces: namespaces}, false
	}
	pods, validPods := supersetSelector(p, "spec.subject.pods.podSelector", in.Pods.PodSelector)
	return model.PodSet{Namespaces: namespaces, Pods: pods}, valid && validNamespaces && validPods
}

// clusterRule is a rule that is being translated.
type clusterRule struct {
	*problems
	unread    unread // of the rule
	at, peers string // where it is, and the name of the field of its peers
	direction model.Direction
	valid     bool // so are the subject and the tier; if not, only rules that deny are kept
}

// appendTo adds the rule to a list.
func (r *clusterRule) appendTo(list []model.PolicyRule, number int, in *ClusterRule) []model.PolicyRule {
	rule := model.PolicyRule{Number: number, Label: fmt.Sprintf("%.100s", in.Name)}
	switch in.Action {
	case "Accept":
		rule.Action = model.Accept
	case "Deny":
		rule.Action = model.Deny
	case "Pass":
		rule.Action = model.Pass
	default:
		r.add("InvalidAction", "%s denies all, since its action %.64q is not known: use Accept, Deny or Pass", r.at, in.Action)
		return append(list, denyAll(rule))
	}
	peers, others := in.From, in.To
	if r.direction == model.Egress {
		peers, others = in.To, in.From
	}
	foreign := len(others) > 0 || len(r.unread.except(r.parts(len(peers), len(in.Protocols)))) > 0
	if foreign {
		r.add("UnknownField", "%s has a field that is not known to this version, so it accepts nothing: remove it", r.at)
	}
	matched, ports := r.clusterPeers(peers), r.clusterPorts(in.Protocols)
	switch bad := foreign || matched.bad || ports.bad; {
	case bad && rule.Action != model.Accept:
		r.add("UnknownRule", "%s denies all, since not all of it is understood: correct it", r.at)
		return append(list, denyAll(rule))
	case foreign, !r.valid && rule.Action != model.Deny, matched.none(), ports.none():
		return list
	}
	rule.Peers, rule.AnyPort, rule.Ports, rule.Named = matched.list, ports.any, ports.spans, ports.named
	return append(list, rule)
}

// parts returns the paths of all peers and protocols.
func (r *clusterRule) parts(peers, protocols int) (paths []string) {
	for i := range peers {
		paths = append(paths, r.peerAt(i))
	}
	for i := range protocols {
		paths = append(paths, r.protocolAt(i))
	}
	return paths
}

func (r *clusterRule) peerAt(i int) string { return fmt.Sprintf("%s.%s[%d]", r.at, r.peers, i) }

func (r *clusterRule) protocolAt(i int) string { return fmt.Sprintf("%s.protocols[%d]", r.at, i) }

func denyAll(rule model.PolicyRule) model.PolicyRule {
	rule.Action, rule.AnyPeer, rule.AnyPort = model.Deny, true, true
	return rule
}

func (r *clusterRule) clusterPeers(in []ClusterPeer) matchedPeers {
	out := matchedPeers{bad: len(in) == 0}
	if out.bad {
		r.add("NoPeer", "%s has no peer: add one", r.at)
	}
	for i := range in {
		if len(r.unread.in(r.peerAt(i))) > 0 {
			r.add("UnknownField", "%s peer %d matches nothing, since it has a field that is not known to this version: remove it", r.at, i)
			out.bad = true
		} else if !out.addCluster(r.problems, fmt.Sprintf("%s peer %d", r.at, i), &in[i], r.direction) {
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
		if in.Pods.PodSelector == nil {
			p.add("InvalidPeer", "%s.pods is not understood, since it has no podSelector: add it", at)
			return false
		}
		pods, also := exactSelector(p, at+".pods.podSelector", in.Pods.PodSelector)
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

func (r *clusterRule) clusterPorts(in []ClusterProtocol) matchedPorts {
	out := matchedPorts{any: in == nil, bad: in != nil && len(in) == 0}
	if out.bad {
		r.add("InvalidPort", "%s.protocols is empty, so it matches nothing: leave it out, or add one", r.at)
	}
	for i := range in {
		at := r.protocolAt(i)
		if len(r.unread.in(at)) > 0 {
			r.add("UnknownField", "%s matches nothing, since it has a field that is not known to this version: remove it", at)
			out.bad = true
		} else if !out.addProtocol(r.problems, at, &in[i]) {
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
	case match.DestinationPort == nil: // the API asks for one field at least, so there is one that is not known
		p.add("InvalidPort", "%s.%s is not understood: give it a destinationPort, of 1 to 65535 for all", at, proto)
		return false
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
