package file

import (
	"slices"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// batch holds everything that the files serve, by kind.
type batch struct {
	services   []*model.Service
	slices     []*model.Slice
	nodes      []*model.Node
	namespaces []*model.Namespace
	pods       []*model.Pod
	policies   []*model.Acceleration
	cidrs      []*model.ServiceCIDR
	network    []*model.NetworkPolicy
	cluster    []*model.NetworkPolicy
	elsewhere  []*model.PolicyPod // pods of any node, as policies see them
	ignored    int
}

func (b *batch) addPolicy(policy *model.NetworkPolicy) {
	if policy.Namespace == "" {
		b.cluster = append(b.cluster, policy)
		return
	}
	b.network = append(b.network, policy)
}

func (b *batch) add(o *object) {
	if o.pod != nil {
		b.elsewhere = append(b.elsewhere, o.pod)
	}
	switch value := o.value.(type) {
	case *model.Service:
		b.services = append(b.services, value)
	case *model.Slice:
		b.slices = append(b.slices, value)
	case *model.Node:
		b.nodes = append(b.nodes, value)
	case *model.Namespace:
		b.namespaces = append(b.namespaces, value)
	case *model.Pod:
		b.pods = append(b.pods, value)
	case *model.Acceleration:
		b.policies = append(b.policies, value)
	case *model.ServiceCIDR:
		b.cidrs = append(b.cidrs, value)
	case *model.NetworkPolicy:
		b.addPolicy(value)
	default:
		if o.pod == nil {
			b.ignored++
		}
	}
}

// deliver hands what the files serve to the store. complete says that no file is being changed
// right now, changed that at least one has changed.
func (s *Source) deliver(complete, changed bool, now time.Time) {
	var b batch
	for _, f := range s.files {
		complete = complete && f.err == nil
		for i := range f.served {
			b.add(&f.served[i])
		}
	}
	changed = changed || complete != s.synced
	s.synced = s.synced || complete
	if s.synced {
		b.replace(s.store, s.pods)
	} else {
		b.set(s.store, s.pods)
	}
	if !changed {
		return
	}
	s.lastReload = now
	objects := Objects{
		Services:            len(b.services),
		EndpointSlices:      len(b.slices),
		Nodes:               len(b.nodes),
		Namespaces:          len(b.namespaces),
		Pods:                len(b.pods),
		SocketAccelerations: len(b.policies),
		ServiceCIDRs:        len(b.cidrs),
		NetworkPolicies:     len(b.network) + len(b.cluster),
		Ignored:             b.ignored,
	}
	s.log.Info("loaded manifests", "path", s.path, "files", len(s.files), "complete", s.synced,
		"services", objects.Services, "endpointSlices", objects.EndpointSlices, "nodes", objects.Nodes,
		"namespaces", objects.Namespaces, "pods", objects.Pods, "socketAccelerations", objects.SocketAccelerations, "serviceCIDRs",
		objects.ServiceCIDRs, "networkPolicies", objects.NetworkPolicies, "ignored", objects.Ignored)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Objects = objects
}

// replace makes the store hold exactly the batch, and marks every kind as synced.
func (b *batch) replace(store *model.Store, pods source.PodReceiver) {
	store.ReplaceServices(b.services)
	store.ReplaceSlices(b.slices)
	store.ReplaceNodes(b.nodes)
	store.ReplaceNamespaces(b.namespaces)
	store.ReplaceAccelerations(b.policies) // before ReplacePods, which closes Synced
	store.ReplaceServiceCIDRs(b.cidrs)
	if pods != nil {
		pods.ReplacePods(b.elsewhere)
		store.ReplaceNetworkPolicies(b.network)
		store.ReplaceClusterNetworkPolicies(b.cluster)
	}
	store.ReplacePods(b.pods)
}

// set adds the batch to the store and removes nothing.
func (b *batch) set(store *model.Store, pods source.PodReceiver) {
	for _, service := range b.services {
		store.SetService(service)
	}
	for _, slice := range b.slices {
		store.SetSlice(slice)
	}
	for _, node := range b.nodes {
		store.SetNode(node)
	}
	for _, namespace := range b.namespaces {
		store.SetNamespace(namespace)
	}
	for _, pod := range b.pods {
		store.SetPod(pod)
	}
	for _, policy := range b.policies {
		store.SetAcceleration(policy)
	}
	for _, cidr := range b.cidrs {
		store.SetServiceCIDR(cidr)
	}
	if pods == nil {
		return
	}
	for _, pod := range b.elsewhere {
		pods.SetPod(pod)
	}
	for _, policy := range slices.Concat(b.network, b.cluster) {
		store.SetNetworkPolicy(policy)
	}
}
