package policies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// kernel is a Writer that keeps what it was given, as maps do.
type kernel struct {
	mu      sync.Mutex
	tables  *policy.Tables
	devices map[netip.Addr][]uint32
	applied int
	any     bool
	err     error
	damage  []policy.Damage
	widened map[model.Name]struct{}
}

// Generation returns what an agent before left.
func (k *kernel) Generation() (uint32, error) { return 41, nil }

// SetAny notes whether anything is looked up.
func (k *kernel) SetAny(any bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.any = any
	return nil
}

// Apply keeps tables, unless it is to fail.
func (k *kernel) Apply(_ *policy.Change, tables *policy.Tables, devices map[netip.Addr][]uint32) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	k.tables, k.devices = tables, devices
	k.applied++
	return nil
}

// Verify finds what somebody has done, and mends it.
func (k *kernel) Verify(tables *policy.Tables, _ map[netip.Addr][]uint32, repair bool) (found policy.Comparison, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if tables != k.tables {
		return found, errors.New("other tables than were written")
	}
	for _, d := range k.damage {
		d.Mended = repair
		found.Damage = append(found.Damage, d)
	}
	if repair {
		found.Widened, k.damage, k.widened = k.widened, nil, nil
	}
	return found, nil
}

// Rows returns how many rows maps would have.
func (k *kernel) Rows() map[string]int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.tables == nil {
		return nil
	}
	return map[string]int{"policy_peers": len(k.tables.Peers)}
}

func (k *kernel) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// given returns the generation that was written of a pod.
func (k *kernel) given(addr netip.Addr) uint32 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tables.Pods[addr].Generation
}

// widen is harm by which more is accepted to a pod.
func (k *kernel) widen(pod model.Name, rows ...policy.Damage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.damage, k.widened = rows, map[model.Name]struct{}{pod: {}}
}

func (k *kernel) harm(rows ...policy.Damage) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.damage = rows
}

var (
	web    = netip.MustParseAddr("10.0.0.1")
	client = netip.MustParseAddr("10.0.1.1")
)

// rig is a Controller with a store of objects.
type rig struct {
	*testing.T
	*Controller
	kernel
	store   *model.Store
	around  *Around
	needed  bool
	decided int
	events  []string

	undecided error  // what Decided returns
	uid       string // of the device's pod
	noPods    string // what PodsError returns
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, store: model.NewStore("self")}
	r.Controller = New(&Config{
		Store: r.store, Node: "self", Mode: "enforce", Quota: policy.Quota{Selectors: 3, Terms: 100, Rows: 100, Runs: 100, Work: 1000}, Log: slog.New(slog.DiscardHandler),
		Report: func(key model.Key, uid string, problem model.Problem) {
			r.events = append(r.events, fmt.Sprint(key, " ", uid, " ", problem.Reason))
		},
	})
	r.around = &Around{
		Writer: &r.kernel, NeedPods: func(needed bool) { r.needed = needed }, PodsError: func() string { return r.noPods },
		Decided: func() error {
			r.Judged(model.Name{Namespace: "n", Name: "web"}, "", true) // which must not wait for the step that tells it
			r.decided++
			return r.undecided
		},
		Devices: func() []Device {
			r.Judged(model.Name{Namespace: "n", Name: "web"}, "", true) // which must not wait for the step that asks
			return []Device{{Pod: model.Name{Namespace: "n", Name: "web"}, UID: r.uid, Index: 7, Addrs: []netip.Addr{web}}}
		},
	}
	if err := r.start(r.around); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) step() {
	r.Helper()
	if err := r.Controller.step(r.around, nil); err != nil {
		r.Fatal(err)
	}
}

// sync delivers everything but policies.
func (r *rig) sync() {
	r.store.ReplaceServices(nil)
	r.store.ReplaceSlices(nil)
	r.store.ReplaceNodes([]*model.Node{{Name: "self"}})
	r.store.ReplaceNamespaces([]*model.Namespace{{Name: "n"}})
	r.store.ReplacePods([]*model.Pod{{Name: model.Name{Namespace: "n", Name: "web"}, Labels: map[string]string{"app": "web"}}})
}

func (r *rig) listPolicies(list ...*model.NetworkPolicy) {
	r.store.ReplaceNetworkPolicies(list)
	r.store.ReplaceClusterNetworkPolicies(nil)
}

