// Package kube is the source that watches an API server.
//
// # What is kept
//
// Each object is translated as it arrives and handed to the store; nothing else of it is kept.
// There is no informer and no cache of API objects beside the store: that alone would take several
// times the memory that the whole agent may use for a Service. Where the server can stream a list,
// even the first list is translated object by object.
//
// # When the API server cannot be reached
//
// The store keeps what it has, and the watch continues where it stopped. If the server no longer
// remembers that point, the whole kind is listed again and replaces what the store has, which
// removes what was deleted meanwhile. Until the first complete list of every kind, the store does
// not count as synced, and nothing is deleted. An outage is logged when it begins and when it ends,
// and is in Status while it lasts.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// Config configures a Source.
type Config struct {
	Kubeconfig string       // a file; empty = the service account of the pod
	REST       *rest.Config // instead of Kubeconfig; it is not changed
	Servers    []string     // HOST:PORT of API servers besides the one that those name
	// ServersFile remembers the cluster's API servers, for an agent that starts while the
	// configured one is down; empty for no file.
	ServersFile string
	NodeName    string // follow the pods of this node
	// Accelerations makes the Source follow SocketAccelerations. Otherwise it needs no permission
	// to read them.
	Accelerations bool
	// ServiceCIDRs makes the Source follow ServiceCIDRs, if the cluster has the kind. Otherwise it needs
	// no permission to read them.
	ServiceCIDRs bool
	// Policies makes the Source follow NetworkPolicies, ClusterNetworkPolicies if the cluster has the
	// kind, and labels of nodes. Otherwise it needs no permission to read them.
	Policies bool
	// ClusterPods takes the pods of all nodes while policies need them.
	ClusterPods source.PodReceiver
	// PodSlices makes the Source read them from PodSlices, which fairlead controller writes.
	PodSlices bool
	// PodsOnly makes the Source follow no Services, EndpointSlices and Nodes. It then needs no
	// permission to read them, and they count as delivered.
	PodsOnly bool
	Version  string // of the agent, for the server's log
	Store    *model.Store
	Log      *slog.Logger
}

// Source keeps a Store up to date with an API server.
type Source struct {
	kinds    []follower
	events   *Events
	node     *Node
	policies *Policies
	servers  *servers
	demanded *demanded // nil unless policies are followed
}

// follower follows one kind of object.
type follower interface {
	run(context.Context)
	status() KindStatus
}

// Status is the state of a Source, by kind of object.
type Status struct {
	Kinds []KindStatus `json:"kinds"`
	// Server is the API server that answered last, or will be asked first; Configured is the one
	// that the credentials name. Both are HOST:PORT.
	Server     string `json:"server"`
	Configured string `json:"configured"`
}

