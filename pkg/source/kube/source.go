// Package kube is the source of objects that watches an API server.
//
// # What is kept
//
// An object is translated as it arrives and given to the store; nothing else of it is kept. There is no informer and
// no cache of API objects beside the store, since that alone would take several times what the whole agent may use
// for a service. Even the first list is translated object by object where the server streams it.
//
// # What happens when the API server is away
//
// The store keeps what it has, and the watch goes on from where it was. If the server no longer remembers that point,
// everything of the kind is listed again and replaces what the store has, so what was deleted meanwhile goes. Until
// the first complete list of every kind the store does not count as synced, and nothing is deleted. Errors are logged
// when they begin and when they end, and are in Status all the while.
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

// Config is what a Source needs.
type Config struct {
	Kubeconfig string       // a file; empty = the service account of the pod
	REST       *rest.Config // instead of Kubeconfig; it is not changed
	Servers    []string     // HOST:PORT of API servers, beside the one that those name
	// ServersFile is where the API servers are noted that the cluster has, for an agent that starts while the one that it is told of is away; empty
	// for nowhere.
	ServersFile string
	NodeName    string // whose pods are wanted
	// Accelerations says that SocketAccelerations are wanted. Without them nothing is asked that would take a permission.
	Accelerations bool
	// PodsOnly says that no Services, EndpointSlices and Nodes are wanted. They are not asked for, which takes no permission then, and count as delivered.
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
}

// follower follows one kind of object.
type follower interface {
	run(context.Context)
	status() KindStatus
}

// Status is how far a Source is with each kind of object.
type Status struct {
	Kinds []KindStatus `json:"kinds"`
	// Server is the API server that answered last, or is to be asked first, and Configured the one that the credentials name, as HOST:PORT.
	Server     string `json:"server"`
	Configured string `json:"configured"`
}

// New returns a Source. Nothing is asked of the server before Run; the error is about the configuration.
func New(cfg Config) (*Source, error) {
	base, all, err := restConfig(&cfg)
	if err != nil {
		return nil, err
	}
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
	}
	if cfg.Accelerations {
		client, err := newClient(base, scheme, source.AccelerationGroup())
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, accelerations(&cfg, client))
	}
	return &Source{
		kinds: kinds, events: events, node: &Node{client: core, name: cfg.NodeName}, policies: &Policies{policies}, servers: all,
	}, nil
}

// serviceKinds are what Services are, and where.
func serviceKinds(cfg *Config, core, discovery rest.Interface, all *servers) []follower {
	store := cfg.Store
	labelled := func(selector string) func(*metav1.ListOptions) {
		return func(options *metav1.ListOptions) { options.LabelSelector = selector }
	}
	return []follower{
		newKind(resource[*corev1.Service, model.Service]{
			name: "services", client: core,
			object: &corev1.Service{}, list: func() runtime.Object { return &corev1.ServiceList{} },
			selected: labelled(source.ServiceSelector), translate: source.Service,
			set: store.SetService, drop: store.DeleteService, replace: store.ReplaceServices,
		}, cfg.Log),
		newKind(resource[*discoveryv1.EndpointSlice, model.Slice]{
			name: "endpointslices", client: discovery,
			object: &discoveryv1.EndpointSlice{}, list: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
			selected: labelled(source.SliceSelector), translate: source.Slice,
			set:     func(slice *model.Slice) { all.learn(slice.Name, slice); store.SetSlice(slice) },
			drop:    func(name model.Name) { all.learn(name, nil); store.DeleteSlice(name) },
			replace: func(slices []*model.Slice) { all.learnAll(slices); store.ReplaceSlices(slices) },
		}, cfg.Log),
		newKind(resource[*corev1.Node, model.Node]{
			name: "nodes", client: core,
			object: &corev1.Node{}, list: func() runtime.Object { return &corev1.NodeList{} },
			selected: func(*metav1.ListOptions) {}, translate: source.Node,
			set: store.SetNode, drop: func(name model.Name) { store.DeleteNode(name.Name) }, replace: store.ReplaceNodes,
		}, cfg.Log),
	}
}

// podKinds are the pods of this node, and whose they are.
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

// Run follows the API server until the context ends, then returns nil. What goes wrong meanwhile is tried again, logged
// and in Status.
func (s *Source) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, k := range s.kinds {
		running.Go(func() { k.run(ctx) })
	}
	running.Go(func() { s.events.run(ctx) })
	running.Wait()
	return nil
}

// Status returns the present state. It may be called from any goroutine, and before Run.
func (s *Source) Status() Status {
	var status Status
	status.Server, status.Configured = s.servers.asked()
	for _, k := range s.kinds {
		status.Kinds = append(status.Kinds, k.status())
	}
	return status
}

// Events returns where to post what is wrong with an object. What it is given before Run is posted by Run.
func (s *Source) Events() *Events { return s.events }

// Node returns the object of this node.
func (s *Source) Node() *Node { return s.node }

// Policies returns what counts the NetworkPolicies, which no source delivers.
func (s *Source) Policies() *Policies { return s.policies }

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, source.AddAccelerations} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register types: %w", err)
		}
	}
	return scheme, nil
}
