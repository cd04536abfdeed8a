package model

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// Object is a kind of object that a source delivers.
type Object uint8

// The kinds of object, in the order in which sources deliver them.
const (
	ObjectService Object = iota
	ObjectSlice
	ObjectNode
	ObjectNamespace
	ObjectPod
	objects
)

// Store keeps the latest objects and remembers which keys changed since they were last taken. It is
// the only state that sources write, and what is compiled depends on that state alone: reordered,
// duplicated or lost events on the way to it make no difference.
//
// All methods are safe for concurrent use.
type Store struct {
	mu         sync.Mutex
	services   map[Name]*entry // a Service and its slices, whichever came first
	owner      map[Name]Name   // slice to Service
	nodes      map[string]*Node
	namespaces map[string]*Namespace
	pods       map[Name]*Pod
	policies   map[Name]*Acceleration
	attached   map[Name][]*Attachment // those with host ports, by pod; the oldest first
	claims     claims
	servers    servers
	ranges     serviceRanges
	local      map[netip.Addr]struct{}     // addresses of this node's interfaces
	broadcasts map[netip.Addr]struct{}     // of the networks of these interfaces
	nodeAddrs  map[netip.Addr]int          // number of Nodes with the address
	tunnelEnds map[netip.Addr]map[Name]int // endpoints that are refused at a node, by Service
	moved      uint64                      // counts changes of node addresses and pod CIDRs

	self    string // name of this node
	dirty   map[Key]struct{}
	wake    chan struct{}
	pod     chan struct{} // signaled when pods or namespaces change
	short   chan struct{} // signaled when pods, namespaces, acceleration policies or the rate of this node change
	traits  chan struct{} // signaled when what Unchecked, Proxy or Rates return may have changed
	node    chan struct{} // signaled when this node changes
	inside  chan struct{} // signaled when addresses inside the cluster change
	others  chan struct{} // likewise, for the reader that maintains routes to other nodes
	cluster chan struct{} // likewise, for the reader that tells the programs who is a node
	synced  [objects]bool
	ready   chan struct{} // closed once all are synced
	listed  bool          // all policies were delivered

	waiting waiting
}

type entry struct {
	service *Service
	slices  []*Slice // by name
}

// NewStore returns an empty Store for the agent of the node called self.
func NewStore(self string) *Store {
	return &Store{
		services:   map[Name]*entry{},
		owner:      map[Name]Name{},
		nodes:      map[string]*Node{},
		namespaces: map[string]*Namespace{},
		pods:       map[Name]*Pod{},
		policies:   map[Name]*Acceleration{},
		attached:   map[Name][]*Attachment{},
		claims:     newClaims(),
		ranges:     serviceRanges{objects: map[string]*ServiceCIDR{}},
		nodeAddrs:  map[netip.Addr]int{},
		tunnelEnds: map[netip.Addr]map[Name]int{},
		self:       self,
		dirty:      map[Key]struct{}{},
		waiting:    waiting{started: time.Now()},
		wake:       make(chan struct{}, 1),
		pod:        make(chan struct{}, 1),
		short:      make(chan struct{}, 1),
		traits:     make(chan struct{}, 1),
		node:       make(chan struct{}, 1),
		inside:     make(chan struct{}, 1),
		others:     make(chan struct{}, 1),
		cluster:    make(chan struct{}, 1),
		ready:      make(chan struct{}),
	}
}

// Wake is signaled whenever a key becomes dirty or addresses inside the cluster change.
func (s *Store) Wake() <-chan struct{} { return s.wake }

// PodsChanged is signaled whenever a Pod or a Namespace changes. It has one reader.
func (s *Store) PodsChanged() <-chan struct{} { return s.pod }

// AcceleratedChanged is signaled whenever the set of connections that may bypass TCP may have
// changed. It has one reader.
func (s *Store) AcceleratedChanged() <-chan struct{} { return s.short }

// TraitsChanged is signaled whenever Unchecked, Proxy or Rates may have changed for a pod. It has
// one reader.
func (s *Store) TraitsChanged() <-chan struct{} { return s.traits }

// SelfChanged is signaled whenever the Node that the agent runs on changes. It has one reader.
func (s *Store) SelfChanged() <-chan struct{} { return s.node }

