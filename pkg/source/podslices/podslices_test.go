package podslices

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
	"fairlead.io/fairlead/pkg/source"
)

// receiver has pods as they are handed on, and a compiler that gets the same.
type receiver struct {
	pods     map[model.Name]*model.PolicyPod
	compiler *policy.Compiler
}

// SetPod stores a pod.
func (r *receiver) SetPod(pod *model.PolicyPod) {
	r.pods[pod.Name] = pod
	r.compiler.SetPod(pod)
}

// DeletePod forgets a pod.
func (r *receiver) DeletePod(name model.Name) {
	delete(r.pods, name)
	r.compiler.DeletePod(name)
}

// ReplacePods forgets all other pods.
func (r *receiver) ReplacePods(pods []*model.PolicyPod) {
	clear(r.pods)
	for _, pod := range pods {
		r.pods[pod.Name] = pod
	}
	r.compiler.ReplacePods(pods)
}

// ForgetPods forgets all pods.
func (r *receiver) ForgetPods() { r.ReplacePods(nil) }

func newReceiver() *receiver {
	return &receiver{map[model.Name]*model.PolicyPod{}, compiler()}
}

// compiler returns a compiler with policies that name the pods that randomPod makes.
func compiler() *policy.Compiler {
	c := policy.New("self", policy.DefaultQuota(), 0)
	c.SetLocal(&model.PolicyPod{Name: model.Name{Namespace: "n0", Name: "local"}, Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.1")}})
	for i := range 3 {
		c.SetNamespace(fmt.Sprint("n", i), map[string]string{"team": fmt.Sprint(i)})
	}
	for i, app := range []string{"a", "b"} {
		p := &model.NetworkPolicy{Name: model.Name{Namespace: "n0", Name: app}, Tier: model.TierNetworkPolicy, Subject: model.PodSet{Namespace: "n0"}, Isolates: [2]bool{true, true}}
		peer := model.PolicyPeer{Pods: &model.PodSet{Namespace: fmt.Sprint("n", i), Pods: model.Selector{{Label: "app", Operator: model.In, Values: []string{app}}}}}
		p.Rules[model.Ingress] = []model.PolicyRule{{AnyPort: true, Peers: []model.PolicyPeer{peer}}}
		p.Rules[model.Egress] = []model.PolicyRule{{Peers: []model.PolicyPeer{peer}, Named: []model.NamedPort{{Name: "http", Protocol: model.TCP}}}}
		c.SetPolicy(p)
	}
	deny := &model.NetworkPolicy{Name: model.Name{Name: "deny"}, Tier: model.TierAdmin}
	deny.Rules[model.Ingress] = []model.PolicyRule{{Action: model.Deny, AnyPort: true, Peers: []model.PolicyPeer{{Pods: &model.PodSet{
		Namespaces: model.Selector{{Label: "team", Operator: model.NotIn, Values: []string{"0"}}}, Pods: model.Selector{{Label: "app", Operator: model.Absent}},
	}}}}}
	c.SetPolicy(deny)
	return c
}

func randomPod(r *rand.Rand) *model.PolicyPod {
	pod := &model.PolicyPod{
		Name:    model.Name{Namespace: fmt.Sprint("n", r.IntN(3)), Name: fmt.Sprint("pod-", r.IntN(250))},
		Created: int64(r.IntN(3)), HostNetwork: r.IntN(20) == 0,
	}
	if app := r.IntN(4); app < 3 {
		pod.Labels = map[string]string{"app": string(rune('a' + app))}
		if r.IntN(40) == 0 {
			pod.Labels["long"] = strings.Repeat("x", r.IntN(100_000)) // longer than the API takes, to fill slices
		}
	}
	if r.IntN(10) > 0 {
		pod.Addrs = append(pod.Addrs, netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(250))}))
	}
	if r.IntN(2) == 0 {
		pod.Addrs = append(pod.Addrs, netip.AddrFrom16([16]byte{0x20, 1, 15: byte(r.IntN(250))}))
	}
	if r.IntN(2) == 0 {
		pod.Ports = []model.NamedPort{{Name: "http", Protocol: []model.Protocol{model.TCP, model.UDP, model.SCTP}[r.IntN(3)], Port: uint16(80 + r.IntN(2))}}
	}
	return pod
}

// store has slices as an API server has them.
type store map[string]string

// decode returns a slice as an agent reads it.
func (s store) decode(t *testing.T, name string) *source.PodsOfSlice {
	t.Helper()
	out := &source.CheckedPodSlice{}
	if err := json.Unmarshal([]byte(s[name]), out); err != nil {
		t.Fatalf("%s: %v\n%.300s", name, err, s[name])
	}
	return source.PodSlicePods(out)
}

func (s store) list(t *testing.T) (list []*source.PodsOfSlice) {
	t.Helper()
	for name := range s {
		list = append(list, s.decode(t, name))
	}
	return list
}

