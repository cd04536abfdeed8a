package cluster

import (
	"context"
	"log/slog"
	"sync"

	"fairlead.io/fairlead/pkg/model"
	objects "fairlead.io/fairlead/pkg/source"
)

// AnnotationWatch reports invalid accelerate annotations of pods and namespaces, in an agent
// without the reconciler that would otherwise report them.
type AnnotationWatch struct {
	store  *model.Store
	report func(model.Key, string, model.Problem)
	log    *slog.Logger

	mu       sync.Mutex
	reported map[string]bool // by object, UID and message
	found    []model.ObjectProblem
}

// NewAnnotationWatch returns a watch that reports to the objects' authors with report.
func NewAnnotationWatch(store *model.Store, report func(model.Key, string, model.Problem), log *slog.Logger) *AnnotationWatch {
	return &AnnotationWatch{store: store, report: report, log: log}
}

// Run scans whenever something has changed, until the context ends.
func (w *AnnotationWatch) Run(ctx context.Context) error {
	for {
		w.scan()
		select {
		case <-ctx.Done():
			return nil
		case <-w.store.PodsChanged():
		case <-w.store.Wake():
		}
	}
}

// scan reports new problems. It also drains the queue of dirty objects, because nothing compiles
// them here.
func (w *AnnotationWatch) scan() {
	w.store.TakeDirty()
	reported, found := map[string]bool{}, []model.ObjectProblem(nil)
	note := func(object, uid string, list []model.Problem, report func(model.Problem)) {
		for _, p := range list {
			if p.Reason != objects.InvalidAccelerate {
				continue // the problem does not concern this agent
			}
			found = append(found, model.ObjectProblem{Object: object, Problem: p})
			text := object + " " + uid + " " + p.Message
			if reported[text] = true; !w.reported[text] {
				report(p)
			}
		}
	}
	for _, pod := range w.store.Pods() {
		key := model.Key{Kind: model.KindPod, Name: pod.Name}
		note(key.String(), pod.UID, pod.Problems, func(p model.Problem) { w.report(key, pod.UID, p) })
	}
	for _, namespace := range w.store.Namespaces() {
		object := "namespace:" + namespace.Name
		note(object, "", namespace.Problems, func(p model.Problem) { w.log.Warn(p.Message, "object", object, "reason", p.Reason) })
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reported, w.found = reported, found
}

// Problems lists the problems that the last scan found.
func (w *AnnotationWatch) Problems() []model.ObjectProblem {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]model.ObjectProblem{}, w.found...)
}
