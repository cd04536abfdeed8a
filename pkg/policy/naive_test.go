package policy

import (
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// naive is what the API says, read off the objects without any tables.
type naive struct{ *Compiler }

// holder is the pod that has an address.
func (n naive) holder(pods map[model.Name]*model.PolicyPod, addr netip.Addr) *model.PolicyPod {
	var best *model.PolicyPod
	for _, pod := range pods {
		if pod.HostNetwork || !slices.Contains(pod.Addrs, addr) {
			continue
		}
		older := best != nil && (best.Created > pod.Created || best.Created == pod.Created && hash(best) > hash(pod))
		if !older {
			best = pod
		}
	}
	return best
}

func hash(pod *model.PolicyPod) string { h := identity(pod.Name); return string(h[:]) }

// evaluate judges a packet. All pods are those of the cluster.
func (n naive) evaluate(all map[model.Name]*model.PolicyPod, p Packet) bool {
	if p.Src == p.Dst {
		return true
	}
	src, dst := n.holder(n.local, p.Src), n.holder(n.local, p.Dst)
	if !n.judge(all, src, model.Egress, p.Dst, n.holder(all, p.Dst), p) {
		return false
	}
	if node := n.nodes[n.self]; node != nil && slices.Contains(node.Addrs, p.Src) {
		return true
	}
	return n.judge(all, dst, model.Ingress, p.Src, dst, p)
}

func (n naive) judge(all map[model.Name]*model.PolicyPod, subject *model.PolicyPod, direction model.Direction, peer netip.Addr, to *model.PolicyPod, p Packet) bool {
	if subject == nil {
		return true
	}
	var policies []*model.NetworkPolicy
	labels, known := n.namespaces[subject.Namespace]
	for _, policy := range n.policies {
		if policy.Namespace == "" && !known {
			return false
		}
		if (policy.Namespace == "" || policy.Namespace == subject.Namespace) && selects(policy, labels, subject.Labels) {
			policies = append(policies, policy)
		}
	}
	slices.SortFunc(policies, (*model.NetworkPolicy).Compare)
	passed := model.Tier(255)
	isolated := false
	for _, policy := range policies {
		if policy.Tier == model.TierBaseline && isolated {
			return false
		}
		isolated = isolated || policy.Isolates[direction]
		for i := range policy.Rules[direction] {
			rule := &policy.Rules[direction][i]
			if policy.Tier == passed || !n.matches(all, rule, peer, to, p) {
				continue
			}
			if rule.Action != model.Pass {
				return rule.Action == model.Accept
			}
			passed = policy.Tier
		}
	}
	return !isolated
}

func (n naive) matches(all map[model.Name]*model.PolicyPod, rule *model.PolicyRule, peer netip.Addr, to *model.PolicyPod, p Packet) bool {
	ports := rule.AnyPort
	for _, span := range rule.Ports {
		ports = ports || span.Protocol == p.Protocol && span.First <= p.Port && p.Port <= span.Last
	}
	if to != nil {
		for _, named := range rule.Named {
			for _, port := range to.Ports {
				ports = ports || sameName(named, port) && port.Protocol == p.Protocol && port.Port == p.Port
			}
		}
	}
	return ports && (rule.AnyPeer || slices.ContainsFunc(rule.Peers, func(in model.PolicyPeer) bool { return n.isPeer(all, &in, peer) }))
}

func (n naive) isPeer(all map[model.Name]*model.PolicyPod, in *model.PolicyPeer, peer netip.Addr) bool {
	if in.Block != nil {
		return in.Block.Contains(peer)
	}
	if in.Nodes != nil {
		for _, node := range n.nodes {
			if slices.Contains(node.Addrs, peer) && in.Nodes.Selects(node.Labels) {
				return true
			}
		}
		return false
	}
	pod := n.holder(all, peer)
	if pod == nil || !in.Pods.Pods.Selects(pod.Labels) {
		return false
	}
	if in.Pods.Namespace != "" {
		return in.Pods.Namespace == pod.Namespace
	}
	labels, known := n.namespaces[pod.Namespace]
	return known && in.Pods.Namespaces.Selects(labels)
}