// put writes a slice, or removes it, and reports whether that changes anything.
func (s store) put(t *testing.T, name string, spec *source.PodSliceSpec) bool {
	t.Helper()
	if spec == nil {
		_, was := s[name]
		delete(s, name)
		return was
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": name}, "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	was := s[name]
	s[name] = string(text)
	return was != string(text)
}

// bothWays are pods, and what becomes of them by way of slices.
type bothWays struct {
	*testing.T
	*rand.Rand
	pods   map[model.Name]*model.PolicyPod
	packer *Packer
	store  store
	merge  *Merge
	direct *receiver
	sliced *receiver
	writes int
	ended  map[model.Name]struct{} // pods that were deleted since all was written
}

// write brings the slices up to date, and the agent with each.
func (w *bothWays) write() {
	w.Helper()
	before := maps.Clone(w.sliced.pods)
	first, rest := w.packer.Changed()
	w.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	for _, name := range slices.Concat(first, rest) {
		if !w.store.put(w.T, name, w.packer.Spec(name)) {
			continue
		}
		w.writes++
		if w.Intn(30) == 0 { // the agent lists while only some are written
			w.merge.Replace(w.store.list(w.T))
		}
		if _, there := w.store[name]; there {
			w.merge.Set(w.store.decode(w.T, name))
		} else {
			w.merge.Delete(model.Name{Name: name})
		}
		for name := range before {
			if _, ended := w.ended[name]; !ended && w.sliced.pods[name] == nil {
				w.Fatalf("%s is not known for a moment", name)
			}
		}
	}
	clear(w.ended)
	if _, there := w.store[source.PodSlicesComplete]; !there {
		w.store.put(w.T, source.PodSlicesComplete, &source.PodSliceSpec{})
		w.merge.Set(w.store.decode(w.T, source.PodSlicesComplete))
	}
}

// Intn is IntN, which two embedded types have.
func (w *bothWays) Intn(n int) int { return w.Rand.IntN(n) }

func (w *bothWays) set(pod *model.PolicyPod) {
	w.pods[pod.Name] = pod
	if pod.HostNetwork || len(pod.Addrs) == 0 {
		w.ended[pod.Name] = struct{}{}
	}
	w.packer.Set(pod)
	w.direct.SetPod(pod)
}

func (w *bothWays) remove(name model.Name) {
	delete(w.pods, name)
	w.ended[name] = struct{}{}
	w.packer.Delete(name)
	w.direct.DeletePod(name)
}

// owners are the pods that own an address: the others are none to policies.
func owners(pods map[model.Name]*model.PolicyPod) map[model.Name]*model.PolicyPod {
	out := map[model.Name]*model.PolicyPod{}
	for name, pod := range pods {
		if !pod.HostNetwork && len(pod.Addrs) > 0 {
			out[name] = pod
		}
	}
	return out
}

// check compares pods and tables.
func (w *bothWays) check() {
	w.Helper()
	if diff := cmp.Diff(owners(w.pods), w.sliced.pods, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		w.Fatalf("pods (-as they are +by slices):\n%.2000s", diff)
	}
	fresh := [2]*policy.Compiler{compiler(), compiler()}
	for i, pods := range []map[model.Name]*model.PolicyPod{w.pods, w.sliced.pods} {
		fresh[i].ReplacePods(slices.Collect(maps.Values(pods)))
		fresh[i].Update()
	}
	if !reflect.DeepEqual(fresh[0].Tables(), fresh[1].Tables()) {
		w.Fatal("compiled anew, the tables of both ways differ")
	}
	w.direct.compiler.Update()
	w.sliced.compiler.Update()
	one, two := w.direct.compiler.Tables(), w.sliced.compiler.Tables()
	for i := range 250 {
		for _, addr := range []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.AddrFrom16([16]byte{0x20, 1, 15: byte(i)})} {
			for subject := range one.Subjects {
				for direction := range model.Direction(model.Directions) {
					for other := range two.Subjects { // there is one, under numbers that need not be the same
						if a, b := one.Decide(subject, direction, addr, model.TCP, 80), two.Decide(other, direction, addr, model.TCP, 80); a.Accepted != b.Accepted {
							w.Fatalf("%s %s: accepted %t by pods, %t by slices", direction, addr, a.Accepted, b.Accepted)
						}
					}
				}
			}
		}
	}
	if len(one.Subjects) != 1 || len(two.Subjects) != 1 {
		w.Fatalf("%d and %d subjects", len(one.Subjects), len(two.Subjects))
	}
	w.bounded()
}

// bounded checks that slices keep to their bounds, and that nothing is left of what is gone.
func (w *bothWays) bounded() {
	w.Helper()
	names := map[string]int{}
	for name, text := range w.store {
		in := w.store.decode(w.T, name)
		if len(in.Pods) > maxPods || len(text) > maxBytes+200 && len(in.Pods) > 1 {
			w.Errorf("%s has %d pods in %d bytes", name, len(in.Pods), len(text))
		}
		if len(in.Pods) == 0 && !in.Complete {
			w.Errorf("%s is empty", name)
		}
		for _, pod := range in.Pods {
			names[pod.Name.String()]++
		}
	}
	if len(names) != len(owners(w.pods)) || len(w.store)-1 != w.packer.Slices() {
		w.Errorf("%d pods in slices, and there are %d; %d slices, and the packer knows %d", len(names), len(owners(w.pods)), len(w.store)-1, w.packer.Slices())
	}
	for name, times := range names {
		if times > 1 {
			w.Errorf("%s is in %d slices", name, times)
		}
	}
}

