package podslices

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// Merge hands the pods of slices on, one by one, to who takes the pods of all nodes.
//
// It hands none on before the slices are complete. Later on they may no longer be, such as while the server
// deletes all of them with their definition: then the pods stay as they are until the slices are complete again.
// All methods but Complete and Silent are called by one goroutine.
type Merge struct {
	to        source.PodReceiver
	complete  atomic.Bool
	delivered bool // pods were, at least once
	// waiting are slices that changed while the slices were not complete; nil stands for one that is gone.
	waiting map[string]*source.PodsOfSlice
	slices  map[string]map[string][]known // by namespace and slice
	// twice are pods that a list had in two slices, as while a pod moves: the one that was not handed on.
	twice map[model.Name]other

	mu      sync.Mutex
	renewed int64     // what the writer said last
	heard   time.Time // when that came
}

type known struct {
	name string
	sum  uint64
}

type other struct {
	slice string
	pod   *model.PolicyPod
}

// NewMerge returns a Merge that hands pods on.
func NewMerge(to source.PodReceiver) *Merge {
	m := &Merge{to: to}
	m.Forget()
	return m
}

// Forget forgets everything, for when slices are no longer followed.
func (m *Merge) Forget() {
	m.complete.Store(false)
	m.delivered, m.waiting = false, map[string]*source.PodsOfSlice{}
	m.slices, m.twice = map[string]map[string][]known{}, map[model.Name]other{}
}

// Complete reports whether the slices hold all pods, as far as whoever writes them says so.
func (m *Merge) Complete() bool { return m.complete.Load() }

// Silent returns how long whoever writes the slices has not said that it is there. What matters is when its word came,
// and not what time it told: clocks differ.
func (m *Merge) Silent() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Since(m.heard)
}

func (m *Merge) hear(renewed int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.heard.IsZero() || renewed != m.renewed {
		m.renewed, m.heard = renewed, time.Now()
	}
}

// Set stores a new or changed slice.
func (m *Merge) Set(in *source.PodsOfSlice) {
	switch {
	case in.Complete:
		m.hear(in.Renewed)
		m.complete.Store(true)
		m.release()
	case m.Complete():
		m.change(in.Name, in.Pods)
	default:
		m.waiting[in.Name] = in
	}
}

// Delete forgets a slice.
func (m *Merge) Delete(name model.Name) {
	switch {
	case name.Name == source.PodSlicesComplete:
		m.complete.Store(false)
	case m.Complete():
		m.change(name.Name, nil)
	default:
		m.waiting[name.Name] = nil
	}
}

// Replace makes the slices exactly the given ones.
func (m *Merge) Replace(list []*source.PodsOfSlice) {
	complete := false
	m.waiting = map[string]*source.PodsOfSlice{}
	for _, slices := range m.slices {
		for name := range slices {
			m.waiting[name] = nil
		}
	}
	for _, in := range list {
		if in.Complete {
			complete = true
			m.hear(in.Renewed)
		} else {
			m.waiting[in.Name] = in
		}
	}
	m.complete.Store(complete)
	if complete {
		m.delivered = false // who lost a list may have lost anything
		m.release()
	}
}

// release hands on what waited for the slices to be complete.
func (m *Merge) release() {
	waiting := m.waiting
	m.waiting = map[string]*source.PodsOfSlice{}
	if m.delivered {
		for name, in := range waiting {
			if in != nil {
				m.change(name, in.Pods)
			}
		}
		for name, in := range waiting {
			if in == nil {
				m.change(name, nil)
			}
		}
		return
	}
	m.delivered = true
	m.slices, m.twice = map[string]map[string][]known{}, map[model.Name]other{}
	pods := map[model.Name]other{}
	for name, in := range waiting {
		if in == nil {
			continue
		}
		for _, pod := range in.Pods {
			one, two := other{name, pod.PolicyPod}, pods[pod.Name]
			if two.pod != nil && two.pod.Created > one.pod.Created {
				one, two = two, one
			}
			if pods[pod.Name] = one; two.pod != nil {
				m.twice[pod.Name] = two
			}
		}
		m.note(name, in.Pods)
	}
	all := make([]*model.PolicyPod, 0, len(pods))
	for _, one := range pods {
		all = append(all, one.pod)
	}
	m.to.ReplacePods(all)
}

// change hands on what differs in a slice.
func (m *Merge) change(slice string, pods []source.PodOfSlice) {
	namespace, _, _ := strings.Cut(slice, ".")
	was := map[string]uint64{}
	for _, pod := range m.slices[namespace][slice] {
		was[pod.name] = pod.sum
	}
	m.note(slice, pods)
	for _, pod := range pods {
		if sum, there := was[pod.Name.Name]; !there || sum != pod.Sum {
			m.to.SetPod(pod.PolicyPod)
			m.settle(slice, pod.Name)
		}
		delete(was, pod.Name.Name)
	}
	for name := range was {
		m.gone(slice, model.Name{Namespace: namespace, Name: name})
	}
}

// note remembers the pods of a slice.
func (m *Merge) note(slice string, pods []source.PodOfSlice) {
	namespace, _, _ := strings.Cut(slice, ".")
	if len(pods) == 0 {
		if delete(m.slices[namespace], slice); len(m.slices[namespace]) == 0 {
			delete(m.slices, namespace)
		}
		return
	}
	list := make([]known, 0, len(pods))
	for _, pod := range pods {
		list = append(list, known{pod.Name.Name, pod.Sum})
	}
	if m.slices[namespace] == nil {
		m.slices[namespace] = map[string][]known{}
	}
	m.slices[namespace][slice] = list
}

// gone hands on that a pod is gone from a slice, unless another one has it: it moved there.
func (m *Merge) gone(slice string, name model.Name) {
	m.settle(slice, name)
	for _, pods := range m.slices[name.Namespace] {
		for i := range pods {
			if pods[i].name == name.Name {
				if two, there := m.twice[name]; there {
					m.to.SetPod(two.pod)
					delete(m.twice, name)
				}
				return
			}
		}
	}
	m.to.DeletePod(name)
}

// settle forgets what a slice said of a pod that another slice has too.
func (m *Merge) settle(slice string, name model.Name) {
	if m.twice[name].slice == slice {
		delete(m.twice, name)
	}
}
