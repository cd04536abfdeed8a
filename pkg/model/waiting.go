package model

import "time"

// waiting is how long changes have been waiting, and since when endpoints have been on their way. A Store has one,
// guarded by the Store's lock.
type waiting struct {
	marked  time.Time // the first change that nobody took yet
	taken   time.Time // the first change that was taken and may not be in the maps
	started time.Time

	triggers map[Name][]Trigger // by Service
	count    int
}

// Trigger is a change of endpoints whose time is known: when the controller saw the Service or Pod change.
type Trigger struct {
	Service Name
	Family  Family
	At      time.Time
}

// maxTriggers bounds what is kept of changes that nobody takes: the times of a burst are as good as those of all of it.
const maxTriggers = 4096

// earliest returns the earlier of two times, either of which may be zero for none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Waiting returns since when the oldest change has been waiting to be in the maps; zero if none is.
func (s *Store) Waiting() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return earliest(s.waiting.marked, s.waiting.taken)
}

// Settled says that every change that TakeDirty gave so far is in the maps.
func (s *Store) Settled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting.taken = time.Time{}
}

// Triggers returns the triggers of changes since the last call and forgets them. Every Service among them was marked
// dirty before: whoever wants to know when they are in the maps calls this before TakeDirty.
func (s *Store) Triggers() []Trigger {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &s.waiting
	if w.count == 0 {
		return nil
	}
	list := make([]Trigger, 0, w.count)
	for _, some := range w.triggers {
		list = append(list, some...)
	}
	w.triggers, w.count = nil, 0
	return list
}

// trigger notes when a change of a slice began. What began before the Store did says how long this agent was away and
// not how long it took.
func (w *waiting) trigger(service Name, slice *Slice) {
	at := time.Unix(0, slice.Triggered)
	if slice.Triggered == 0 || !at.After(w.started) || w.count >= maxTriggers {
		return
	}
	if w.triggers == nil {
		w.triggers = map[Name][]Trigger{}
	}
	w.triggers[service] = append(w.triggers[service], Trigger{service, slice.Family, at})
	w.count++
}

// forget drops the triggers of a Service that lost a slice: what the other slices say is about an earlier change.
func (w *waiting) forget(service Name) {
	w.count -= len(w.triggers[service])
	delete(w.triggers, service)
}
