package model

import (
	"slices"
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

// queue remembers what changed, and wakes those who have to act. Its lock guards all of a Store.
type queue struct {
	mu      sync.Mutex
	dirty   map[Key]struct{}
	wake    chan struct{}
	pod     chan struct{} // signaled when pods or namespaces change
	short   chan struct{} // signaled when pods, namespaces, acceleration policies or the rate of this node change
	policy  chan struct{} // signaled when network policies, or what they may select by, change
	traits  chan struct{} // signaled when what Unchecked, Proxy or Rates return may have changed
	node    chan struct{} // signaled when this node changes
	inside  chan struct{} // signaled when addresses inside the cluster change
	others  chan struct{} // likewise, for the reader that maintains routes to other nodes
	cluster chan struct{} // likewise, for the reader that tells the programs who is a node
	synced  [objects]bool
	ready   chan struct{} // closed once all are synced
	waiting waiting
}

func newQueue() *queue {
	return &queue{
		dirty:   map[Key]struct{}{},
		waiting: waiting{started: time.Now()},
		wake:    make(chan struct{}, 1),
		pod:     make(chan struct{}, 1),
		short:   make(chan struct{}, 1),
		policy:  make(chan struct{}, 1),
		traits:  make(chan struct{}, 1),
		node:    make(chan struct{}, 1),
		inside:  make(chan struct{}, 1),
		others:  make(chan struct{}, 1),
		cluster: make(chan struct{}, 1),
		ready:   make(chan struct{}),
	}
}

// Wake is signaled whenever a key becomes dirty or addresses inside the cluster change.
func (s *queue) Wake() <-chan struct{} { return s.wake }

// PodsChanged is signaled whenever a Pod or a Namespace changes. It has one reader.
func (s *queue) PodsChanged() <-chan struct{} { return s.pod }

// AcceleratedChanged is signaled whenever the set of connections that may bypass TCP may have
// changed. It has one reader.
func (s *queue) AcceleratedChanged() <-chan struct{} { return s.short }

// PoliciesChanged is signaled whenever a network policy, a Namespace, a Node or a Pod of this node
// changes. It has one reader.
func (s *queue) PoliciesChanged() <-chan struct{} { return s.policy }

// TraitsChanged is signaled whenever Unchecked, Proxy or Rates may have changed for a pod. It has
// one reader.
func (s *queue) TraitsChanged() <-chan struct{} { return s.traits }

// SelfChanged is signaled whenever the Node that the agent runs on changes. It has one reader.
func (s *queue) SelfChanged() <-chan struct{} { return s.node }

// InsideChanged is signaled whenever addresses inside the cluster change. It has one reader.
func (s *queue) InsideChanged() <-chan struct{} { return s.inside }

// NodesChanged is signaled whenever the addresses or pod CIDRs of a node change. It has one
// reader.
func (s *queue) NodesChanged() <-chan struct{} { return s.others }

// ClusterChanged is signaled likewise, for another reader.
func (s *queue) ClusterChanged() <-chan struct{} { return s.cluster }

// Synced is closed once every kind of object was delivered completely at least once. Until then
// nothing may be deleted.
func (s *queue) Synced() <-chan struct{} { return s.ready }

// signalPods wakes the readers whose decisions depend on pods and their namespaces.
func (s *queue) signalPods() {
	signal(s.pod)
	signal(s.short)
	signal(s.policy)
}

// maxDirty is the largest set of dirty keys that is cleared and reused. A map never shrinks, and
// after a start it has room for every object.
const maxDirty = 1024

// TakeDirty returns the keys that changed since the last call, sorted, and forgets them.
func (s *queue) TakeDirty() []Key {
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
func (s *queue) MarkDirty(keys ...Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark(keys...)
}

func (s *queue) mark(keys ...Key) {
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

func (s *queue) markSynced(object Object) {
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
	signal(s.policy)
	signal(s.traits) // only now do Unchecked, Proxy and Rates return the truth
}

// Unsynced lists the kinds of object that were not delivered yet.
func (s *queue) Unsynced() []string {
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
