package policy

import (
	"maps"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// objects are what a Compiler compiles.
type objects struct {
	self       string // this node's name
	policies   map[model.Name]*model.NetworkPolicy
	revisions  map[model.Name]string // of policies: the hash of what they say
	namespaces map[string]map[string]string
	nodes      map[string]*model.PolicyNode
	local      map[model.Name]*model.PolicyPod
	pods       *pods
}

func newObjects(self string) objects {
	return objects{
		self: self, policies: map[model.Name]*model.NetworkPolicy{}, revisions: map[model.Name]string{}, namespaces: map[string]map[string]string{},
		nodes: map[string]*model.PolicyNode{}, local: map[model.Name]*model.PolicyPod{}, pods: newPods(),
	}
}

// Pods returns how many pods of the cluster have addresses.
func (o *objects) Pods() int { return o.pods.count }

// Policies returns all policies in the order in which they decide.
func (o *objects) Policies() []*model.NetworkPolicy {
	return slices.SortedFunc(maps.Values(o.policies), (*model.NetworkPolicy).Compare)
}

// Local returns the pods of this node that policies may select, by name.
func (o *objects) Local() []*model.PolicyPod {
	list := slices.Collect(maps.Values(o.local))
	list = slices.DeleteFunc(list, func(pod *model.PolicyPod) bool { return pod.HostNetwork })
	slices.SortFunc(list, func(a, b *model.PolicyPod) int { return a.Name.Compare(b.Name) })
	return list
}

// Addrs returns the addresses of a pod, wherever it is, or none if it is not known.
func (o *objects) Addrs(name model.Name) []netip.Addr {
	if pod := o.local[name]; pod != nil {
		return pod.Addrs
	}
	if at := o.pods.find(identity(name)); at != 0 {
		return o.pods.rows[at].addrs(nil)
	}
	return nil
}

// Namespace returns the namespace of the pod that has an address, wherever it is.
func (o *objects) Namespace(addr netip.Addr) (namespace string, known bool) {
	shape := o.pods.owner(addr.Unmap())
	if shape == nil {
		return "", false
	}
	return shape.namespace(), true
}

// policiesByNamespace groups the policies so that those of a pod are found quickly.
func (o *objects) policiesByNamespace() map[string][]*model.NetworkPolicy {
	out := map[string][]*model.NetworkPolicy{}
	for _, policy := range o.policies {
		out[policy.Namespace] = append(out[policy.Namespace], policy)
	}
	for _, list := range out {
		slices.SortFunc(list, (*model.NetworkPolicy).Compare)
	}
	return out
}

// Selecting returns the policies that select a pod of this node, in the order in which they decide. known
// is false if it is not known which ClusterNetworkPolicies do, because the labels of its namespace are not.
func (o *objects) Selecting(pod *model.PolicyPod) (list []*model.NetworkPolicy, known bool) {
	return o.selecting(pod, o.policiesByNamespace())
}

func (o *objects) selecting(pod *model.PolicyPod, policies map[string][]*model.NetworkPolicy) (list []*model.NetworkPolicy, known bool) {
	labels, there := o.namespaces[pod.Namespace]
	known = there || len(policies[""]) == 0
	for _, candidates := range [][]*model.NetworkPolicy{policies[""], policies[pod.Namespace]} {
		for _, policy := range candidates {
			if (policy.Namespace != "" || there) && selects(policy, labels, pod.Labels) {
				list = append(list, policy)
			}
		}
	}
	slices.SortFunc(list, (*model.NetworkPolicy).Compare)
	return list, known
}

// NeedsPods reports whether policies that select pods of this node tell peers apart by what pods they
// are, so that the pods of the cluster have to be known.
func (o *objects) NeedsPods() bool {
	policies := o.policiesByNamespace()
	for _, pod := range o.local {
		if pod.HostNetwork {
			continue
		}
		for _, list := range [][]*model.NetworkPolicy{policies[""], policies[pod.Namespace]} {
			for _, policy := range list {
				if needsPods(policy) && selects(policy, o.namespaces[pod.Namespace], pod.Labels) {
					return true
				}
			}
		}
	}
	return false
}

func needsPods(policy *model.NetworkPolicy) bool {
	for direction := range policy.Rules {
		for i := range policy.Rules[direction] {
			rule := &policy.Rules[direction][i]
			named := model.Direction(direction) == model.Egress && len(rule.Named) > 0
			if named || slices.ContainsFunc(rule.Peers, func(peer model.PolicyPeer) bool { return peer.Pods != nil }) {
				return true
			}
		}
	}
	return false
}
