package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// Judgment is what the maps say that policies decide about the first packet of a connection, which a pod of this node
// sends or receives.
type Judgment struct {
	Pod       netip.Addr
	Direction string // as the pod sees it
	Accepted  bool
	Rule      uint32 // the number of the rule that decides
	Audit     bool   // what is denied goes on, and is only reported
}

// RuleText names the rule with a number, as far as it needs no agent to know what that means.
func RuleText(number uint32) string {
	switch bpf.MapsPolicyRule(number) {
	case bpf.MapsPolicyRulePOLICY_RULE_NONE:
		return "no policy denies it"
	case bpf.MapsPolicyRulePOLICY_RULE_UNKNOWN:
		return "it is not known yet which policies select the pod"
	case bpf.MapsPolicyRulePOLICY_RULE_PACKET:
		return "the packet does not tell which flow it belongs to"
	case bpf.MapsPolicyRulePOLICY_RULE_NODE:
		return "the node of a pod may talk to it"
	}
	return fmt.Sprintf("rule %d", number)
}

// Judge asks the maps of policies pinned in dir what they say about a packet, row by row as the program does, and writes
// nothing. There is one Judgment for each direction that this node decides about and a policy may say something about.
func Judge(dir string, from netip.Addr, to netip.AddrPort, protocol model.Protocol) (list []Judgment, err error) {
	m, err := maps.Open(dir, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if from == to.Addr() {
		return nil, nil // a pod may talk to itself
	}
	self, err := maps.NodeAddrList(m.NodeAddrs)
	if err != nil {
		return nil, err
	}
	j := judge{m: m, port: portKey(protocol, to.Port())}
	if err := m.PolicyState.Lookup(uint32(0), &j.state); err != nil {
		return nil, fmt.Errorf("read which policies are in force: %w", err)
	}
	j.byNode = !from.IsValid() || from.IsUnspecified() || slices.Contains(self, from)
	for direction, ends := range map[bpf.MapsPolicyDirection][2]netip.Addr{
		bpf.MapsPolicyDirectionPOLICY_EGRESS: {from, to.Addr()}, bpf.MapsPolicyDirectionPOLICY_INGRESS: {to.Addr(), from},
	} {
		found, err := j.pod(ends[0], ends[1], direction)
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	slices.SortFunc(list, func(a, b Judgment) int { return len(a.Direction) - len(b.Direction) }) // egress first
	return list, nil
}

// judge asks about one protocol and port.
type judge struct {
	m      *maps.Maps
	state  bpf.MapsPolicyState
	port   uint32 // as a key among runs
	byNode bool   // a process of the node sends it
}

// portKey returns the key of a protocol and port among runs.
func portKey(protocol model.Protocol, port uint16) uint32 {
	key := bpf.MapsPolicyProtocolPOLICY_OTHER
	switch protocol {
	case model.TCP:
		key = bpf.MapsPolicyProtocolPOLICY_TCP
	case model.UDP:
		key = bpf.MapsPolicyProtocolPOLICY_UDP
	case model.SCTP:
		key = bpf.MapsPolicyProtocolPOLICY_SCTP
	}
	return uint32(key)<<bpf.MapsPolicyProtocolPOLICY_PROTOCOL_SHIFT | uint32(port)
}

// lookup reads a row, unless there is none.
func lookup(m *ebpf.Map, key, row any) (bool, error) {
	err := m.Lookup(key, row)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read what policies say: %w", err)
	}
	return true, nil
}

// pod judges what the pod of this node that has an address sends to or receives from a peer. It returns nothing if there
// is no such pod, or no policy is about it.
func (j *judge) pod(addr, peer netip.Addr, direction bpf.MapsPolicyDirection) ([]Judgment, error) {
	if !addr.IsValid() {
		return nil, nil
	}
	var pod bpf.MapsPod
	there, err := lookup(j.m.Pods, maps.AddrOf(addr), &pod)
	if err != nil || !there || pod.Flags&uint32(bpf.MapsPodFlagPOD_POLICY) == 0 {
		return nil, err
	}
	out := Judgment{Pod: addr, Direction: model.Direction(direction).String()}
	var row bpf.MapsPolicyPod
	known, err := lookup(j.m.PolicyPods, pod.Ifindex, &row)
	subject := row.Subject[j.version()]
	out.Audit = subject.Flags&uint32(bpf.MapsPolicySubjectFlagPOLICY_AUDIT) != 0
	switch {
	case err != nil:
		return nil, err
	case known && subject.Subject == 0:
		return nil, nil
	case direction == bpf.MapsPolicyDirectionPOLICY_INGRESS && j.byNode:
		out.Accepted, out.Rule = true, uint32(bpf.MapsPolicyRulePOLICY_RULE_NODE)
	case !known:
		out.Rule = uint32(bpf.MapsPolicyRulePOLICY_RULE_UNKNOWN)
	default:
		out.Accepted, out.Rule, err = j.decide(subject, peer, direction)
	}
	return []Judgment{out}, err
}

func (j *judge) version() uint32 { return j.state.Version % 2 }

// decide does what policy_decide of bpf/lib/policy.h does.
func (j *judge) decide(s bpf.MapsPolicySubject, peer netip.Addr, direction bpf.MapsPolicyDirection) (accepted bool, rule uint32, err error) {
	view := bpf.MapsPolicyView{Scope: s.Scope}
	if view.Class, err = j.classOf(peer); err != nil {
		return false, 0, err
	}
	var reduced bpf.MapsPolicyClass
	if _, err = lookup(j.m.PolicyViews, view, &reduced); err != nil {
		return false, 0, err
	}
	key := bpf.MapsPolicyDecisionKey{Subject: s.Subject, Class: reduced.Class[j.version()], Direction: uint32(direction)}
	var row bpf.MapsPolicyDecision
	if _, err = lookup(j.m.PolicyDecisions, key, &row); err == nil && row.Ports[j.version()].Count == 0 {
		key.Class = 0
		_, err = lookup(j.m.PolicyDecisions, key, &row)
	}
	if err != nil {
		return false, 0, err
	}
	return j.run(row.Ports[j.version()])
}

// classOf returns the class of an address.
func (j *judge) classOf(peer netip.Addr) (uint32, error) {
	var class bpf.MapsPolicyClass
	there, err := lookup(j.m.PolicyPeers, maps.AddrOf(peer), &class)
	if err == nil && !there {
		_, err = lookup(j.m.PolicyRegions, bpf.MapsPrefixKey{PrefixLen: 128, Addr: maps.AddrOf(peer)}, &class)
	}
	return class.Class[j.version()], err
}

// run returns the verdict of the run of ports that the port is in: the last that does not begin beyond it.
func (j *judge) run(ports bpf.MapsPolicyPorts) (accepted bool, rule uint32, err error) {
	const accepts = 1 << 31
	verdict := uint32(bpf.MapsPolicyRulePOLICY_RULE_UNKNOWN)
	for at := range ports.Count {
		var run bpf.MapsPolicyRun
		if err := j.m.PolicyRuns.Lookup(ports.First+at, &run); err != nil {
			return false, 0, fmt.Errorf("read what policies say: %w", err)
		}
		if run.From > j.port {
			break
		}
		verdict = run.Verdict
	}
	return verdict&accepts != 0, verdict &^ accepts, nil
}