// InsideChanged is signaled whenever addresses inside the cluster change. It has one reader.
func (s *Store) InsideChanged() <-chan struct{} { return s.inside }

// NodesChanged is signaled whenever the addresses or pod CIDRs of a node change. It has one
// reader.
func (s *Store) NodesChanged() <-chan struct{} { return s.others }

// ClusterChanged is signaled likewise, for another reader.
func (s *Store) ClusterChanged() <-chan struct{} { return s.cluster }

// Synced is closed once every kind of object was delivered completely at least once. Until then
// nothing may be deleted.
func (s *Store) Synced() <-chan struct{} { return s.ready }

// maxDirty is the largest set of dirty keys that is cleared and reused. A map never shrinks, and
// after a start it has room for every object.
const maxDirty = 1024

// TakeDirty returns the keys that changed since the last call, sorted, and forgets them.
func (s *Store) TakeDirty() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.dirty) == 0 {
		return nil
	}
	s.waiting.taken, s.waiting.marked = earliest(s.waiting.taken, s.waiting.marked), time.Time{}
	keys := make([]Key, 0, len(s.dirty))
	for key := range s.dirty {
		keys = append(keys, key)
	}
	if len(keys) > maxDirty {
		s.dirty = map[Key]struct{}{}
	} else {
		clear(s.dirty)
	}
	slices.SortFunc(keys, Key.Compare)
	return keys
}

// MarkDirty makes the keys due again, after an error or when what they compile to depends on
// another object.
func (s *Store) MarkDirty(keys ...Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark(keys...)
}

// MarkAll makes every Service and Pod due.
func (s *Store) MarkAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.markAll()
}

func (s *Store) markAll() {
	for name := range s.services {
		s.mark(Key{KindService, name})
	}
	for name := range s.pods {
		s.mark(Key{KindPod, name})
	}
	for name := range s.attached {
		s.mark(Key{KindPod, name})
	}
}

func (s *Store) mark(keys ...Key) {
	if len(s.dirty) == 0 && len(keys) > 0 {
		s.waiting.marked = time.Now()
	}
	for _, key := range keys {
		s.dirty[key] = struct{}{}
	}
	signal(s.wake)
}

// signal wakes the reader of a channel with room for one element.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *Store) markSynced(object Object) {
	if s.synced[object] {
		return
	}
	s.synced[object] = true
	for _, synced := range s.synced {
		if !synced {
			return
		}
	}
	close(s.ready)
	signal(s.traits) // only now do Unchecked, Proxy and Rates return the truth
}

// Unsynced lists the kinds of object that were not delivered yet.
func (s *Store) Unsynced() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var missing []string
	for object, name := range []string{"services", "endpointslices", "nodes", "namespaces", "pods"} {
		if !s.synced[object] {
			missing = append(missing, name)
		}
	}
	return missing
}

// Service returns the latest Service of that name, or nil, and its slices, ordered by name. The
// caller must not modify either.
func (s *Store) Service(name Name) (*Service, []*Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.services[name]
	if e == nil {
		return nil, nil
	}
	return e.service, e.slices
}

// Pod returns the latest Pod of that name, or nil.
func (s *Store) Pod(name Name) *Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name]
}

// Unchecked reports whether the pod that this node's runtime knows by that UID may send from
// addresses that are not its own. The pod has to ask for it and its namespace has to allow it. An
// empty UID matches any pod of that name.
func (s *Store) Unchecked(name Name, uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.known(name, uid)
	return pod != nil && pod.Unchecked && s.mayUncheck(name.Namespace)
}

// Proxy returns the proxy that the pod asks to have its connections handed to, and whether the Pod
// is known. The UID is the runtime's, as for Unchecked.
func (s *Store) Proxy(name Name, uid string) (proxy string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.known(name, uid)
	if pod == nil {
		return "", false
	}
	return pod.Proxy, true
}

// Rates are bits per second that a pod may send and receive; 0 stands for no limit.
type Rates struct {
	Egress, Ingress uint64
	OfNamespace     uint64 // that the pods of its namespace may send together
	OfNode          uint64 // that all pods of this node may send together
	Class           Class
	BBR             Choice // whether its connections use BBR congestion control
	Known           bool   // the Pod is known; if not, only the shared rates are valid
}

