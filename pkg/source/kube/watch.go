package kube

import (
	"errors"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// observedWatch passes on the events of a watch, and notes whether they could be decoded. A reflector says
// so to nobody: it lists all objects again, and again after the next event.
type observedWatch struct {
	watch.Interface
	events chan watch.Event
	done   chan struct{}
	once   sync.Once
}

func observeWatch(w watch.Interface, s *state) *observedWatch {
	o := &observedWatch{Interface: w, events: make(chan watch.Event), done: make(chan struct{})}
	go o.pass(s)
	return o
}

func (o *observedWatch) pass(s *state) {
	defer close(o.events)
	for event := range o.Interface.ResultChan() {
		s.received(event)
		select {
		case o.events <- event:
		case <-o.done:
			return
		}
	}
}

// ResultChan returns the events.
func (o *observedWatch) ResultChan() <-chan watch.Event { return o.events }

// Stop ends the watch.
func (o *observedWatch) Stop() {
	o.once.Do(func() { close(o.done) })
	o.Interface.Stop()
}

// notDecoded returns why a client could not decode what it received, or nil if an event says something else.
func notDecoded(event watch.Event) error {
	status, ok := event.Object.(*metav1.Status)
	if event.Type != watch.Error || !ok || status.Details == nil {
		return nil
	}
	for _, cause := range status.Details.Causes {
		if cause.Type == "ClientWatchDecoding" { // as client-go's rest.Request names it
			return errors.New(cause.Message)
		}
	}
	return nil
}
