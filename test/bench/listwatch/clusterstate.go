package listwatch

import (
	"errors"
	"fmt"
	"maps"
	"sync"
)

// errExpired is the answer to a request for a revision that is no longer remembered.
var errExpired = errors.New("too old resource version")

// state is all that is stored about an object, and only after its first change.
type state struct {
	revision   uint64
	generation uint32 // number of changes
	gone       bool
}

// event is a change of one object.
type event struct {
	what          string // the type of the watch event
	kind          Kind
	number        int
	before, after state
}

// table is the objects of one kind, by number. Objects that are not in changed are as they were
// made.
type table struct {
	base    uint64 // an object that never changed has the revision base + its number
	count   int    // numbers used so far
	changed map[int]state
}

func (t table) at(number int) state {
	if s, found := t.changed[number]; found {
		return s
	}
	return state{revision: t.base + uint64(number)}
}

// clusterState is the state of the cluster and its recent changes. The revision of an event is its number,
// so finding the events after a revision takes no search.
type clusterState struct {
	mu       sync.Mutex
	tables   [kinds]table
	revision uint64  // of the last event
	oldest   uint64  // the first remembered event
	events   []event // by revision modulo the capacity
	news     chan struct{}
}

func newClusterState(f Fleet, memory int) *clusterState {
	w := &clusterState{events: make([]event, memory), news: make(chan struct{}), revision: 1000}
	for k, count := range [kinds]int{
		Services: f.Services, Slices: f.Services, Nodes: f.Nodes, Namespaces: f.Namespaces, Pods: f.Services * f.Endpoints,
		ServiceCIDRs: 1, NetworkPolicies: f.Policies,
	} {
		w.tables[k] = table{base: w.revision + 1, count: count, changed: map[int]state{}}
		w.revision += uint64(count)
	}
	w.oldest = w.revision + 1
	return w
}

// record appends an event. The caller holds the lock.
func (w *clusterState) record(what string, kind Kind, number int, before, after state) {
	w.revision++
	after.revision = w.revision
	w.tables[kind].changed[number] = after
	w.events[w.revision%uint64(len(w.events))] = event{what, kind, number, before, after}
	if remembered := uint64(len(w.events)); w.revision-w.oldest >= remembered {
		w.oldest = w.revision - remembered + 1
	}
	close(w.news)
	w.news = make(chan struct{})
}

// edit makes several changes atomically.
func (w *clusterState) edit(changes func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return changes()
}

// change changes an object. The caller holds the lock.
func (w *clusterState) change(kind Kind, number int) error {
	before, err := w.living(kind, number)
	if err != nil {
		return fmt.Errorf("change an object: %w", err)
	}
	w.record("MODIFIED", kind, number, before, state{generation: before.generation + 1})
	return nil
}

// add adds an object with the next number. The caller holds the lock.
func (w *clusterState) add(kind Kind) int {
	number := w.tables[kind].count
	w.tables[kind].count++
	w.record("ADDED", kind, number, state{gone: true}, state{})
	return number
}

// remove deletes an object. The caller holds the lock.
func (w *clusterState) remove(kind Kind, number int) error {
	before, err := w.living(kind, number)
	if err != nil {
		return fmt.Errorf("delete an object: %w", err)
	}
	w.record("DELETED", kind, number, before, state{generation: before.generation, gone: true})
	return nil
}

func (w *clusterState) living(kind Kind, number int) (state, error) {
	t := w.tables[kind]
	if number < 0 || number >= t.count || t.at(number).gone {
		return state{}, fmt.Errorf("there is no %v with the number %d", kind, number)
	}
	return t.at(number), nil
}

// forget drops all events and advances the revision by one, so that no watch is up to date. The
// caller holds the lock.
func (w *clusterState) forget() {
	w.revision++
	w.oldest = w.revision + 1
	close(w.news)
	w.news = make(chan struct{})
}

// now returns the revision of the last event.
func (w *clusterState) now() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.revision
}

// snapshot returns the objects of a kind as of a revision; zero is the current one.
func (w *clusterState) snapshot(kind Kind, revision uint64) (table, uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if revision == 0 {
		revision = w.revision
	}
	if revision+1 < w.oldest || revision > w.revision {
		return table{}, 0, errExpired
	}
	t := w.tables[kind]
	t.changed = maps.Clone(t.changed)
	for r := w.revision; r > revision; r-- {
		if e := w.events[r%uint64(len(w.events))]; e.kind == kind {
			t.changed[e.number] = e.before
		}
	}
	return t, revision, nil
}

// since returns up to the given number of events after a revision, the revision of the last of
// them, and a channel that is closed when there are more.
func (w *clusterState) since(revision uint64, most int) ([]event, uint64, <-chan struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if revision+1 < w.oldest || revision > w.revision {
		return nil, 0, nil, errExpired
	}
	last := min(w.revision, revision+uint64(most))
	list := make([]event, 0, last-revision)
	for r := revision + 1; r <= last; r++ {
		list = append(list, w.events[r%uint64(len(w.events))])
	}
	return list, last, w.news, nil
}
