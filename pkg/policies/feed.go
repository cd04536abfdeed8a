package policies

import (
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/model"
)

// fed are the objects that the compiler has, as the store had them: objects of a store never change.
type fed struct {
	policies   map[model.Name]*model.NetworkPolicy
	namespaces map[string]*model.Namespace
	nodes      map[string]*model.Node
	local      map[model.Name][]string // the UIDs of their devices
	cluster    int                     // how many of the policies are ClusterNetworkPolicies
}

func newFed() fed {
	return fed{map[model.Name]*model.NetworkPolicy{}, map[string]*model.Namespace{}, map[string]*model.Node{}, map[model.Name][]string{}, 0}
}

// feed gives the compiler what the store has, but for pods.
func (c *Controller) feed() {
	list, _ := c.Store.NetworkPolicies()
	follow(c.fed.policies, list, func(p *model.NetworkPolicy) model.Name { return p.Name }, c.compiler.SetPolicy, c.compiler.DeletePolicy)
	follow(c.fed.namespaces, c.Store.Namespaces(), func(n *model.Namespace) string { return n.Name },
		func(n *model.Namespace) { c.compiler.SetNamespace(n.Name, n.Labels) }, c.compiler.DeleteNamespace)
	follow(c.fed.nodes, append(c.Store.Others(), c.Store.Self()), func(n *model.Node) string { return n.Name },
		func(n *model.Node) {
			c.compiler.SetNode(&model.PolicyNode{Name: n.Name, Labels: n.Labels, Addrs: n.Addrs})
		}, c.compiler.DeleteNode)
	c.fed.cluster = 0
	for name := range c.fed.policies {
		if name.Namespace == "" {
			c.fed.cluster++
		}
	}
}

// follow brings known up to date with a list.
func follow[K comparable, V any](known map[K]*V, list []*V, key func(*V) K, set func(*V), drop func(K)) {
	there := make(map[K]struct{}, len(list))
	for _, value := range list {
		name := key(value)
		there[name] = struct{}{}
		if known[name] != value {
			known[name] = value
			set(value)
		}
	}
	for name := range known {
		if _, still := there[name]; !still {
			delete(known, name)
			drop(name)
		}
	}
}

// isOf reports whether the runtime's UID of a device is that of the pod with its name. A runtime need not say one,
// nor does a manifest.
func isOf(pod *model.Pod, uid string) bool {
	return uid == "" || pod.UID == "" || uid == pod.UID || uid == pod.LocalUID
}

// feedLocal gives the compiler the pods of this node that have devices, and returns the devices by address. Their addresses are those that
// the node gave them: the API server knows them only once a pod runs. A device of a pod that has another UID
// than the one that is known by its name is left out, so that everything is denied to it: what is known is about
// its predecessor, or its successor.
func (c *Controller) feedLocal(devices []Device) map[netip.Addr][]uint32 {
	byAddr, byPod, uids := map[netip.Addr][]uint32{}, map[*model.Pod][]netip.Addr{}, map[model.Name][]string{}
	for _, device := range devices {
		pod := c.Store.Pod(device.Pod)
		if pod == nil || pod.HostNetwork || !isOf(pod, device.UID) {
			continue
		}
		for _, addr := range device.Addrs {
			byAddr[addr] = append(byAddr[addr], device.Index)
		}
		byPod[pod] = append(byPod[pod], device.Addrs...)
		uids[pod.Name] = append(uids[pod.Name], device.UID)
	}
	for pod, addrs := range byPod {
		slices.Sort(uids[pod.Name])
		c.compiler.SetLocal(&model.PolicyPod{Name: pod.Name, Created: pod.Created, Addrs: addrs, Labels: pod.Labels, Ports: pod.Ports})
	}
	for name := range c.fed.local {
		if _, still := uids[name]; !still {
			c.compiler.DeleteLocal(name)
		}
	}
	c.fed.local = uids
	return byAddr
}
