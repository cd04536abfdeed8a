package kube

import (
	"context"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// networkPolicies follows the NetworkPolicies of all namespaces. Labels of pods decide which of them
// concern this node.
func networkPolicies(cfg *Config, client rest.Interface) follower {
	return newKind(resource[*networkingv1.NetworkPolicy, model.NetworkPolicy]{
		name: "networkpolicies", client: client,
		object: &networkingv1.NetworkPolicy{}, list: func() runtime.Object { return &networkingv1.NetworkPolicyList{} },
		selected: func(*metav1.ListOptions) {}, translate: source.NetworkPolicy,
		set: cfg.Store.SetNetworkPolicy, drop: cfg.Store.DeleteNetworkPolicy, replace: cfg.Store.ReplaceNetworkPolicies,
	}, cfg.Log)
}

// clusterNetworkPolicies follows the ClusterNetworkPolicies, if the cluster has the kind. If it goes
// away while they are followed, those stay that the server did not say were deleted.
func clusterNetworkPolicies(cfg *Config, client rest.Interface) follower {
	return newKind(resource[*source.ClusterPolicy, model.NetworkPolicy]{
		name: "clusternetworkpolicies", client: client,
		object: &source.ClusterPolicy{}, list: func() runtime.Object { return &source.ClusterPolicyList{} },
		selected: func(*metav1.ListOptions) {}, translate: source.ClusterNetworkPolicy, lacking: lackingEvery, keeps: true,
		set: cfg.Store.SetNetworkPolicy, drop: cfg.Store.DeleteNetworkPolicy, replace: cfg.Store.ReplaceClusterNetworkPolicies,
	}, cfg.Log)
}

// withAddresses selects the pods that own an address: one that has none yet, has ended or is in its
// host's network is none to policies, and the server need not send it.
const withAddresses = "spec.hostNetwork=false,status.podIP!=,status.phase!=Succeeded,status.phase!=Failed"

// stopAfter is how long pods are followed after the last policy that needed them. A policy that is
// deleted to be created again should not cost a list of all pods.
const stopAfter = 10 * time.Minute

// demanded follows a kind of object only while it is needed.
type demanded struct {
	followed  follower
	stopAfter time.Duration
	ended     func() // called when it is no longer followed
	// lacks says why the kind is not delivered although the server can be read, or returns "".
	lacks   func() string
	changed chan struct{}

	mu     sync.Mutex
	needed bool
}

func (d *demanded) need(needed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.needed != needed {
		d.needed = needed
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

func (d *demanded) isNeeded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.needed
}

func (d *demanded) status() KindStatus {
	is := d.followed.status()
	if is.Error == "" {
		is.Error = d.lacks()
	}
	return is
}

func (d *demanded) run(ctx context.Context) {
	for d.await(ctx, true) {
		d.follow(ctx)
	}
}

// await returns once the kind is needed or not, as asked for, or false if the context has ended.
func (d *demanded) await(ctx context.Context, needed bool) bool {
	for ctx.Err() == nil {
		if d.isNeeded() == needed {
			return true
		}
		select {
		case <-ctx.Done():
		case <-d.changed:
		}
	}
	return false
}

// follow follows the kind until it has not been needed for long enough.
func (d *demanded) follow(ctx context.Context) {
	following, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { d.followed.run(following) })
	for d.await(ctx, false) {
		select {
		case <-ctx.Done():
		case <-d.changed: // it is needed again
			continue
		case <-time.After(d.stopAfter):
		}
		break
	}
	cancel()
	running.Wait()
	if ctx.Err() == nil {
		d.ended()
	}
}

// NeedClusterPods says whether policies need the pods of all nodes from now on. They are delivered
// completely before anything else of them, and forgotten some time after they are no longer needed.
func (s *Source) NeedClusterPods(needed bool) { s.demanded.need(needed) }

// ClusterPodsError says why the pods of all nodes do not come although they are needed, or returns "".
func (s *Source) ClusterPodsError() string { return s.demanded.status().Error }
