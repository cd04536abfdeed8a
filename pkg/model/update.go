package model

import (
	"iter"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// SetService stores a new or changed Service.
func (s *Store) SetService(service *Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setService(service)
}

// DeleteService forgets a Service. Its slices stay until they are deleted themselves.
func (s *Store) DeleteService(name Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteService(name)
}

// ReplaceServices makes the Services exactly the given ones.
func (s *Store) ReplaceServices(services []*Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := make(map[Name]struct{}, len(services))
	for _, service := range services {
		keep[service.Name] = struct{}{}
		s.setService(service)
	}
	for name := range s.services {
		if _, ok := keep[name]; !ok {
			s.deleteService(name)
		}
	}
	s.markSynced(ObjectService)
}

func (s *Store) setService(service *Service) {
	e := s.entry(service.Name)
	if e.service != nil {
		if reflect.DeepEqual(e.service, service) {
			return
		}
		s.releaseAddrs(e.service)
	}
	e.service = service
	s.claimAddrs(service)
	s.mark(Key{KindService, service.Name})
}

func (s *Store) deleteService(name Name) {
	e := s.services[name]
	if e == nil || e.service == nil {
		return
	}
	s.releaseAddrs(e.service)
	e.service = nil
	s.drop(name, e)
	s.mark(Key{KindService, name})
}

func (s *Store) entry(name Name) *entry {
	e := s.services[name]
	if e == nil {
		e = &entry{}
		s.services[name] = e
	}
	return e
}

func (s *Store) drop(name Name, e *entry) {
	if e.service == nil && len(e.slices) == 0 {
		delete(s.services, name)
	}
}

// SetSlice stores a new or changed slice. The slice may precede its Service.
func (s *Store) SetSlice(slice *Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setSlice(slice)
}

// DeleteSlice forgets a slice.
func (s *Store) DeleteSlice(name Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteSlice(name)
}

// ReplaceSlices makes the slices exactly the given ones.
func (s *Store) ReplaceSlices(given []*Slice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := make(map[Name]struct{}, len(given))
	for _, slice := range given {
		keep[slice.Name] = struct{}{}
		s.setSlice(slice)
	}
	for name := range s.owner {
		if _, ok := keep[name]; !ok {
			s.deleteSlice(name)
		}
	}
	s.markSynced(ObjectSlice)
}

func bySliceName(slice *Slice, name string) int { return strings.Compare(slice.Name.Name, name) }

func (s *Store) setSlice(slice *Slice) {
	service := Name{slice.Namespace, slice.Service}
	if was, ok := s.owner[slice.Name]; ok && was != service {
		s.deleteSlice(slice.Name) // its service-name label was changed
	}
	e := s.entry(service)
	i, found := slices.BinarySearchFunc(e.slices, slice.Name.Name, bySliceName)
	if found && reflect.DeepEqual(e.slices[i], slice) {
		return
	}
	if found {
		s.markServers(service, e.slices[i])
		s.countTunnelEnds(e.slices[i], -1)
	}
	s.markServers(service, slice)
	s.countTunnelEnds(slice, 1)
	// Build a new list each time: readers keep the one they were given.
	list := make([]*Slice, 0, len(e.slices)+1)
	list = append(append(list, e.slices[:i]...), slice)
	if found {
		i++
	}
	e.slices = append(list, e.slices[i:]...)
	s.owner[slice.Name] = service
	s.waiting.trigger(service, slice)
	s.mark(Key{KindService, service})
}

func (s *Store) deleteSlice(name Name) {
	service, ok := s.owner[name]
	if !ok {
		return
	}
	delete(s.owner, name)
	s.waiting.forget(service)
	e := s.services[service]
	i, _ := slices.BinarySearchFunc(e.slices, name.Name, bySliceName)
	s.markServers(service, e.slices[i])
	s.countTunnelEnds(e.slices[i], -1)
	e.slices = slices.Concat(e.slices[:i], e.slices[i+1:])
	s.drop(service, e)
	s.mark(Key{KindService, service})
}

// SetNode stores a new or changed Node.
func (s *Store) SetNode(node *Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m moves
	s.setNode(node, &m)
	s.nodesMoved(&m)
}

// DeleteNode forgets a Node.
func (s *Store) DeleteNode(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m moves
	s.deleteNode(name, &m)
	s.nodesMoved(&m)
}

// ReplaceNodes makes the Nodes exactly the given ones.
func (s *Store) ReplaceNodes(nodes []*Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var m moves
	keep := make(map[string]struct{}, len(nodes))
	for _, node := range nodes {
		keep[node.Name] = struct{}{}
		s.setNode(node, &m)
	}
	for name := range s.nodes {
		if _, ok := keep[name]; !ok {
			s.deleteNode(name, &m)
		}
	}
	s.nodesMoved(&m)
	s.markSynced(ObjectNode)
}

func (s *Store) setNode(node *Node, m *moves) {
	was := s.nodes[node.Name]
	if reflect.DeepEqual(was, node) {
		return
	}
	s.nodes[node.Name] = node
	s.nodeChanged(was, node, m)
}

func (s *Store) deleteNode(name string, m *moves) {
	was := s.nodes[name]
	if was == nil {
		return
	}
	delete(s.nodes, name)
	s.nodeChanged(was, &Node{Name: name}, m)
}

// nodeChanged makes due what a node's change can affect: everything if this node's zone changed, and
// what follows from the moves.
func (s *Store) nodeChanged(was, is *Node, m *moves) {
	signal(s.policy)
	if was == nil {
		was = &Node{Name: is.Name}
	}
	if is.Name == s.self {
		signal(s.node)
		if was.Zone != is.Zone {
			s.markAll()
		}
		if was.Egress != is.Egress {
			signal(s.traits)
			signal(s.short)
		}
	}
	m.add(was, is)
}

// SetLocal stores the addresses of this node's interfaces. It makes due the Services with an
// address or endpoint among the addresses that came or went, and the pods with a hostIP among them.
func (s *Store) SetLocal(addrs iter.Seq[netip.Addr]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, is := s.local, map[netip.Addr]struct{}{}
	for addr := range addrs {
		is[addr] = struct{}{}
	}
	if maps.Equal(was, is) {
		return
	}
	s.local = is
	moved := func(addr netip.Addr) bool {
		_, before := was[addr]
		_, after := is[addr]
		return before != after
	}
	for name, e := range s.services {
		if e.service != nil && (slices.ContainsFunc(e.service.ClusterIPs, moved) || e.endpoint(moved)) {
			s.mark(Key{KindService, name})
		}
	}
	s.markNamed(moved)
	bound := func(p HostPort) bool { return moved(p.HostIP) }
	for name, pod := range s.pods {
		if slices.ContainsFunc(pod.HostPorts, bound) {
			s.mark(Key{KindPod, name})
		}
	}
	for name, list := range s.attached {
		if slices.ContainsFunc(list, func(a *Attachment) bool { return slices.ContainsFunc(a.HostPorts, bound) }) {
			s.mark(Key{KindPod, name})
		}
	}
}

// endpoint reports whether one of the endpoints has a wanted address.
func (e *entry) endpoint(wanted func(netip.Addr) bool) bool {
	return slices.ContainsFunc(e.slices, func(slice *Slice) bool {
		return slices.ContainsFunc(slice.Endpoints, func(endpoint Endpoint) bool { return wanted(endpoint.Addr) })
	})
}

// SetNamespace stores a new or changed Namespace.
func (s *Store) SetNamespace(namespace *Namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setNamespace(namespace)
}

// DeleteNamespace forgets a Namespace.
func (s *Store) DeleteNamespace(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deleteNamespace(name)
}

// ReplaceNamespaces makes the Namespaces exactly the given ones.
func (s *Store) ReplaceNamespaces(namespaces []*Namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := make(map[string]struct{}, len(namespaces))
	for _, namespace := range namespaces {
		keep[namespace.Name] = struct{}{}
		s.setNamespace(namespace)
	}
	for name := range s.namespaces {
		if _, ok := keep[name]; !ok {
			s.deleteNamespace(name)
		}
	}
	s.markSynced(ObjectNamespace)
}

func (s *Store) setNamespace(namespace *Namespace) {
	was := s.namespaces[namespace.Name]
	if reflect.DeepEqual(was, namespace) {
		return
	}
	s.namespaces[namespace.Name] = namespace
	s.namespaceChanged(was, namespace)
}

func (s *Store) deleteNamespace(name string) {
	was := s.namespaces[name]
	delete(s.namespaces, name)
	s.namespaceChanged(was, &Namespace{Name: name})
}

// namespaceChanged makes due the pods affected by whether their namespace lets them send from
// foreign addresses.
func (s *Store) namespaceChanged(was, is *Namespace) {
	s.signalPods()
	if was == nil {
		was = &Namespace{}
	}
	if was.Egress != is.Egress {
		signal(s.traits)
	}
	if was.MayUncheck == is.MayUncheck {
		return
	}
	for name, pod := range s.pods {
		if name.Namespace == is.Name && pod.Unchecked {
			s.mark(Key{KindPod, name})
			signal(s.traits)
		}
	}
}

// SetPod stores a new or changed Pod of this node.
func (s *Store) SetPod(pod *Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setPod(pod)
}

// DeletePod forgets a Pod.
func (s *Store) DeletePod(name Name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deletePod(name)
}

// ReplacePods makes the Pods exactly the given ones.
func (s *Store) ReplacePods(pods []*Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := make(map[Name]struct{}, len(pods))
	for _, pod := range pods {
		keep[pod.Name] = struct{}{}
		s.setPod(pod)
	}
	for name := range s.pods {
		if _, ok := keep[name]; !ok {
			s.deletePod(name)
		}
	}
	s.markSynced(ObjectPod)
}

func (s *Store) setPod(pod *Pod) {
	was := s.pods[pod.Name]
	if reflect.DeepEqual(was, pod) {
		return
	}
	s.pods[pod.Name] = pod
	s.mark(Key{KindPod, pod.Name})
	s.signalPods()
	if was == nil || was.hasTraits() || pod.hasTraits() {
		signal(s.traits)
	}
}

func (s *Store) deletePod(name Name) {
	was := s.pods[name]
	if was == nil {
		return
	}
	delete(s.pods, name)
	s.mark(Key{KindPod, name})
	s.signalPods()
	if was.hasTraits() {
		signal(s.traits)
	}
}

// hasTraits reports whether a pod asks for anything beyond the defaults.
func (p *Pod) hasTraits() bool {
	return p.Unchecked || p.Proxy != "" || p.Egress != 0 || p.Ingress != 0 || p.Class != Burstable || p.BBR != Unsaid
}
