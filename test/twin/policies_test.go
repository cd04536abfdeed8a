package twin

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/enforce"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// policyChange replaces all policies.
type policyChange struct {
	Subjects map[int]*Subject `json:"subjects"` // by device
}

// askedChange does to the row of a flow of a pod what time or the collector does, or gives a pod a share.
type askedChange struct {
	Flow  Flow   `json:"flow,omitzero"`
	What  string `json:"what"` // evict, age, forget (that it was denied just now), or share
	Pod   int    `json:"pod,omitempty"`
	Share int    `json:"share,omitempty"`
}

const policyNamespace = "shop"

// policyWriter compiles and writes policies as an agent does.
type policyWriter struct {
	compiler *policy.Compiler
	writer   *enforce.Writer
	written  bool                     // something was, since the last beginning
	names    map[int]*model.PolicyPod // by device
	tags     map[nextKey]uint64       // what rows say of the receivers' acceptance
}

// nextKey is what a tag of the receiver's acceptance is made of.
type nextKey struct {
	flow       Flow
	generation uint32
}

// policyGroups returns the pods that rules can name, with their addresses.
func policyGroups() map[string][]netip.Addr {
	groups := map[string][]netip.Addr{}
	for _, v4 := range []bool{true, false} {
		p := pools()[v4]
		for i, addr := range p.pods() {
			groups[podName(firstPod+i)] = append(groups[podName(firstPod+i)], addr)
		}
		for i, addr := range p.far[:2] {
			groups[fmt.Sprint("far", i)] = append(groups[fmt.Sprint("far", i)], addr)
		}
	}
	return groups
}

func podName(device int) string { return fmt.Sprint("pod", device) }

func newPolicyWriter(t *testing.T, m *kernel.Maps) *policyWriter {
	t.Helper()
	opened, err := m.OpenEnforceMaps()
	if err != nil {
		t.Fatal(err)
	}
	writer, err := enforce.New(opened, false, nil)
	if err != nil {
		t.Fatal(errors.Join(err, opened.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(writer.Close(), opened.Close()); err != nil {
			t.Error(err)
		}
	})
	p := &policyWriter{compiler: policy.New("node", policy.DefaultQuota(), 1), writer: writer, names: map[int]*model.PolicyPod{}}
	p.compiler.SetNamespace(policyNamespace, nil)
	groups := policyGroups()
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		pod := &model.PolicyPod{Name: model.Name{Namespace: policyNamespace, Name: name}, Addrs: groups[name], Labels: map[string]string{"name": name}}
		p.compiler.SetPod(pod)
		var device int
		if _, err := fmt.Sscanf(name, "pod%d", &device); err == nil {
			p.compiler.SetLocal(pod)
			p.names[device] = pod
		}
	}
	return p
}

func namedPods(names ...string) *model.PodSet {
	return &model.PodSet{Namespace: policyNamespace, Pods: model.Selector{{Label: "name", Operator: model.In, Values: names}}}
}

// policyOf returns the NetworkPolicy that says what is accepted about a pod.
func policyOf(device int, s *Subject) *model.NetworkPolicy {
	p := &model.NetworkPolicy{Name: model.Name{Namespace: policyNamespace, Name: podName(device)}, Tier: model.TierNetworkPolicy, Subject: *namedPods(podName(device))}
	for direction, in := range map[model.Direction]*Isolation{model.Ingress: s.Ingress, model.Egress: s.Egress} {
		if p.Isolates[direction] = in != nil; in == nil {
			continue
		}
		for i, rule := range in.Rules {
			to := model.PolicyRule{Number: i, Action: model.Accept, AnyPeer: rule.Everybody, AnyPort: rule.Proto == 0}
			if len(rule.Pods) > 0 {
				to.Peers = append(to.Peers, model.PolicyPeer{Pods: namedPods(rule.Pods...)})
			}
			for _, block := range rule.Blocks {
				to.Peers = append(to.Peers, model.PolicyPeer{Block: &model.Block{Prefix: block}})
			}
			if rule.Proto != 0 {
				to.Ports = []model.PortSpan{{Protocol: model.Protocol(rule.Proto), First: rule.First, Last: rule.Last}}
			}
			p.Rules[direction] = append(p.Rules[direction], to)
		}
	}
	return p
}

