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
		t.Error("something waits in a new store")
	}
	s.SetService(service("web", "10.96.0.1"))
	first := s.Waiting()
	if first.IsZero() {
		t.Fatal("a new Service does not wait")
	}
	s.SetService(service("api", "10.96.0.2"))
	if got := s.Waiting(); !got.Equal(first) {
		t.Error("a second change made the first one's wait shorter")
	}
	s.TakeDirty()
	if got := s.Waiting(); !got.Equal(first) {
		t.Error("what was taken does not wait any more, before it is in the maps")
	}
	s.MarkDirty(serviceKey("web")) // it failed, and is tried again
	s.TakeDirty()
	if got := s.Waiting(); !got.Equal(first) {
		t.Error("a retry began the wait anew")
	}
	s.SetService(service("db", "10.96.0.3"))
	s.Settled()
	if got := s.Waiting(); got.IsZero() || !got.After(first) {
		t.Errorf("a change that came meanwhile waits since %v, the settled ones did since %v", got, first)
	}
	s.TakeDirty()
	s.Settled()
	if !s.Waiting().IsZero() {
		t.Error("something waits when all is settled")
	}
}

func TestTriggers(t *testing.T) {
	s := NewStore("node")
	at := func(slice *Slice, when time.Time) *Slice {
		slice.Triggered = when.UnixNano()
		return slice
	}
	now := time.Now()
	s.SetSlice(slice("a", "web"))                                // not known
	s.SetSlice(at(slice("a", "web"), now.Add(-time.Hour)))       // before the agent
	s.SetSlice(at(slice("b", "web"), now.Add(time.Millisecond))) // noted
	s.SetSlice(at(slice("b", "web"), now.Add(time.Millisecond))) // the same once more
	s.SetSlice(at(slice("c", "api"), now.Add(time.Second)))
	s.DeleteSlice(Name{"ns", "c"})
	want := []Trigger{{Name{"ns", "web"}, IPv4, time.Unix(0, now.Add(time.Millisecond).UnixNano())}}
	if got := s.Triggers(); !slices.Equal(got, want) {
		t.Errorf("triggers are %v, want %v", got, want)
	}
	if got := s.Triggers(); got != nil {
		t.Errorf("taken twice: %v", got)
	}
	for i := range 2 * maxTriggers {
		s.SetSlice(at(slice("a", fmt.Sprint("web", i%9)), now.Add(time.Duration(i+2)*time.Second)))
	}
	if got := len(s.Triggers()); got > maxTriggers {
		t.Errorf("%d triggers are kept of nobody who takes them", got)
	}
}