func (r *rig) accepts(want bool) {
	r.Helper()
	verdict := r.tables.Evaluate(policy.Packet{Src: client, Dst: web, Protocol: model.TCP, Port: 80})
	if verdict.Accepted != want {
		r.Errorf("accepted: %v, by %s", verdict.Accepted, verdict.Rule)
	}
}

// isolate is a policy for ingress from pods with app=x for each of the names.
func isolate(apps ...string) *model.NetworkPolicy {
	p := &model.NetworkPolicy{Name: model.Name{Namespace: "n", Name: "p"}, UID: "u", Tier: model.TierNetworkPolicy, Subject: model.PodSet{Namespace: "n"}, Isolates: [2]bool{true, false}}
	for i, app := range apps {
		selector := model.Selector{{Label: "app", Operator: model.In, Values: []string{app}}}
		p.Rules[model.Ingress] = append(p.Rules[model.Ingress], model.PolicyRule{Number: i, AnyPort: true, Peers: []model.PolicyPeer{{Pods: &model.PodSet{Namespace: "n", Pods: selector}}}})
	}
	return p
}

func peer(app string) *model.PolicyPod {
	return &model.PolicyPod{Name: model.Name{Namespace: "n", Name: "peer"}, Labels: map[string]string{"app": app}, Addrs: []netip.Addr{client}}
}

// TestAudit checks that an audit denies nothing to pods of which nothing is known yet.
func TestAudit(t *testing.T) {
	r := newRig(t)
	r.Mode = "audit"
	pod := model.Name{Namespace: "n", Name: "new"}
	if r.Judged(pod, "", true) {
		t.Error("a new pod is judged before anything is known")
	}
	r.sync()
	r.store.ReplaceNetworkPolicies([]*model.NetworkPolicy{isolate("client")})
	r.store.ReplaceClusterNetworkPolicies(nil)
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.step()
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.step()
	if r.Judged(pod, "", true) || !r.Judged(model.Name{Namespace: "n", Name: "web"}, "", false) {
		t.Error("it is not only the pods that a policy is about that are judged")
	}
}

// TestNothingBeforeAllIsKnown checks what is waited for, and what is asked about pods meanwhile.
func TestNothingBeforeAllIsKnown(t *testing.T) {
	r := newRig(t)
	pod, other := model.Name{Namespace: "n", Name: "web"}, model.Name{Namespace: "n", Name: "new"}
	waits := func(want string) {
		t.Helper()
		r.step()
		if have := r.Status().Waiting; !strings.Contains(have, want) || r.applied > 0 {
			t.Fatalf("waits for %q, want %q; %d changes were written", have, want, r.applied)
		}
		if !r.Judged(pod, "", true) || r.Judged(pod, "", false) {
			t.Errorf("waiting for %s, it forgets whether pods were judged", want)
		}
	}
	waits("namespaces")
	r.sync()
	waits("policies")
	r.store.ReplaceNetworkPolicies([]*model.NetworkPolicy{isolate("client")})
	waits("policies")
	r.store.ReplaceClusterNetworkPolicies(nil)
	waits("the pods of all nodes")
	if !r.needed {
		t.Fatal("it waits for pods that it did not ask for")
	}
	r.noPods = "nobody writes them"
	if have := r.Status().Waiting; have != "the pods of all nodes: nobody writes them" {
		t.Errorf("it waits for %q", have)
	}
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.step()
	r.accepts(true)
	if row := r.tables.Pods[web]; row.Generation <= 41 || r.decided != 1 || fmt.Sprint(r.devices) != "map[10.0.0.1:[7]]" || !r.any {
		t.Errorf("written: %+v at %v, any %t, decided %d times", row, r.devices, r.any, r.decided)
	}
	if !r.Judged(pod, "", false) || !r.Judged(other, "", false) {
		t.Error("a pod with a policy, or one of which nothing is known, is not judged")
	}
	if s := r.Status(); s.Waiting != "" || s.NetworkPolicies != 1 || s.Pods != 1 || s.ClusterPods != 1 || s.Updates != 1 {
		t.Errorf("the status is %+v", s)
	}
}

