package reconcile

import (
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Estimate returns sizes with room for twice what the Store holds, so that a cold start does not
// begin by growing the maps. It need not be exact: maps that turn out too small grow.
func Estimate(store *model.Store) maps.Sizes {
	var sizes maps.Sizes
	for _, key := range store.Keys() {
		if key.Kind == model.KindPod {
			ports := hostPorts(store, key.Name)
			sizes.Svcs += ports
			sizes.Services += ports
			sizes.Slots += ports
			sizes.Backends += ports
			continue
		}
		service, list := store.Service(key.Name)
		if service == nil {
			continue
		}
		families := uint32(max(len(service.ClusterIPs), 1))
		ports := uint32(len(service.Ports))
		addrs := len(service.ClusterIPs) + len(service.ExternalIPs) + len(service.LoadBalancerIPs)
		sizes.Svcs += ports * (uint32(addrs) + families)
		sizes.Services += ports * families
		for _, slice := range list {
			n := uint32(len(slice.Endpoints) * len(slice.Ports))
			sizes.Backends += n
			sizes.Slots += 2 * n // two scopes, and rounding to a power of two
		}
	}
	return maps.Sizes{
		Svcs: 2 * sizes.Svcs, Services: 2 * sizes.Services, Slots: 2 * sizes.Slots, Backends: 2 * sizes.Backends,
	}
}

// hostPorts returns the number of host ports of a pod times its addresses.
func hostPorts(store *model.Store, name model.Name) (ports uint32) {
	if pod := store.Pod(name); pod != nil {
		ports = uint32(len(pod.HostPorts) * len(pod.Addrs))
	}
	for _, a := range store.Attached(name) {
		ports += uint32(len(a.HostPorts) * len(a.Addrs))
	}
	return ports
}
