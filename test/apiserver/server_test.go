package apiserver

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// The server keeps its promises: what was written survives a restart, and a watch from before a
// compaction ends with 410 Gone.
func TestServer(t *testing.T) {
	began := time.Now()
	s := Start(t)
	t.Logf("started in %v", time.Since(began).Round(time.Millisecond))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := s.Client()
	before, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	label := []byte(`{"metadata":{"labels":{"test":"yes"}}}`)
	if _, err := client.CoreV1().Namespaces().Patch(ctx, "default", "application/merge-patch+json", label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}

	s.StopAPI()
	if _, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); err == nil {
		t.Fatal("a stopped server answers")
	}
	s.Compact()
	began = time.Now()
	s.StartAPI()
	t.Logf("started again in %v", time.Since(began).Round(time.Millisecond))

	found, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if found.Labels["test"] != "yes" {
		t.Errorf("labels of the namespace after the restart: %v", found.Labels)
	}
	if err := watchFrom(ctx, s, before.ResourceVersion); !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watch from before the compaction: %v, want 410 Gone", err)
	}
}

// watchFrom returns the error that a watch ends with, or nil if it delivers an object.
func watchFrom(ctx context.Context, s *Server, version string) error {
	w, err := s.Client().CoreV1().Namespaces().Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	defer w.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case event := <-w.ResultChan():
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
		return nil
	}
}