// New returns a Source. It sends nothing to the server before Run; its errors are about the
// configuration.
func New(cfg Config) (*Source, error) {
	base, all, err := restConfig(&cfg)
	if err != nil {
		return nil, err
	}
	cfg.Store.SetServers(all.addresses())
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	core, err := newClient(base, scheme, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	discovery, err := newClient(base, scheme, discoveryv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	events, err := newEvents(base, scheme, cfg.NodeName, cfg.Log)
	if err != nil {
		return nil, err
	}
	policies, err := newClient(base, scheme, policiesGroup())
	if err != nil {
		return nil, err
	}
	kinds := podKinds(&cfg, core)
	if cfg.PodsOnly {
		cfg.Store.ReplaceServices(nil)
		cfg.Store.ReplaceSlices(nil)
		cfg.Store.ReplaceNodes(nil)
	} else {
		kinds = append(serviceKinds(&cfg, core, discovery, all), kinds...)
		if cfg.ServiceCIDRs {
			kinds = append(kinds, serviceCIDRs(&cfg, policies))
		}
	}
	if cfg.Accelerations {
		client, err := newClient(base, scheme, source.AccelerationGroup())
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, accelerations(&cfg, client))
	}
	var demanded *demanded
	if cfg.Policies {
		client, err := newClient(base, scheme, source.ClusterPolicyGroup())
		if err != nil {
			return nil, err
		}
		if demanded = clusterPods(&cfg, core); cfg.PodSlices {
			client, err := newClient(base, scheme, source.AccelerationGroup())
			if err != nil {
				return nil, err
			}
			demanded = slicedPods(&cfg, client)
		}
		kinds = append(kinds, networkPolicies(&cfg, policies), clusterNetworkPolicies(&cfg, client), demanded)
	}
	return &Source{
		kinds: kinds, demanded: demanded, events: events, node: &Node{client: core, name: cfg.NodeName}, policies: &Policies{policies}, servers: all,
	}, nil
}

// serviceKinds are the kinds that describe Services, their endpoints and the nodes.
func serviceKinds(cfg *Config, core, discovery rest.Interface, all *servers) []follower {
	store, translateNode := cfg.Store, source.Node
	if cfg.Policies {
		translateNode = source.LabeledNode
	}
	labeled := func(selector string) func(*metav1.ListOptions) {
		return func(options *metav1.ListOptions) { options.LabelSelector = selector }
	}
	return []follower{
		newKind(resource[*corev1.Service, model.Service]{
			name: "services", client: core,
			object: &corev1.Service{}, list: func() runtime.Object { return &corev1.ServiceList{} },
			selected: labeled(source.ServiceSelector), translate: source.Service,
			set: store.SetService, drop: store.DeleteService, replace: store.ReplaceServices,
		}, cfg.Log),
		newKind(resource[*discoveryv1.EndpointSlice, model.Slice]{
			name: "endpointslices", client: discovery,
			object: &discoveryv1.EndpointSlice{}, list: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
			selected: labeled(source.SliceSelector), translate: source.Slice,
			set:     func(slice *model.Slice) { all.learn(slice.Name, slice); store.SetSlice(slice) },
			drop:    func(name model.Name) { all.learn(name, nil); store.DeleteSlice(name) },
			replace: func(slices []*model.Slice) { all.learnAll(slices); store.ReplaceSlices(slices) },
		}, cfg.Log),
		newKind(resource[*corev1.Node, model.Node]{
			name: "nodes", client: core,
			object: &corev1.Node{}, list: func() runtime.Object { return &corev1.NodeList{} },
			selected: func(*metav1.ListOptions) {}, translate: translateNode,
			set: store.SetNode, drop: func(name model.Name) { store.DeleteNode(name.Name) }, replace: store.ReplaceNodes,
		}, cfg.Log),
	}
}

// podKinds are the pods of this node, and namespaces.
func podKinds(cfg *Config, core rest.Interface) []follower {
	store := cfg.Store
	onNode := fields.OneTermEqualSelector("spec.nodeName", cfg.NodeName).String()
	return []follower{
		newKind(resource[*corev1.Namespace, model.Namespace]{
			name: "namespaces", client: core,
			object: &corev1.Namespace{}, list: func() runtime.Object { return &corev1.NamespaceList{} },
			selected: func(*metav1.ListOptions) {}, translate: source.Namespace,
			set: store.SetNamespace, drop: func(name model.Name) { store.DeleteNamespace(name.Name) }, replace: store.ReplaceNamespaces,
		}, cfg.Log),
		newKind(resource[*corev1.Pod, model.Pod]{
			name: "pods", client: core,
			object: &corev1.Pod{}, list: func() runtime.Object { return &corev1.PodList{} },
			selected:  func(options *metav1.ListOptions) { options.FieldSelector = onNode },
			translate: source.Pod,
			set:       store.SetPod, drop: store.DeletePod, replace: store.ReplacePods,
		}, cfg.Log),
	}
}

// Run follows the API server until the context ends, then returns nil. It logs errors, shows them
// in Status, and tries again.
func (s *Source) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, k := range s.kinds {
		running.Go(func() { k.run(ctx) })
	}
	running.Go(func() { s.events.run(ctx) })
	running.Wait()
	return nil
}

// Status returns the current state. It may be called from any goroutine, even before Run.
func (s *Source) Status() Status {
	var status Status
	status.Server, status.Configured = s.servers.asked()
	for _, k := range s.kinds {
		if k != s.demanded || s.demanded.isNeeded() {
			status.Kinds = append(status.Kinds, k.status())
		}
	}
	return status
}

// Events returns the Events of this Source. Run posts those that were queued before it.
func (s *Source) Events() *Events { return s.events }

// Node returns the Node that writes to this node's object.
func (s *Source) Node() *Node { return s.node }

// Policies returns the Policies that count NetworkPolicies, which no source delivers.
func (s *Source) Policies() *Policies { return s.policies }

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, source.AddAccelerations, source.AddServiceCIDRs, source.AddNetworkPolicies, source.AddClusterPolicies, source.AddCheckedPodSlices} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register types: %w", err)
		}
	}
	return scheme, nil
}