// changePolicies writes policies, and tells the programs and the model which pods they may be about.
func (r *run) changePolicies(c *policyChange) error {
	w := r.kernel
	devices := map[netip.Addr][]uint32{}
	for addr, id := range podAddrs() {
		if s := c.Subjects[id]; s == nil || !s.Unknown {
			devices[addr] = []uint32{uint32(w.pods[id].index)}
		}
	}
	w.policies.written = true
	for id := range w.policies.names {
		if s := c.Subjects[id]; s == nil || s.isOpen() || s.Unknown {
			w.policies.compiler.DeletePolicy(model.Name{Namespace: policyNamespace, Name: podName(id)})
		} else {
			w.policies.compiler.SetPolicy(policyOf(id, s))
		}
	}
	r.node.Subjects = map[int]*Subject{}
	w.subjects = map[int]bool{}
	for id, s := range c.Subjects {
		of := *s
		r.node.Subjects[id], w.subjects[id] = &of, true
	}
	change := w.policies.compiler.Update()
	tables := w.policies.compiler.Tables()
	for addr, id := range podAddrs() {
		if s := r.node.Subjects[id]; s != nil {
			s.generation = tables.Pods[addr].Generation
		}
	}
	err := errors.Join(w.setPods(kernel.Proxy{}), w.policies.writer.SetAny(len(c.Subjects) > 0), w.policies.writer.Apply(change, tables, devices))
	for id, s := range r.node.Subjects {
		err = errors.Join(err, w.setAdoption(id, s))
	}
	return err
}

// setAdoption says whether flows of a pod from before a policy may go on.
func (w *kernelNode) setAdoption(id int, s *Subject) error {
	if s.Unknown {
		return nil
	}
	until := func(yes bool) uint32 {
		if yes {
			return w.now + 1
		}
		return w.now - 1
	}
	var row bpf.MapsPolicyPod
	index := uint32(w.pods[id].index)
	if err := w.maps.PolicyPods.Lookup(index, &row); err != nil {
		return fmt.Errorf("look pod %d up: %w", id, err)
	}
	row.Adopts, row.Answers = until(s.Adopts), until(s.Answers)
	return w.maps.PolicyPods.Put(index, row)
}

// forgetPolicies removes the policies of a former run, and what they were asked about.
func (r *run) forgetPolicies() error {
	w := r.kernel
	w.policies.tags = map[nextKey]uint64{}
	if !w.policies.written {
		return nil
	}
	err := r.changePolicies(&policyChange{})
	w.policies.written = false
	for _, m := range []*ebpf.Map{w.maps.PolicyFlows, w.maps.PolicyPending, w.maps.PolicyShares} {
		err = errors.Join(err, empty(m))
	}
	return err
}

// changeAsked changes the row of a flow, if there is one, or a pod's share.
func (r *run) changeAsked(c *askedChange) error {
	if c.What == "share" {
		return r.changeShare(c)
	}
	memory, m := r.node.flows, r.kernel.maps.PolicyFlows
	if memory[c.Flow] == nil {
		memory, m = r.node.Policies.pending, r.kernel.maps.PolicyPending
	}
	row, key := memory[c.Flow], keyOf(c.Flow)
	if row == nil {
		return nil
	}
	if c.What == "evict" {
		delete(memory, c.Flow)
		return m.Delete(&key)
	}
	var entry bpf.MapsPolicyFlow
	if err := m.Lookup(&key, &entry); err != nil {
		return fmt.Errorf("%s of %v: %w", c.What, c.Flow, err)
	}
	if c.What == "age" {
		row.Seen = r.node.Now - 1
		entry.Seen = row.Seen
	} else {
		row.DeniedAt -= answersFor + 1
		entry.Denied = row.DeniedAt
	}
	return m.Update(&key, &entry, ebpf.UpdateExist)
}

