package model

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestWaiting(t *testing.T) {
	s := NewStore("node")
	if !s.Waiting().IsZero() {
		t.Error("a new store has a waiting change")
	}
	s.SetService(service("web", "10.96.0.1"))
	first := s.Waiting()
	if first.IsZero() {
		t.Fatal("a new Service is not waiting")
	}
	s.SetService(service("api", "10.96.0.2"))
	if got := s.Waiting(); !got.Equal(first) {
		t.Error("a second change shortened the wait of the first")
	}
	s.TakeDirty()
	if got := s.Waiting(); !got.Equal(first) {
		t.Error("a change stopped waiting when it was taken, before it was in the maps")
	}
	s.MarkDirty(serviceKey("web")) // it failed and is retried
	s.TakeDirty()
	if got := s.Waiting(); !got.Equal(first) {
		t.Error("a retry restarted the wait")
	}
	s.SetService(service("db", "10.96.0.3"))
	s.Applied(time.Time{})
	if got := s.Waiting(); got.IsZero() || !got.After(first) {
		t.Errorf("a change that came before Settled waits since %v; the settled ones waited since %v", got, first)
	}
	s.TakeDirty()
	s.Applied(time.Time{})
	if !s.Waiting().IsZero() {
		t.Error("a change is waiting although all is settled")
	}
}

func TestTriggers(t *testing.T) {
	s := NewStore("node")
	at := func(slice *Slice, when time.Time) *Slice {
		slice.Triggered = when.UnixNano()
		return slice
	}
	now := time.Now()
	s.SetSlice(slice("a", "web"))                                // start unknown
	s.SetSlice(at(slice("a", "web"), now.Add(-time.Hour)))       // began before the agent started
	s.SetSlice(at(slice("b", "web"), now.Add(time.Millisecond))) // recorded
	s.SetSlice(at(slice("b", "web"), now.Add(time.Millisecond))) // same slice again
	s.SetSlice(at(slice("c", "api"), now.Add(time.Second)))
	s.DeleteSlice(Name{"ns", "c"})
	want := []Trigger{{Name{"ns", "web"}, IPv4, time.Unix(0, now.Add(time.Millisecond).UnixNano())}}
	if got := s.Triggers(); !slices.Equal(got, want) {
		t.Errorf("triggers are %v, want %v", got, want)
	}
	if got := s.Triggers(); got != nil {
		t.Errorf("the same triggers were returned twice: %v", got)
	}
	for i := range 2 * maxTriggers {
		s.SetSlice(at(slice("a", fmt.Sprint("web", i%9)), now.Add(time.Duration(i+2)*time.Second)))
	}
	if got := len(s.Triggers()); got > maxTriggers {
		t.Errorf("%d triggers are kept while nobody takes them, more than maxTriggers", got)
	}
}