// TestPodsOnlyWhileNeeded checks that a policy that comes again waits for pods again.
func TestPodsOnlyWhileNeeded(t *testing.T) {
	r := newRig(t)
	r.sync()
	r.listPolicies(isolate("client"))
	r.step()
	r.ReplacePods([]*model.PolicyPod{peer("batch")})
	r.step()
	r.accepts(false)
	r.listPolicies()
	r.step()
	r.accepts(true)
	if r.needed || r.any || r.Judged(model.Name{Namespace: "n", Name: "web"}, "", true) || r.Judged(model.Name{Namespace: "n", Name: "new"}, "", true) {
		t.Errorf("without policies: pods needed: %t, any: %t, or pods are judged", r.needed, r.any)
	}
	r.listPolicies(isolate("client")) // before the source has stopped
	r.step()
	r.accepts(false)
	r.listPolicies()
	r.step()
	r.ForgetPods()
	r.listPolicies(isolate("client"))
	before := r.applied
	r.step()
	if r.applied != before || r.Status().Waiting == "" || r.Status().ClusterPods != 1 {
		t.Error("a policy is written whose peers are not known")
	}
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.step()
	r.accepts(true)
}

// TestFailure checks that what cannot be written is in the status, and is written later.
func TestFailure(t *testing.T) {
	r := newRig(t)
	r.sync()
	r.listPolicies(isolate())
	r.fail(errors.New("full"))
	if err := r.Controller.step(r.around, nil); err == nil || r.Status().Error != "full" || r.decided != 0 {
		t.Errorf("%v, status %+v, decided %d times", err, r.Status(), r.decided)
	}
	var said []string
	r.Status().Findings(func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) })
	if len(said) != 1 || !strings.Contains(said[0], "full") {
		t.Errorf("findings: %q", said)
	}
	r.fail(nil)
	r.step()
	r.accepts(false)
	if r.Status().Error != "" {
		t.Errorf("the status still says %q", r.Status().Error)
	}
}

// TestDevicesStale checks that a change is not said to be in force while the pods' devices do not say that they are judged.
func TestDevicesStale(t *testing.T) {
	r := newRig(t)
	r.sync()
	r.listPolicies(isolate())
	r.undecided = errors.New("read-only")
	for range 2 {
		if err := r.Controller.step(r.around, nil); !errors.Is(err, r.undecided) {
			t.Errorf("a step that cannot tell: %v", err)
		}
	}
	if s := r.Status(); !strings.Contains(s.Error, "read-only") || r.decided != 2 || !s.Written.IsZero() {
		t.Errorf("told %d times, status %+v", r.decided, s)
	}
	r.undecided = nil
	r.step()
	r.step()
	if s := r.Status(); s.Error != "" || r.decided != 3 {
		t.Errorf("told %d times, status %+v", r.decided, s)
	}
}

// TestEvents checks that bad policies and those over their quota are reported, each once.
func TestEvents(t *testing.T) {
	r := newRig(t)
	r.sync()
	bad := isolate("a", "b", "c", "d")
	bad.Problems = []model.Problem{{Reason: "InvalidPeer", Message: "nobody knows it"}}
	r.listPolicies(bad)
	r.step()
	r.ReplacePods([]*model.PolicyPod{peer("a")})
	r.step()
	r.accepts(false)
	r.SetPod(peer("b"))
	r.step()
	if have := strings.Join(r.events, ", "); have != "networkpolicy:n/p u InvalidPeer, networkpolicy:n/p u PolicyQuotaExceeded" {
		t.Errorf("events: %s", have)
	}
	if s := r.Status(); len(s.Refused) != 1 || s.Refused[0] != "n" {
		t.Errorf("the status is %+v", s)
	}
}

// TestFiles checks that pods of files, which always come, are not waited for.
func TestFiles(t *testing.T) {
	r := newRig(t)
	r.around.NeedPods = nil
	r.ReplacePods([]*model.PolicyPod{peer("client")})
	r.sync()
	r.listPolicies(isolate("client"))
	r.step()
	r.accepts(true)
}

// TestRun checks that changes are noticed and that errors are tried again.
func TestRun(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Controller.Run(ctx, r.around) }()
	await := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("waited for %s", what)
			}
		}
	}
	changes := func() int {
		r.kernel.mu.Lock()
		defer r.kernel.mu.Unlock()
		return r.applied
	}
	r.sync()
	r.listPolicies(isolate())
	await("a policy", func() bool { return changes() > 0 })
	r.fail(errors.New("no room"))
	r.SetPod(peer("client"))
	await("an error", func() bool { return r.Status().Error != "" })
	r.fail(nil)
	await("another attempt", func() bool { return r.Status().Error == "" })
	before := changes()
	r.Wake()
	await("a device", func() bool { return changes() > before })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
