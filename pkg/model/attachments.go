package model

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
)

// SetAttachment stores a new or changed Attachment. One without host ports carries no information
// and is dropped, unless its host ports are lost.
func (s *Store) SetAttachment(a *Attachment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.attached[a.Pod]
	// Build a new list each time: readers keep the one they were given.
	list := slices.DeleteFunc(slices.Clone(was), func(o *Attachment) bool { return o.Device == a.Device })
	if len(a.HostPorts) > 0 || a.Lost {
		list = append(list, a)
		slices.SortFunc(list, func(a, b *Attachment) int {
			return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.Device, b.Device))
		})
	}
	s.setAttached(a.Pod, was, list)
}

// DeleteAttachment forgets what the runtime asked for on behalf of one interface of a pod.
func (s *Store) DeleteAttachment(pod Name, device string) {
	s.SetAttachment(&Attachment{Pod: pod, Device: device})
}

func (s *Store) setAttached(pod Name, was, is []*Attachment) {
	if reflect.DeepEqual(was, is) || len(was) == 0 && len(is) == 0 {
		return
	}
	if s.attached[pod] = is; len(is) == 0 {
		delete(s.attached, pod)
	}
	s.mark(Key{KindPod, pod})
}
