package kube

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	corev1 "k8s.io/api/core/v1"

	"fairlead.io/fairlead/pkg/model"
)

// Events that cannot be decoded are an error of the kind until one can: that a watch opens again proves nothing.
func TestUndecoded(t *testing.T) {
	undecoded := watch.Event{Type: watch.Error, Object: &metav1.Status{Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ClientWatchDecoding", Message: "no kind"}}}}}
	expired := watch.Event{Type: watch.Error, Object: &metav1.Status{Reason: metav1.StatusReasonExpired}}
	s := state{kind: "services", log: slog.New(slog.DiscardHandler)}
	opened := func() { s.answered(&http.Response{StatusCode: http.StatusOK}, nil, true) }
	for _, step := range []struct {
		name     string
		do       func()
		want     string
		failures uint64
	}{
		{"the history has ended", func() { s.received(expired) }, "", 0},
		{"an event that cannot be decoded", func() { s.received(undecoded) }, "no kind", 1},
		{"a list", func() { s.listed(1, "1") }, "no kind", 1},
		{"a watch opens", opened, "no kind", 1},
		{"the history has ended again", func() { s.received(expired) }, "no kind", 1},
		{"the server is away", func() { s.answered(nil, io.ErrClosedPipe, true) }, io.ErrClosedPipe.Error(), 2},
		{"and there again", opened, "no kind", 2},
		{"a bookmark", func() { s.received(watch.Event{Type: watch.Bookmark, Object: &corev1.Service{}}) }, "", 2},
		{"one more cannot be decoded", func() { s.received(undecoded) }, "no kind", 3},
		{"nobody needs the kind any longer", s.stopped, "", 3},
		{"and somebody does again", opened, "", 3},
	} {
		step.do()
		if is := s.status(); is.Error != step.want || is.Failures != step.failures {
			t.Errorf("%s: %+v, want %q", step.name, is, step.want)
		}
	}
}

// server is an API server that has no Services, and sends what it is told to those who watch them.
type server struct {
	events chan string
	opens  chan struct{} // lets a watch of Services begin
}

// ServeHTTP answers a request. Those for other kinds wait.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	switch {
	case r.URL.Path != "/api/v1/services":
		<-r.Context().Done()
		return
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		return
	case query.Get("watch") == "":
		fmt.Fprint(w, `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)
		return
	}
	select {
	case <-s.opens:
	case <-r.Context().Done():
		return
	}
	for {
		w.(http.Flusher).Flush()
		select {
		case event := <-s.events:
			fmt.Fprintln(w, event)
		case <-r.Context().Done():
			return
		}
	}
}

// The status says why a watch ended whose events could not be decoded, and no longer once they can.
func TestUndecodedWatch(t *testing.T) {
	api := &server{events: make(chan string), opens: make(chan struct{})}
	listener := httptest.NewServer(api)
	defer listener.Close()
	source, err := New(Config{REST: &rest.Config{Host: listener.URL}, NodeName: node, Store: model.NewStore(node), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	await := func(what string, is func(KindStatus) bool) {
		t.Helper()
		var last KindStatus
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
			for _, last = range source.Status().Kinds {
				if last.Kind == "services" && is(last) {
					return
				}
			}
		}
		t.Fatalf("no %s: %+v", what, source.Status().Kinds)
	}
	api.opens <- struct{}{}
	api.events <- `{"type":"ADDED","object":{"kind":"Harbor","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"8"}}}`
	await("error", func(k KindStatus) bool {
		return strings.Contains(k.Error, "unable to decode an event") && !k.Since.IsZero()
	})
	await("list after it", func(k KindStatus) bool { return k.Relists == 1 })
	api.opens <- struct{}{}
	api.events <- `{"type":"BOOKMARK","object":{"kind":"Service","apiVersion":"v1","metadata":{"resourceVersion":"9"}}}`
	await("end of it", func(k KindStatus) bool { return k.Error == "" && k.ResourceVersion == "9" })
}
