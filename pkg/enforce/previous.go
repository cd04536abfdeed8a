package enforce

import (
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	kernel "fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// previous is what is in force when a Writer begins.
type previous struct {
	tables *policy.Tables // without rules, and with numbers of its own for decisions
	pods   map[uint32]bpf.MapsPolicySubject
}

// kept is a generation that a pod has kept from a former agent, as long as the compiler gives it this one.
type kept struct{ compiled, generation uint32 }

// readPrevious reads a version from the maps.
func (w *Writer) readPrevious(version uint32) (*previous, error) {
	f := &previous{tables: policy.NewTables(), pods: map[uint32]bpf.MapsPolicySubject{}}
	peers, err := all[kernel.Addr, bpf.MapsPolicyClass](w.maps.PolicyPeers)
	regions, err2 := all[bpf.MapsPrefixKey, bpf.MapsPolicyClass](w.maps.PolicyRegions)
	views, err3 := all[bpf.MapsPolicyView, bpf.MapsPolicyClass](w.maps.PolicyViews)
	decisions, err4 := all[bpf.MapsPolicyDecisionKey, bpf.MapsPolicyDecision](w.maps.PolicyDecisions)
	pods, err5 := all[uint32, bpf.MapsPolicyPod](w.maps.PolicyPods)
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	for addr, row := range peers {
		f.tables.Peers[kernel.NetipOf(addr)] = row.Class[version]
	}
	prefixes := map[netip.Prefix]uint32{}
	for prefix, row := range regions {
		prefixes[kernel.PrefixOf(prefix)] = row.Class[version]
	}
	f.tables.SetRegions(prefixes)
	for view, row := range views {
		f.tables.Views[policy.View{Scope: view.Scope, Class: view.Class}] = row.Class[version]
	}
	numbers := map[bpf.MapsPolicyPorts]uint32{}
	for key, row := range decisions {
		ports := row.Ports[version]
		if ports.Count == 0 {
			continue
		}
		number, known := numbers[ports]
		if !known {
			number = uint32(len(numbers)) + 1
			numbers[ports] = number
		}
		f.tables.Rows[policy.Row{Subject: key.Subject, Direction: model.Direction(key.Direction), Reduced: key.Class}] = number
		if !known {
			runs, err := w.readRuns(ports)
			if err != nil {
				return nil, err
			}
			f.tables.Decisions[number] = runs
		}
	}
	for index, row := range pods {
		s := row.Subject[version]
		f.pods[index], f.tables.Subjects[s.Subject] = s, s.Scope
	}
	return f, nil
}

// readRuns returns the runs of a decision. Of one that somebody has damaged so that they are not in order, it cannot
// be said what it accepts: it may be anything.
func (w *Writer) readRuns(ports bpf.MapsPolicyPorts) (runs []policy.Run, err error) {
	for i := range ports.Count {
		var row bpf.MapsPolicyRun
		err := w.maps.PolicyRuns.Lookup(ports.First+i, &row)
		if errors.Is(err, ebpf.ErrKeyNotExist) { // somebody has damaged the decision: nothing is accepted by what is not there
			return append(runs, policy.Run{}), nil
		}
		if err != nil {
			return nil, err
		}
		if len(runs) > 0 && row.From <= runs[len(runs)-1].Key {
			return everything, nil
		}
		runs = append(runs, policy.Run{Key: row.From, Accept: row.Verdict>>31 == 1, Rule: row.Verdict &^ (1 << 31)})
	}
	return runs, nil
}

// keepGenerations lets pods keep the generations that a former agent gave them, unless something may be denied to
// them that it accepted: so the flows of the others are not judged anew because an agent starts. What a flow was
// accepted by need not be in the maps any longer, such as a pod that has gone, whose address another one may get
// now. So flows have to be accepted too.
func (w *Writer) keepGenerations(t *policy.Tables, devices map[netip.Addr][]uint32) {
	w.kept = map[uint32]kept{}
	outlived, err := w.outlived(t, devices)
	if err != nil { // then nobody keeps his
		return
	}
	narrowed := policy.Narrowed(w.previous.tables, t)
	for index, is := range w.wantedPods(t, devices) {
		was, known := w.previous.pods[index]
		if !known || was.Generation == 0 || was.Flags != is.Flags || outlived[index] || narrowed(was.Subject, is.Subject) {
			continue
		}
		w.kept[index] = kept{is.Generation, was.Generation}
	}
}

// outlived returns the devices of pods that have flows which were accepted and are not by these tables.
func (w *Writer) outlived(t *policy.Tables, devices map[netip.Addr][]uint32) (map[uint32]bool, error) {
	out := map[uint32]bool{}
	if w.audit { // what is denied has such a row too
		return out, nil
	}
	err := w.maps.EachPolicyFlow(func(keys []kernel.Flow, rows []kernel.PolicyFlow) error {
		for i := range keys {
			pod, flags := kernel.FlowSource(keys[i]), bpf.MapsPolicyFlowFlag(rows[i].Flags)
			if flags&(bpf.MapsPolicyFlowFlagPOLICY_FLOW_DENIED|bpf.MapsPolicyFlowFlagPOLICY_FLOW_NODE) != 0 {
				continue
			}
			for _, index := range devices[pod.Addr()] {
				if !out[index] && rows[i].Generation == w.previous.pods[index].Generation && !accepts(t, &keys[i], flags) {
					out[index] = true
				}
			}
		}
		return nil
	})
	return out, err
}

// accepts reports whether tables accept the flow of a row, whose key is that of what the pod sends.
func accepts(t *policy.Tables, key *kernel.Flow, flags bpf.MapsPolicyFlowFlag) bool {
	pod, peer := kernel.FlowSource(*key), kernel.FlowDestination(*key)
	direction, port, protocol := model.Ingress, pod.Port(), model.AnyProtocol
	if flags&bpf.MapsPolicyFlowFlagPOLICY_FLOW_EGRESS != 0 {
		direction, port = model.Egress, peer.Port()
	}
	if p := model.Protocol(key.Proto); p == model.TCP || p == model.UDP || p == model.SCTP { // all others have no ports
		protocol = p
	}
	return t.Decide(t.Pods[pod.Addr()].Subject, direction, peer.Addr(), protocol, port).Accepted
}
