// Package podslices packs the pods of a cluster, as policies see them, into objects that each hold some of one
// namespace, and unpacks them.
//
// # How pods are packed
//
// A pod stays in its slice for as long as it is there, so that a change of a pod rewrites one slice. A pod that
// comes goes into a slice of its namespace that has room, and into a new one if none has. A slice without pods is
// given up. Slices are not merged: those of a namespace that shrinks fill up again with the next pods that come.
//
// A slice holds at most as many pods as an EndpointSlice does endpoints. More would be cheaper to list, and dearer
// with each change, which sends all of a slice to all nodes.
package podslices

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

const (
	maxPods = 100
	// maxBytes bounds a slice that holds more than one pod. A pod that is larger by its labels is alone in its
	// slice, which is smaller than the pod's own object.
	maxBytes = 128 << 10
)

// Packer packs pods into slices. It is not safe for concurrent use.
type Packer struct {
	namespaces map[string]*namespace
	changed    map[string]struct{} // slices
	// gained are slices with a pod that was in another one. They are written first: what reads slices may
	// know a pod twice for a moment, but never not at all.
	gained map[string]struct{}
}

type namespace struct {
	name   string
	slices map[string]*slice
	pods   map[string]*slice // which slice a pod is in
	shapes map[string]*shape
	room   []*slice // those that may take another pod
}

type slice struct {
	name   string
	pods   map[string]packed
	shapes map[*shape]int // how many pods have it
	bytes  int            // at most so many
	inRoom bool
}

type packed struct {
	shape   *shape // nil while the pod is only known from a slice that was there before
	created int64
	ips     string // with spaces between them
}

type shape struct {
	key    string // labels and ports as JSON
	labels map[string]string
	ports  []source.SlicedPort
	bytes  int
	pods   int
}

// New returns a Packer without pods.
func New() *Packer {
	return &Packer{map[string]*namespace{}, map[string]struct{}{}, map[string]struct{}{}}
}

// Adopt takes a slice as it is, with its pods where they are. It is for before the first pod.
func (p *Packer) Adopt(name string, spec *source.PodSliceSpec) {
	p.changed[name] = struct{}{}
	prefix, number, _ := strings.Cut(name, ".")
	if n, err := strconv.ParseUint(number, 10, 31); prefix != spec.Namespace || err != nil || strconv.FormatUint(n, 10) != number {
		return // not one of ours, and nobody asks for it
	}
	ns := p.namespace(spec.Namespace)
	s := ns.open(name)
	for i := range spec.Shapes {
		for _, pod := range spec.Shapes[i].Pods {
			if _, twice := ns.pods[pod.Name]; !twice && len(s.pods) < maxPods {
				s.pods[pod.Name], ns.pods[pod.Name] = packed{}, s
			}
		}
	}
}

// Set stores a new or changed pod.
func (p *Packer) Set(pod *model.PolicyPod) {
	if pod.HostNetwork || len(pod.Addrs) == 0 {
		p.Delete(pod.Name)
		return
	}
	ns := p.namespace(pod.Namespace)
	next := packed{shape: ns.hold(pod), created: pod.Created, ips: texts(pod)}
	was := ns.pods[pod.Name.Name]
	if was != nil {
		if was.pods[pod.Name.Name] == next {
			ns.release(next.shape)
			return
		}
		p.changed[was.name] = struct{}{}
		ns.remove(was, pod.Name.Name)
		if was.fits(pod.Name.Name, next) {
			ns.add(was, pod.Name.Name, next)
			return
		}
	}
	s := ns.place(pod.Name.Name, next)
	ns.add(s, pod.Name.Name, next)
	p.changed[s.name] = struct{}{}
	if was != nil {
		p.gained[s.name] = struct{}{}
	}
}

// Delete forgets a pod.
func (p *Packer) Delete(name model.Name) {
	ns := p.namespaces[name.Namespace]
	if ns == nil || ns.pods[name.Name] == nil {
		return
	}
	s := ns.pods[name.Name]
	ns.remove(s, name.Name)
	p.changed[s.name] = struct{}{}
}

// Replace makes the pods exactly the given ones.
func (p *Packer) Replace(pods []*model.PolicyPod) {
	stay := make(map[model.Name]struct{}, len(pods))
	for _, pod := range pods {
		stay[pod.Name] = struct{}{}
	}
	for _, ns := range p.namespaces {
		for name := range ns.pods {
			if name := (model.Name{Namespace: ns.name, Name: name}); !has(stay, name) {
				p.Delete(name)
			}
		}
	}
	for _, pod := range pods {
		p.Set(pod)
	}
}

func has[K comparable](set map[K]struct{}, key K) bool {
	_, is := set[key]
	return is
}

// Changed returns the slices that may have changed since it was called before. Those in first are to be written
// before those in rest.
func (p *Packer) Changed() (first, rest []string) {
	for name := range p.changed {
		if has(p.gained, name) {
			first = append(first, name)
		} else {
			rest = append(rest, name)
		}
	}
	slices.Sort(first)
	slices.Sort(rest)
	clear(p.changed)
	clear(p.gained)
	return first, rest
}

// Spec returns what a slice holds, or nil if there is to be none of that name.
func (p *Packer) Spec(name string) *source.PodSliceSpec {
	of, _, _ := strings.Cut(name, ".")
	ns := p.namespaces[of]
	if ns == nil || ns.slices[name] == nil {
		return nil
	}
	s := ns.slices[name]
	if len(s.pods) == 0 {
		p.close(ns, s)
		return nil
	}
	return s.spec(ns)
}

