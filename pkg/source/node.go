package source

import (
	"maps"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
	corev1 "k8s.io/api/core/v1"
)

// taintLeaving is set by the cluster autoscaler on a node that it is about to delete.
const taintLeaving = "ToBeDeletedByClusterAutoscaler"

// TaintAwaiting is set on a node by whoever adds it to the cluster, and keeps pods away until the
// node's agent is ready.
const TaintAwaiting = "fairlead.io/agent-not-ready"

// Node translates a Node. It leaves out addresses and prefixes that cannot be parsed and does not
// report them: the kubelet and a controller write them, and no user could correct them.
func Node(n *corev1.Node) *model.Node {
	p := &problems{}
	out := &model.Node{
		Name:     n.Name,
		UID:      string(n.UID),
		Zone:     n.Labels[corev1.LabelTopologyZone],
		Addrs:    nodeAddrs(n.Status.Addresses),
		PodCIDRs: podCIDRs(&n.Spec),
		Leaving:  n.DeletionTimestamp != nil || tainted(n, taintLeaving),
		Awaiting: tainted(n, TaintAwaiting),
		Network: slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse
		}),
		Egress: bandwidth(p, n.Annotations, annotationShare),
	}
	out.Problems = p.all()
	return out
}

// LabeledNode translates a Node with its labels, by which ClusterNetworkPolicies select.
func LabeledNode(n *corev1.Node) *model.Node {
	out := Node(n)
	out.Labels = maps.Clone(n.Labels)
	return out
}

func tainted(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == key })
}

func nodeAddrs(in []corev1.NodeAddress) []netip.Addr {
	list := make([]netip.Addr, 0, len(in))
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for i := range in {
			if in[i].Type != kind {
				continue
			}
			addr, ok := parseAddr(in[i].Address)
			if ok && !addr.IsUnspecified() && !slices.Contains(list, addr) {
				list = append(list, addr)
			}
		}
	}
	return list
}

func podCIDRs(spec *corev1.NodeSpec) []netip.Prefix {
	texts := spec.PodCIDRs
	if len(texts) == 0 && spec.PodCIDR != "" {
		texts = []string{spec.PodCIDR}
	}
	list := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		if prefix, ok := parsePrefix(text); ok {
			list = append(list, prefix)
		}
	}
	return list
}

// Namespace translates a Namespace: its labels and fairlead's annotations.
func Namespace(n *corev1.Namespace) *model.Namespace {
	p := &problems{}
	checkMisplaced(p, n.Annotations, kindNamespace)
	out := &model.Namespace{
		Name: n.Name, Annotations: ours(n.Annotations), SocketLB: socketLB(p, n.Annotations), Accelerate: accelerate(p, n.Annotations),
		MayUncheck: n.Labels[labelSourceCheck] == sourceCheckOptional,
		Egress:     bandwidth(p, n.Annotations, annotationShare),
	}
	out.Problems = p.all()
	if len(n.Labels) > 0 {
		out.Labels = maps.Clone(n.Labels)
	}
	return out
}
