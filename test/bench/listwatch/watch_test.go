package listwatch

import (
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

func open(t *testing.T, c rest.Interface, resource string, options metav1.ListOptions) watch.Interface {
	t.Helper()
	options.Watch = true
	w, err := c.Get().Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// next returns a line about the next event.
func next(t *testing.T, w watch.Interface) string {
	t.Helper()
	select {
	case e, more := <-w.ResultChan():
		if !more {
			return "end"
		}
		if status, ok := e.Object.(*metav1.Status); ok {
			return fmt.Sprintf("%s %d %s", e.Type, status.Code, status.Reason)
		}
		about, err := meta.Accessor(e.Object)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s %s %s", e.Type, about.GetName(), about.GetResourceVersion())
	case <-time.After(30 * time.Second):
		t.Fatal("no event within 30 seconds")
		return ""
	}
}

func expect(t *testing.T, w watch.Interface, want ...string) {
	t.Helper()
	for _, line := range want {
		if got := next(t, w); got != line {
			t.Fatalf("have %q, want %q", got, line)
		}
	}
}

// Revisions begin at 1000: 10 services, 10 slices, 4 nodes, 2 namespaces, 30 pods and a range of
// addresses, so the first change is 1058.
func TestWatch(t *testing.T) {
	server := newServer(t, Config{Fleet: small()})
	core, discovery := clients(t, server)
	change := func(kind Kind, number int) {
		t.Helper()
		if err := server.Change(kind, number); err != nil {
			t.Fatal(err)
		}
	}
	change(Services, 1)
	services := open(t, core, "services", metav1.ListOptions{ResourceVersion: "1057"})
	change(Slices, 1)
	change(Services, 2)
	expect(t, services, "MODIFIED service-000001 1058", "MODIFIED service-000002 1060")

	slices := open(t, discovery, "endpointslices", metav1.ListOptions{ResourceVersion: "1058"})
	expect(t, slices, "MODIFIED service-000001-x7k2p 1059")

	pods := open(t, core, "pods", metav1.ListOptions{ResourceVersion: "1060", FieldSelector: "spec.nodeName=node-3"})
	change(Pods, 2)
	change(Pods, 3)
	expect(t, pods, "MODIFIED service-000001-5d8f7c9b6-00 1062")

	if err := server.DeleteService(2); err != nil {
		t.Fatal(err)
	}
	expect(t, services, "DELETED service-000002 1063")
	expect(t, slices, "DELETED service-000002-x7k2p 1064")
	expect(t, pods, "DELETED service-000002-5d8f7c9b6-01 1066")

	nodes := open(t, core, "nodes", metav1.ListOptions{ResourceVersion: "1000"})
	expect(t, nodes, "ERROR 410 Expired", "end")
	nodes = open(t, core, "nodes", metav1.ListOptions{ResourceVersion: "99999"})
	expect(t, nodes, "ERROR 410 Expired", "end")
	server.Expire()
	expect(t, services, "ERROR 410 Expired", "end")
	nodes = open(t, core, "nodes", metav1.ListOptions{ResourceVersion: fmt.Sprint(server.Revision())})
	change(Nodes, 3)
	expect(t, nodes, fmt.Sprintf("MODIFIED node-3 %d", server.Revision()))
}

func TestStreamedList(t *testing.T) {
	server := newServer(t, Config{Fleet: small()})
	core, _ := clients(t, server)
	yes := true
	nodes := open(t, core, "nodes", metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	expect(t, nodes, "ADDED node-0 1021", "ADDED node-1 1022", "ADDED node-2 1023", "ADDED node-3 1024", "BOOKMARK  1057")
	if err := server.Change(Nodes, 1); err != nil {
		t.Fatal(err)
	}
	expect(t, nodes, "MODIFIED node-1 1058")

	paged, _ := clients(t, newServer(t, Config{Fleet: small(), Paged: true}))
	_, err := paged.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{Watch: true, SendInitialEvents: &yes}, metav1.ParameterCodec).
		Watch(t.Context())
	if !apierrors.IsInvalid(err) {
		t.Errorf("from a server that cannot stream: have error %v, want that the request is invalid", err)
	}
}

func TestBookmarksAndTimeout(t *testing.T) {
	server := newServer(t, Config{Fleet: small(), Bookmarks: time.Millisecond})
	core, discovery := clients(t, server)
	if err := server.Change(Slices, 1); err != nil {
		t.Fatal(err)
	}
	w := open(t, core, "services", metav1.ListOptions{ResourceVersion: "1057", AllowWatchBookmarks: true})
	expect(t, w, "BOOKMARK  1058", "BOOKMARK  1058")

	second := int64(1)
	silent := open(t, discovery, "endpointslices", metav1.ListOptions{ResourceVersion: "1058", TimeoutSeconds: &second})
	expect(t, silent, "end")
}
