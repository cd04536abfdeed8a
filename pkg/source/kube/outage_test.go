package kube

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"fairlead.io/fairlead/test/apiserver"
)

// awaitOutage waits until all kinds report an outage, or its end.
func (w *apiNamespace) awaitOutage(is bool) {
	w.Helper()
	w.await("the status to show the outage or its end", func() bool {
		for _, k := range w.source.Status().Kinds {
			if (k.Error != "") != is {
				return false
			}
		}
		return true
	})
}

// watching waits until the watch of Services has delivered something, because a watch that never
// did is not resumed.
func (w *apiNamespace) watching() {
	w.Helper()
	w.createService("watched")
	w.await("the watch to deliver", func() bool { return w.has("watched") })
	w.changed()
}

// testLostConnection breaks the connection and removes objects meanwhile. The server still has the
// history, so the watch resumes.
func testLostConnection(w *apiNamespace) {
	w.createService("stays")
	w.createService("goes")
	w.createService("changes")
	w.follow()
	w.watching()
	w.line.cut()
	w.awaitOutage(true)
	if k := w.kind("services"); !k.Synced || k.Since.IsZero() {
		w.Errorf("status in the outage: %+v", k)
	}
	w.deleteService("goes")
	w.updateService("changes", func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })
	w.createService("comes")
	w.expectChanged()
	w.line.mend()
	w.await("what happened meanwhile", func() bool { return !w.has("goes") && w.has("comes") })
	w.awaitOutage(false)
	w.expectChanged("changes", "comes", "goes")
	if asked, want := w.line.requests(), []string{"watch"}; !slices.Equal(asked, want) {
		w.Errorf("asked for services: %v, want %v", asked, want)
	}
}

// testRestart checks that a restart of the server removes no objects that still exist, not even for
// a moment.
func testRestart(w *apiNamespace) {
	w.createService("stays")
	w.createSlice("stays-1", "stays", "10.1.0.1")
	w.follow()
	w.changed()
	w.server.StopAPI()
	w.awaitOutage(true)
	if !w.has("stays") || !w.hasSlices("stays", "stays-1") {
		w.Error("the outage emptied the store")
	}
	w.server.StartAPI()
	w.createService("comes")
	w.createSlice("comes-1", "comes", "10.1.0.2")
	w.await("what was made right after the restart", func() bool { return w.has("comes") && w.hasSlices("comes", "comes-1") })
	w.awaitOutage(false)
	w.expectChanged("comes")
}

// testTwoServers takes away the API server in use, and later the other one. Each time, the
// remaining one tells what happened meanwhile. A server that has just started may not have history
// as far back as the other had, so the Source lists everything.
func testTwoServers(w *apiNamespace, other *apiserver.Server) {
	first, second := w.server, other
	w.createService("stays")
	w.follow()
	w.watching()
	for i, step := range []struct{ goes, asked *apiserver.Server }{{first, second}, {second, first}} {
		comes := fmt.Sprintf("comes-%d", i)
		step.goes.StopAPI()
		w.client = step.asked.Client()
		w.createService(comes)
		if i > 0 {
			w.deleteService("comes-0")
		}
		w.await("what happened meanwhile", func() bool { return w.has(comes) && w.has("comes-0") == (i == 0) && w.has("stays") })
		w.awaitOutage(false)
		if is, want := w.source.Status().Server, strings.TrimPrefix(step.asked.Config().Host, "https://"); is != want {
			w.Errorf("the server in use is %s, want %s", is, want)
		}
		step.goes.StartAPI()
	}
}

// testCompaction removes objects while the Source is cut off, and the history of that from the
// server: only a list can tell.
func testCompaction(w *apiNamespace) {
	w.createService("stays")
	w.createSlice("stays-1", "stays", "10.1.0.1")
	w.createSlice("stays-2", "stays", "10.1.0.2")
	w.createService("goes")
	w.follow()
	w.watching()
	before := w.kind("services")
	w.line.cut()
	w.awaitOutage(true)
	w.deleteService("goes")
	w.must(w.client.DiscoveryV1().EndpointSlices(w.namespace).Delete(w.ctx, "stays-2", metav1.DeleteOptions{}))
	w.createService("comes")
	w.server.StopAPI()
	w.server.Compact()
	w.server.StartAPI()
	w.expectChanged()
	w.line.mend()
	w.await("the present", func() bool { return !w.has("goes") && w.has("comes") && w.hasSlices("stays", "stays-1") })
	w.awaitOutage(false)
	w.expectChanged("comes", "goes", "stays")
	if asked, want := w.line.requests()[:2], []string{"watch", "list"}; !slices.Equal(asked, want) {
		w.Errorf("asked for services: %v, want %v: the watch to be refused", asked, want)
	}
	if after := w.kind("services"); after.Relists != before.Relists+1 {
		w.Errorf("status of services: %+v, then %+v", before, after)
	}
}
