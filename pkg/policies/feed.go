package policies

import (
	"net/netip"

	"fairlead.io/fairlead/pkg/model"
)

// fed are the objects that the compiler has, as the store had them: objects of a store never change.
type fed struct {
	policies   map[model.Name]*model.NetworkPolicy
	namespaces map[string]*model.Namespace
	nodes      map[string]*model.Node
	local      map[model.Name]struct{}
}

func newFed() fed {
	return fed{map[model.Name]*model.NetworkPolicy{}, map[string]*model.Namespace{}, map[string]*model.Node{}, map[model.Name]struct{}{}}
}

// feed gives the compiler what the store has, and returns the devices by address.
func (c *Controller) feed(devices []Device) map[netip.Addr][]uint32 {
	list, _ := c.Store.NetworkPolicies()
	follow(c.fed.policies, list, func(p *model.NetworkPolicy) model.Name { return p.Name }, c.compiler.SetPolicy, c.compiler.DeletePolicy)
	follow(c.fed.namespaces, c.Store.Namespaces(), func(n *model.Namespace) string { return n.Name },
		func(n *model.Namespace) { c.compiler.SetNamespace(n.Name, n.Labels) }, c.compiler.DeleteNamespace)
	follow(c.fed.nodes, append(c.Store.Others(), c.Store.Self()), func(n *model.Node) string { return n.Name },
		func(n *model.Node) {
			c.compiler.SetNode(&model.PolicyNode{Name: n.Name, Labels: n.Labels, Addrs: n.Addrs})
		}, c.compiler.DeleteNode)
	return c.feedLocal(devices)
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

// feedLocal gives the compiler the pods of this node that have devices. Their addresses are those that
// the node gave them: the API server knows them only once a pod runs.
func (c *Controller) feedLocal(devices []Device) map[netip.Addr][]uint32 {
	byAddr, byPod := map[netip.Addr][]uint32{}, map[model.Name][]netip.Addr{}
	for _, device := range devices {
		for _, addr := range device.Addrs {
			byAddr[addr] = append(byAddr[addr], device.Index)
		}
		byPod[device.Pod] = append(byPod[device.Pod], device.Addrs...)
	}
	there := map[model.Name]struct{}{}
	for name, addrs := range byPod {
		pod := c.Store.Pod(name)
		if pod == nil || pod.HostNetwork {
			continue
		}
		there[name] = struct{}{}
		c.fed.local[name] = struct{}{}
		c.compiler.SetLocal(&model.PolicyPod{Name: name, Created: pod.Created, Addrs: addrs, Labels: pod.Labels, Ports: pod.Ports})
	}
	for name := range c.fed.local {
		if _, still := there[name]; !still {
			delete(c.fed.local, name)
			c.compiler.DeleteLocal(name)
		}
	}
	return byAddr
}
