package podnet

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// The lists that an objectServer has, by their paths.
const (
	namespacesPath = "/api/v1/namespaces"
	podsPath       = "/api/v1/pods"
	policiesPath   = "/apis/networking.k8s.io/v1/networkpolicies"
)

var listTypes = map[string]metav1.TypeMeta{
	namespacesPath: {APIVersion: "v1", Kind: "NamespaceList"},
	podsPath:       {APIVersion: "v1", Kind: "PodList"},
	policiesPath:   {APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicyList"},
}

// objectServer answers list and watch requests as an API server does: with all objects, and then
// with each change. A real API server takes a minute to start on an emulated machine, and would
// tell a client that only reads no more.
type objectServer struct {
	mu      sync.Mutex
	changes []change      // all changes so far; their number is the resource version
	more    chan struct{} // closed by the next change
}

// change is an event of a watch.
type change struct {
	path, name string
	Type       watch.EventType `json:"type"`
	Object     json.RawMessage `json:"object"`
}

func newObjectServer() *objectServer { return &objectServer{more: make(chan struct{})} }

// change changes an object of a list.
func (s *objectServer) change(t *testing.T, path string, what watch.EventType, o metav1.Object) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	o.SetResourceVersion(strconv.Itoa(len(s.changes) + 1))
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	s.changes = append(s.changes, change{path, o.GetName(), what, text})
	close(s.more)
	s.more = make(chan struct{})
}

// after returns the changes after the first seen ones, and a channel that is closed when there are
// more.
func (s *objectServer) after(seen int) ([]change, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.changes[min(seen, len(s.changes)):]), s.more
}

// ServeHTTP answers only GET: no test depends on what clients write, such as events.
func (s *objectServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, ok := listTypes[r.URL.Path]; !ok || r.Method != http.MethodGet {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Has("watch") {
		s.watch(w, r)
	} else {
		s.list(w, r)
	}
}

// list writes the objects of a list. Any error is one of the connection, which the client sees too.
func (s *objectServer) list(w http.ResponseWriter, r *http.Request) {
	changes, _ := s.after(0)
	items := map[string]json.RawMessage{}
	for _, c := range changes {
		if c.path == r.URL.Path {
			items[c.name] = c.Object
			if c.Type == watch.Deleted {
				delete(items, c.name)
			}
		}
	}
	list := struct {
		metav1.TypeMeta
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}{listTypes[r.URL.Path], metav1.ListMeta{ResourceVersion: strconv.Itoa(len(changes))}, []json.RawMessage{}}
	for _, item := range items {
		list.Items = append(list.Items, item)
	}
	_ = json.NewEncoder(w).Encode(list)
}

// watch writes the changes of a list until the client is gone.
func (s *objectServer) watch(w http.ResponseWriter, r *http.Request) {
	seen, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := json.NewEncoder(w)
	for {
		changes, more := s.after(seen)
		for _, c := range changes {
			if c.path == r.URL.Path && out.Encode(c) != nil {
				return
			}
		}
		seen += len(changes)
		// Flush even without changes, because the client waits for the headers.
		_ = http.NewResponseController(w).Flush()
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
	}
}