// changeShare gives a pod so many more rows of flows than the programs have counted.
func (r *run) changeShare(c *askedChange) error {
	r.node.shares[c.Pod] = c.Share
	all := 0
	for _, rows := range r.node.shares {
		all += rows
	}
	return errors.Join(r.kernel.maps.PolicyShares.Put(uint32(r.kernel.pods[c.Pod].index), bpf.MapsPolicyShare{Rows: int32(c.Share)}),
		r.kernel.maps.PolicyShares.Put(uint32(0), bpf.MapsPolicyShare{Rows: int32(all)}))
}

// compareAsked compares the rows of flows that policies were asked about.
func (r *run) compareAsked(flows []Flow) error {
	for _, flow := range flows {
		for _, memory := range r.askedMemories() {
			key := keyOf(flow)
			var row bpf.MapsPolicyFlow
			err := memory.m.Lookup(&key, &row)
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
			if err := r.differAsked(memory.name, flow, &row, err == nil, memory.want[flow]); err != nil {
				return err
			}
		}
	}
	return nil
}

type askedMemory struct {
	name string
	m    *ebpf.Map
	want map[Flow]*Accepted
}

func (r *run) askedMemories() []askedMemory {
	return []askedMemory{{"policy_flows", r.kernel.maps.PolicyFlows, r.node.flows}, {"policy_pending", r.kernel.maps.PolicyPending, r.node.Policies.pending}}
}

// compareAllAsked compares all of them, and the shares of the pods.
func (r *run) compareAllAsked() error {
	for _, memory := range r.askedMemories() {
		seen := 0
		var key kernel.Flow
		var row bpf.MapsPolicyFlow
		for rows := memory.m.Iterate(); rows.Next(&key, &row); seen++ {
			flow := Flow{kernel.FlowSource(key), kernel.FlowDestination(key), key.Proto}
			if err := r.differAsked(memory.name, flow, &row, true, memory.want[flow]); err != nil {
				return err
			}
		}
		if seen != len(memory.want) {
			return fmt.Errorf("%s has %d rows, want %d", memory.name, seen, len(memory.want))
		}
	}
	for id, want := range r.node.shares {
		var row bpf.MapsPolicyShare
		err := r.kernel.maps.PolicyShares.Lookup(uint32(r.kernel.pods[id].index), &row)
		if have := int(row.Rows + row.Since); have != want || err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("the share of pod %d is %d, want %d: %w", id, have, want, err)
		}
	}
	return nil
}

// differAsked returns how a row differs from the model's.
func (r *run) differAsked(name string, flow Flow, row *bpf.MapsPolicyFlow, ok bool, want *Accepted) error {
	switch {
	case !ok && want == nil:
		return nil
	case !ok:
		return fmt.Errorf("%s has no row of %v, want %+v", name, flow, *want)
	}
	have := Accepted{
		Generation: row.Generation, Seen: row.Seen, Ends: uint8(row.Ends),
		Egress: row.Flags&uint16(bpf.MapsPolicyFlowFlagPOLICY_FLOW_EGRESS) != 0, ByNode: row.Flags&uint16(bpf.MapsPolicyFlowFlagPOLICY_FLOW_NODE) != 0,
		Denied: row.Flags&uint16(bpf.MapsPolicyFlowFlagPOLICY_FLOW_DENIED) != 0, DeniedAt: row.Denied,
	}
	for id, d := range r.kernel.pods {
		if d.index == int(row.Owner) {
			have.Owner = id
		}
	}
	if want == nil {
		return fmt.Errorf("%s has a row of %v that must not exist: %+v", name, flow, have)
	}
	if tag := row.Next; want.Next != 0 {
		key := nextKey{flow, want.Next}
		if known, ok := r.kernel.policies.tags[key]; ok && known != tag || tag == 0 {
			return fmt.Errorf("%s of %v says %#x of its receiver, want %#x, by generation %d: have %+v, want %+v", name, flow, tag, known, want.Next, have, *want)
		}
		r.kernel.policies.tags[key], have.Next = tag, want.Next
	} else if tag != 0 {
		return fmt.Errorf("%s of %v says that its receiver has accepted it", name, flow)
	}
	have.Itself = want.Itself // which the programs need not note
	if have != *want {
		return fmt.Errorf("%s of %v\nhave %+v\nwant %+v", name, flow, have, *want)
	}
	return nil
}
