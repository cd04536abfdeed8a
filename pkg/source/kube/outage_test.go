package kube

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// all kinds report an outage, and that it is over.
func (w *world) awaitOutage(is bool) {
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

// The connection is lost and objects go meanwhile, while the server remembers.
func testLostConnection(w *world) {
	w.createService("stays")
	w.createService("goes")
	w.createService("changes")
	w.follow()
	w.changed()
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
}

// Nothing that is still there may go for a moment because the server was restarted.
func testRestart(w *world) {
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

// Objects go while the Source is away, and the server no longer knows that they ever were: only a list tells.
func testCompaction(w *world) {
	w.createService("stays")
	w.createSlice("stays-1", "stays", "10.1.0.1")
	w.createSlice("stays-2", "stays", "10.1.0.2")
	w.createService("goes")
	w.follow()
	w.changed()
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
	after := w.kind("services")
	if after.Relists <= before.Relists {
		w.Errorf("the server still knew what happened, so this proves nothing: %+v, then %+v", before, after)
	}
}