// Slices returns how many slices there are.
func (p *Packer) Slices() (count int) {
	for _, ns := range p.namespaces {
		count += len(ns.slices)
	}
	return count
}

func (p *Packer) namespace(name string) *namespace {
	ns := p.namespaces[name]
	if ns == nil {
		ns = &namespace{name: name, slices: map[string]*slice{}, pods: map[string]*slice{}, shapes: map[string]*shape{}}
		p.namespaces[name] = ns
	}
	return ns
}

// close forgets a slice that nobody writes any longer.
func (p *Packer) close(ns *namespace, s *slice) {
	delete(ns.slices, s.name)
	ns.room = slices.DeleteFunc(ns.room, func(o *slice) bool { return o == s })
	if len(ns.slices) == 0 {
		delete(p.namespaces, ns.name)
	}
}

// open adds a slice.
func (ns *namespace) open(name string) *slice {
	s := &slice{name: name, pods: map[string]packed{}, shapes: map[*shape]int{}, bytes: len(`{"namespace":"","shapes":[]}`) + len(ns.name), inRoom: true}
	ns.slices[name] = s
	ns.room = append(ns.room, s)
	return s
}

// place returns a slice for a pod that is in none.
func (ns *namespace) place(name string, pod packed) *slice {
	for i := 0; i < len(ns.room); {
		s := ns.room[i]
		if len(s.pods) >= maxPods {
			s.inRoom = false
			ns.room = slices.Delete(ns.room, i, i+1)
			continue
		}
		if s.fits(name, pod) {
			return s
		}
		i++
	}
	for number := len(ns.slices); ; number-- { // one of these is not in use
		if of := ns.name + "." + strconv.Itoa(number); ns.slices[of] == nil {
			return ns.open(of)
		}
	}
}

func (s *slice) fits(name string, pod packed) bool {
	more := bytesOf(name, pod)
	if s.shapes[pod.shape] == 0 {
		more += pod.shape.bytes
	}
	return len(s.pods) == 0 || len(s.pods) < maxPods && s.bytes+more <= maxBytes
}

func (ns *namespace) add(s *slice, name string, pod packed) {
	if s.shapes[pod.shape] == 0 {
		s.bytes += pod.shape.bytes
	}
	s.shapes[pod.shape]++
	s.bytes += bytesOf(name, pod)
	s.pods[name], ns.pods[name] = pod, s
}

func (ns *namespace) remove(s *slice, name string) {
	pod := s.pods[name]
	delete(s.pods, name)
	delete(ns.pods, name)
	if !s.inRoom {
		s.inRoom = true
		ns.room = append(ns.room, s)
	}
	if pod.shape == nil {
		return
	}
	s.bytes -= bytesOf(name, pod)
	if s.shapes[pod.shape]--; s.shapes[pod.shape] == 0 {
		delete(s.shapes, pod.shape)
		s.bytes -= pod.shape.bytes
	}
	ns.release(pod.shape)
}

// hold returns the shape of one more pod.
func (ns *namespace) hold(pod *model.PolicyPod) *shape {
	in := source.PodShape{Labels: pod.Labels}
	for _, port := range pod.Ports {
		in.Ports = append(in.Ports, source.SlicedPort{Name: port.Name, Protocol: protocol(port.Protocol), Port: int32(port.Port)})
	}
	text, err := json.Marshal(in) // maps are sorted there
	if err != nil {
		panic(err) // it consists of texts and numbers
	}
	s := ns.shapes[string(text)]
	if s == nil {
		s = &shape{key: string(text), labels: maps.Clone(pod.Labels), ports: in.Ports, bytes: len(text) + len(",")}
		ns.shapes[s.key] = s
	}
	s.pods++
	return s
}

func (ns *namespace) release(s *shape) {
	if s.pods--; s.pods == 0 {
		delete(ns.shapes, s.key)
	}
}

func protocol(p model.Protocol) corev1.Protocol {
	switch p {
	case model.UDP:
		return corev1.ProtocolUDP
	case model.SCTP:
		return corev1.ProtocolSCTP
	}
	return corev1.ProtocolTCP
}

// texts returns the addresses of a pod, which may have one of each family.
func texts(pod *model.PolicyPod) string {
	list := make([]string, 0, 2)
	for _, addr := range pod.Addrs {
		list = append(list, addr.Unmap().String())
	}
	return strings.Join(list, " ")
}

// bytesOf returns how long a pod's part of a slice is at most.
func bytesOf(name string, pod packed) int {
	return len(`{"name":"","created":-9223372036854775808,"ips":["",""]},`) + len(name) + len(pod.ips)
}

// spec returns what a slice holds, always in the same order.
func (s *slice) spec(ns *namespace) *source.PodSliceSpec {
	of := map[*shape][]source.SlicedPod{}
	for name, pod := range s.pods {
		if pod.shape != nil {
			of[pod.shape] = append(of[pod.shape], source.SlicedPod{Name: name, Created: pod.created, IPs: strings.Fields(pod.ips)})
		}
	}
	out := &source.PodSliceSpec{Namespace: ns.name}
	for _, shape := range slices.SortedFunc(maps.Keys(of), func(a, b *shape) int { return strings.Compare(a.key, b.key) }) {
		pods := of[shape]
		slices.SortFunc(pods, func(a, b source.SlicedPod) int { return strings.Compare(a.Name, b.Name) })
		out.Shapes = append(out.Shapes, source.PodShape{Labels: shape.labels, Ports: shape.ports, Pods: pods})
	}
	return out
}