// The limits, in bits per second, that Kubernetes sets for the bandwidth annotations.
const (
	leastRate = 1e3
	mostRate  = 1e15
)

// ReasonableRate returns bits, in bits per second, or 0 for no limit if a pod cannot be kept to that
// rate.
func ReasonableRate(bits uint64) uint64 {
	if bits < leastRate || bits > mostRate {
		return 0
	}
	return bits
}

// Rates returns the rates of the pod that this node's runtime knows by that UID. Rates shared with
// other pods apply whether or not the Pod is known.
func (s *Store) Rates(name Name, uid string) Rates {
	s.mu.Lock()
	defer s.mu.Unlock()
	var r Rates
	if pod := s.known(name, uid); pod != nil {
		r.Egress, r.Ingress, r.Class, r.BBR, r.Known = pod.Egress, pod.Ingress, pod.Class, pod.BBR, true
	}
	if namespace := s.namespaces[name.Namespace]; namespace != nil {
		r.OfNamespace = namespace.Egress
	}
	if node := s.nodes[s.self]; node != nil {
		r.OfNode = node.Egress
	}
	return r
}

// known returns the Pod that the runtime means, or nil if the Pod of that name is a different one.
func (s *Store) known(name Name, uid string) *Pod {
	pod := s.pods[name]
	if pod == nil || uid != "" && uid != pod.UID && uid != pod.LocalUID {
		return nil
	}
	return pod
}

// MayUncheck reports whether a namespace allows its pods to send from foreign addresses.
func (s *Store) MayUncheck(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayUncheck(namespace)
}

func (s *Store) mayUncheck(namespace string) bool {
	found := s.namespaces[namespace]
	return found != nil && found.MayUncheck
}

// Attached returns the attachments of a pod that have host ports or lost them, the oldest first.
// The caller must not modify the list.
func (s *Store) Attached(pod Name) []*Attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached[pod]
}

// Pods returns the latest version of every Pod, by name.
func (s *Store) Pods() []*Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.pods), func(a, b *Pod) int { return a.Name.Compare(b.Name) })
}

// PodAddrs maps the addresses of this node's pods to the pods that have them.
func (s *Store) PodAddrs() map[netip.Addr]Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	whose := make(map[netip.Addr]Name, 2*len(s.pods))
	for name, pod := range s.pods {
		for _, addr := range pod.Addrs {
			if !pod.HostNetwork {
				whose[addr] = name
			}
		}
	}
	return whose
}

// Namespaces returns the latest version of every Namespace, by name.
func (s *Store) Namespaces() []*Namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.namespaces), func(a, b *Namespace) int { return strings.Compare(a.Name, b.Name) })
}

// Self returns this node's latest Node object, or a Node with only a name while there is none.
func (s *Store) Self() *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if node := s.nodes[s.self]; node != nil {
		return node
	}
	return &Node{Name: s.self}
}

// Others returns the latest version of every Node but this one, by name.
func (s *Store) Others() []*Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Node, 0, len(s.nodes))
	for name, node := range s.nodes {
		if name != s.self {
			list = append(list, node)
		}
	}
	slices.SortFunc(list, func(a, b *Node) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Keys returns the keys of every Service and Pod, sorted.
func (s *Store) Keys() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]Key, 0, len(s.services)+len(s.pods))
	for name, e := range s.services {
		if e.service != nil {
			keys = append(keys, Key{KindService, name})
		}
	}
	for name := range s.pods {
		keys = append(keys, Key{KindPod, name})
	}
	for name := range s.attached {
		if s.pods[name] == nil {
			keys = append(keys, Key{KindPod, name})
		}
	}
	slices.SortFunc(keys, Key.Compare)
	return keys
}

// Local reports whether an interface of this node has the address.
func (s *Store) Local(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.local[addr]
	return ok
}

// Inside returns the sorted prefixes inside the cluster as far as Nodes tell: the nodes' own
// addresses and their pod CIDRs. The number moves changes with them: if it still equals known,
// nothing has changed and no list is built.
func (s *Store) Inside(known uint64) (list []netip.Prefix, moves uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.moved == known {
		return nil, known
	}
	for _, node := range s.nodes {
		for _, addr := range node.Addrs {
			list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
		}
		for _, cidr := range node.PodCIDRs {
			list = append(list, cidr.Masked())
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list), s.moved
}