// TestBothWays feeds the same pods and changes through both ways, with lists in the middle, writers that take over,
// and slices that are deleted with their definition, and compares pods and tables.
func TestBothWays(t *testing.T) {
	for seed := range uint64(6) {
		w := &bothWays{
			T: t, Rand: rand.New(rand.NewPCG(seed, 1)), pods: map[model.Name]*model.PolicyPod{}, packer: New(), store: store{},
			direct: newReceiver(), sliced: newReceiver(), ended: map[model.Name]struct{}{},
		}
		w.merge = NewMerge(w.sliced)
		for range 20 {
			for range w.Intn(120) {
				if pod := randomPod(w.Rand); w.Intn(4) == 0 {
					w.remove(pod.Name)
				} else {
					w.set(pod)
				}
			}
			switch w.Intn(8) {
			case 0:
				w.takeOver()
			case 1:
				w.deleteAll()
			case 2:
				w.merge.Replace(w.store.list(w.T))
			}
			w.write()
			w.check()
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// takeOver has another writer go on from what is there. Without a change of pods it writes nothing.
func (w *bothWays) takeOver() {
	w.Helper()
	w.write()
	w.packer = New()
	for name := range w.store {
		if name == source.PodSlicesComplete {
			continue
		}
		var known source.PodSlice
		if err := json.Unmarshal([]byte(w.store[name]), &known); err != nil {
			w.Fatal(err)
		}
		w.packer.Adopt(name, &known.Spec)
	}
	w.packer.Replace(slices.Collect(maps.Values(w.pods)))
	writes := w.writes
	w.write()
	if w.writes != writes {
		w.Errorf("a writer that takes over writes %d slices, and no pod has changed", w.writes-writes)
	}
}

// deleteAll deletes the slices as the API server does with their definition. What is known stays.
func (w *bothWays) deleteAll() {
	w.Helper()
	w.write()
	before := maps.Clone(w.sliced.pods)
	for _, name := range slices.Sorted(maps.Keys(w.store)) {
		delete(w.store, name)
		w.merge.Delete(model.Name{Name: name})
	}
	if !maps.Equal(before, w.sliced.pods) || w.merge.Complete() {
		w.Errorf("pods went with the definition: %d are left of %d", len(w.sliced.pods), len(before))
	}
	w.packer = New()
	w.packer.Replace(slices.Collect(maps.Values(w.pods)))
}

// TestPodInTwoSlices checks that an agent that lists slices while a pod moves has the pod as the slice says that
// keeps it, whichever it had at first.
func TestPodInTwoSlices(t *testing.T) {
	for range 20 { // a list is in no order
		s, r := store{}, newReceiver()
		m := NewMerge(r)
		holding := func(name, app string) {
			s.put(t, name, &source.PodSliceSpec{Namespace: "n", Shapes: []source.PodShape{{Labels: map[string]string{"app": app}, Pods: []source.SlicedPod{{Name: "moves", IPs: []string{"10.0.0.1"}}}}}})
		}
		holding("n.0", "before")
		holding("n.1", "after")
		s.put(t, source.PodSlicesComplete, &source.PodSliceSpec{})
		m.Replace(s.list(t))
		s.put(t, "n.0", &source.PodSliceSpec{Namespace: "n"})
		m.Set(s.decode(t, "n.0"))
		if pod := r.pods[model.Name{Namespace: "n", Name: "moves"}]; pod == nil || pod.Labels["app"] != "after" {
			t.Fatalf("the pod is %+v", pod)
		}
	}
}

// TestSilentWriter checks that an agent notices that nobody writes slices any more: what counts is when the writer's
// word changes, and not that an old one is listed again.
func TestSilentWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMerge(newReceiver())
		word := func(renewed int64) *source.PodsOfSlice {
			return &source.PodsOfSlice{Name: source.PodSlicesComplete, Complete: true, Renewed: renewed}
		}
		for i, test := range []struct {
			comes func()
			want  time.Duration
		}{
			{func() { m.Replace([]*source.PodsOfSlice{word(5)}) }, time.Minute}, // the word is old, and new to this agent
			{func() { m.Set(word(5)) }, 2 * time.Minute},
			{func() { m.Replace([]*source.PodsOfSlice{word(5)}) }, 3 * time.Minute},
			{func() { m.Set(word(4)) }, time.Minute}, // a writer whose clock is slow
			{func() { m.Replace([]*source.PodsOfSlice{word(6)}) }, time.Minute},
		} {
			test.comes()
			time.Sleep(time.Minute)
			if have := m.Silent(); have != test.want {
				t.Errorf("word %d: silent for %s, want %s", i, have, test.want)
			}
		}
	})
}
