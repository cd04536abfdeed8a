package model

import "time"

// waiting tracks how long changes have been waiting and when endpoint changes began. The Store has
// one and guards it with its lock.
type waiting struct {
	marked  time.Time // the first change that was not taken yet
	taken   time.Time // the first change that was taken but may not be in the maps yet
	started time.Time

	triggers map[Name][]Trigger // by Service
	count    int
}

// Trigger is a change of endpoints with a known start: the time at which the controller saw the
// Service or Pod change.
type Trigger struct {
	Service Name
	Family  Family
	At      time.Time
}

// maxTriggers bounds the triggers kept while nobody takes them. The first ones of a burst are as
// good a sample as all of it.
const maxTriggers = 4096

// earliest returns the earlier of two times; a zero time stands for none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Waiting returns when the oldest change that is not in the maps yet arrived, or zero if there is
// none.
func (s *queue) Waiting() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return earliest(s.waiting.marked, s.waiting.taken)
}

// Applied says that every change TakeDirty has returned so far is in the maps, but for those that
// were made due again because they have to wait for their turn. The oldest of them has been waiting
// since the given time, which is zero if there are none.
func (s *queue) Applied(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting.taken = since
}

// Triggers returns the triggers of changes since the last call and forgets them. Every Service
// among them was marked dirty before. To learn when they reach the maps, call Triggers before
// TakeDirty.
func (s *queue) Triggers() []Trigger {
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

// trigger records when a change of a slice began. A change that began before the Store existed is
// ignored: its age says how long this agent was away, not how long the change took.
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

// forget drops the triggers of a Service that lost a slice: what the remaining slices say is about
// an earlier change.
func (w *waiting) forget(service Name) {
	w.count -= len(w.triggers[service])
	delete(w.triggers, service)
}
