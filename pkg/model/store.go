package model

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Store keeps the latest objects and remembers which keys changed since they were last taken. It is
// the only state that sources write, and what is compiled depends on that state alone: reordered,
// duplicated or lost events on the way to it make no difference.
//
// All methods are safe for concurrent use.
type Store struct {
	// They share the queue and with it one lock.
	*serviceRanges // which embeds claims, latest and queue, each the one that it is built on
	*policies
	*networkPolicies
}

// latest is the latest version of each object.
type latest struct {
	*queue
	self       string          // name of this node
	services   map[Name]*entry // a Service and its slices, whichever came first
	owner      map[Name]Name   // slice to Service
	nodes      map[string]*Node
	namespaces map[string]*Namespace
	pods       map[Name]*Pod
	attached   map[Name][]*Attachment  // those with host ports, by pod; the oldest first
	local      map[netip.Addr]struct{} // addresses of this node's interfaces
	moved      uint64                  // counts changes of node addresses and pod CIDRs
}

type entry struct {
	service *Service
	slices  []*Slice // by name
}

// NewStore returns an empty Store for the agent of the node called self.
func NewStore(self string) *Store {
	queue := newQueue()
	objects := &latest{
		queue:      queue,
		self:       self,
		services:   map[Name]*entry{},
		owner:      map[Name]Name{},
		nodes:      map[string]*Node{},
		namespaces: map[string]*Namespace{},
		pods:       map[Name]*Pod{},
		attached:   map[Name][]*Attachment{},
	}
	return &Store{
		serviceRanges: &serviceRanges{claims: newClaims(objects), objects: map[string]*ServiceCIDR{}},
		policies:      &policies{queue: queue, byName: map[Name]*Acceleration{}},

		networkPolicies: &networkPolicies{shared: queue, all: map[Name]*NetworkPolicy{}},
	}
}

// MarkAll makes every Service and Pod due.
func (s *latest) MarkAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.markAll()
}

func (s *latest) markAll() {
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

// Service returns the latest Service of that name, or nil, and its slices, ordered by name. The
// caller must not modify either.
func (s *latest) Service(name Name) (*Service, []*Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.services[name]
	if e == nil {
		return nil, nil
	}
	return e.service, e.slices
}

// Pod returns the latest Pod of that name, or nil.
func (s *latest) Pod(name Name) *Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[name]
}

// Unchecked reports whether the pod that this node's runtime knows by that UID may send from
// addresses that are not its own. The pod has to ask for it and its namespace has to allow it. An
// empty UID matches any pod of that name.
func (s *latest) Unchecked(name Name, uid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	pod := s.known(name, uid)
	return pod != nil && pod.Unchecked && s.mayUncheck(name.Namespace)
}

// Proxy returns the proxy that the pod asks to have its connections handed to, and whether the Pod
// is known. The UID is the runtime's, as for Unchecked.
func (s *latest) Proxy(name Name, uid string) (proxy string, known bool) {
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
func (s *latest) Rates(name Name, uid string) Rates {
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
func (s *latest) known(name Name, uid string) *Pod {
	pod := s.pods[name]
	if pod == nil || uid != "" && uid != pod.UID && uid != pod.LocalUID {
		return nil
	}
	return pod
}

// MayUncheck reports whether a namespace allows its pods to send from foreign addresses.
func (s *latest) MayUncheck(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayUncheck(namespace)
}

func (s *latest) mayUncheck(namespace string) bool {
	found := s.namespaces[namespace]
	return found != nil && found.MayUncheck
}

// Attached returns the attachments of a pod that have host ports or lost them, the oldest first.
// The caller must not modify the list.
func (s *latest) Attached(pod Name) []*Attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached[pod]
}

// Pods returns the latest version of every Pod, by name.
func (s *latest) Pods() []*Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.pods), func(a, b *Pod) int { return a.Name.Compare(b.Name) })
}

// PodAddrs maps the addresses of this node's pods to the pods that have them.
func (s *latest) PodAddrs() map[netip.Addr]Name {
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
func (s *latest) Namespaces() []*Namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.namespaces), func(a, b *Namespace) int { return strings.Compare(a.Name, b.Name) })
}

// Self returns this node's latest Node object, or a Node with only a name while there is none.
func (s *latest) Self() *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if node := s.nodes[s.self]; node != nil {
		return node
	}
	return &Node{Name: s.self}
}

// Others returns the latest version of every Node but this one, by name.
func (s *latest) Others() []*Node {
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
func (s *latest) Keys() []Key {
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
func (s *latest) Local(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.local[addr]
	return ok
}

// Inside returns the sorted prefixes inside the cluster as far as Nodes tell: the nodes' own
// addresses and their pod CIDRs. The number moves changes with them: if it still equals known,
// nothing has changed and no list is built.
func (s *latest) Inside(known uint64) (list []netip.Prefix, moves uint64) {
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
