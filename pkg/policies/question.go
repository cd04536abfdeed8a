package policies

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policy"
)

// Ports says which ports a question is about: one, or all. AnyProtocol with One set stands for what has no
// ports.
type Ports struct {
	One      bool
	Protocol model.Protocol
	Port     uint16
}

// ParsePorts reads PORT, PORT/PROTOCOL, "icmp", or "" for all ports.
func ParsePorts(text string) (Ports, error) {
	switch text {
	case "":
		return Ports{}, nil
	case "icmp":
		return Ports{One: true}, nil
	}
	number, name, found := strings.Cut(text, "/")
	if !found {
		name = "tcp"
	}
	port, err := strconv.ParseUint(number, 10, 16)
	for _, protocol := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		if err == nil && name == protocol.String() {
			return Ports{true, protocol, uint16(port)}, nil
		}
	}
	return Ports{}, fmt.Errorf("port %q: write PORT, PORT/tcp, PORT/udp, PORT/sctp or icmp", text)
}

// String is the inverse of ParsePorts.
func (p Ports) String() string {
	switch {
	case !p.One:
		return ""
	case p.Protocol == model.AnyProtocol:
		return "icmp"
	}
	return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
}

// Question asks what policies say about what From sends to To. Each is an address, NAMESPACE/NAME of a pod, or
// "node".
type Question struct {
	From, To string
	Ports    Ports
}

// End is one of the two ends of a question.
type End struct {
	Address netip.Addr `json:"address"`
	Pod     model.Name `json:"pod,omitzero"` // of this node
	Where   string     `json:"where"`
}

// SpanView is the verdict on some ports.
type SpanView struct {
	Ports    string `json:"ports"`
	Accepted bool   `json:"accepted"`
	Policy   string `json:"policy,omitempty"`
	Rule     int    `json:"rule,omitempty"` // its position, from 1
	By       string `json:"by"`             // in words
}

// Judgment is what this node decides in one direction.
type Judgment struct {
	Pod       model.Name `json:"pod"`
	Direction string     `json:"direction"`
	Spans     []SpanView `json:"spans"`
}

// The outcomes.
const (
	Accepted = "accepted"
	Denied   = "denied"
	Depends  = "depends on the port"
	// Audited is the outcome of what is denied on a node where policies are only audited.
	Audited = "accepted, but would be denied if policies were enforced"
)

// Answer is what policies say about two addresses.
type Answer struct {
	From      End        `json:"from"`
	To        End        `json:"to"`
	Ports     string     `json:"ports,omitempty"`
	Outcome   string     `json:"outcome"` // on this node
	Judgments []Judgment `json:"judgments"`
	Notes     []string   `json:"notes,omitempty"`
}

// Explain answers a question, once for each family that both ends have.
func (c *Controller) Explain(q Question) ([]Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from, err := c.ends(q.From)
	to, err2 := c.ends(q.To)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	notes, list := c.notes(), []Answer{}
	for _, src := range from {
		for _, dst := range to {
			if src.Address.Is4() == dst.Address.Is4() {
				answer := c.answer(src, dst, q.Ports)
				answer.Notes = append(answer.Notes, notes...)
				list = append(list, answer)
			}
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s and %s have no addresses of the same family", q.From, q.To)
	}
	return list, nil
}

// ends returns what a text stands for, at most one of each family.
func (c *Controller) ends(text string) ([]End, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return []End{c.end(addr.Unmap().WithZone(""))}, nil
	}
	var addrs []netip.Addr
	namespace, name, isPod := strings.Cut(text, "/")
	switch {
	case text == "node":
		for addr := range c.compiler.Tables().Self {
			addrs = append(addrs, addr)
		}
		slices.SortFunc(addrs, netip.Addr.Compare)
	case isPod:
		addrs = c.compiler.Addrs(model.Name{Namespace: namespace, Name: name})
	}
	var list []End
	for _, addr := range addrs {
		if !slices.ContainsFunc(list, func(e End) bool { return e.Address.Is4() == addr.Unmap().Is4() }) {
			list = append(list, c.end(addr.Unmap()))
		}
	}
	if len(list) > 0 {
		return list, nil
	}
	if isPod && !c.listed {
		return nil, fmt.Errorf("no pod %q is on this node, and no policy needs those of others, so their addresses are not known: give its address", text)
	}
	return nil, fmt.Errorf("%q is unknown here: write an address, NAMESPACE/NAME of a pod, or \"node\"", text)
}

func (c *Controller) end(addr netip.Addr) End {
	e := End{Address: addr, Where: "neither a pod that is known nor this node"}
	if row, found := c.compiler.Tables().Pods[addr]; found {
		e.Pod, e.Where = row.Pod, "pod "+row.Pod.String()+" of this node"
	} else if _, self := c.compiler.Tables().Self[addr]; self {
		e.Where = "this node"
	} else if namespace, known := c.compiler.Namespace(addr); known {
		e.Where = "a pod of namespace " + namespace + " on another node"
	}
	return e
}

func (c *Controller) answer(from, to End, ports Ports) Answer {
	a := Answer{From: from, To: to, Ports: ports.String(), Judgments: []Judgment{}}
	t := c.compiler.Tables()
	if from.Address == to.Address {
		a.Outcome, a.Notes = Accepted, []string{"A pod may talk to itself."}
		return a
	}
	_, byNode := t.Self[from.Address]
	if from.Pod.Name != "" {
		a.Judgments = append(a.Judgments, c.judge(from, model.Egress, to.Address, ports))
	} else if !byNode {
		a.Notes = append(a.Notes, fmt.Sprintf("%s is no pod of this node: what policies say about what it sends, its own node decides.", from.Address))
	}
	switch {
	case to.Pod.Name == "":
		a.Notes = append(a.Notes, fmt.Sprintf("%s is no pod of this node: what policies say about what it receives, its own node decides.", to.Address))
	case byNode:
		a.Judgments = append(a.Judgments, Judgment{to.Pod, model.Ingress.String(), []SpanView{spanView(policy.Span{Ports: "anything", Verdict: policy.Verdict{Accepted: true, Rule: policy.Rule{Why: policy.FromItsNode}}})}})
		a.Notes = append(a.Notes, "This holds for what processes of the node send. What the node sends on for others is judged by who sent it.")
	default:
		a.Judgments = append(a.Judgments, c.judge(to, model.Ingress, from.Address, ports))
	}
	a.Outcome = outcome(a.Judgments)
	if a.Outcome == Denied && c.Mode == "audit" {
		a.Outcome = Audited
	}
	return a
}

// judge returns what this node decides about one of its pods.
func (c *Controller) judge(pod End, direction model.Direction, peer netip.Addr, ports Ports) Judgment {
	t := c.compiler.Tables()
	subject, out := t.Pods[pod.Address].Subject, Judgment{Pod: pod.Pod, Direction: direction.String()}
	if ports.One {
		verdict := t.Decide(subject, direction, peer, ports.Protocol, ports.Port)
		out.Spans = []SpanView{spanView(policy.Span{Ports: ports.String(), Verdict: verdict})}
		return out
	}
	for _, span := range t.Spans(policy.SubjectOf{Subject: subject, Direction: direction, Peer: peer}) {
		out.Spans = append(out.Spans, spanView(span))
	}
	return out
}

func spanView(s policy.Span) SpanView {
	return SpanView{Ports: s.Ports, Accepted: s.Accepted, Policy: s.Rule.Object(), Rule: s.Rule.Position(), By: s.Rule.String()}
}

func outcome(list []Judgment) string {
	some, all := false, false // are denied
	for _, j := range list {
		denied := 0
		for _, s := range j.Spans {
			if !s.Accepted {
				denied++
			}
		}
		some, all = some || denied > 0, all || denied == len(j.Spans)
	}
	switch {
	case all:
		return Denied
	case some:
		return Depends
	}
	return Accepted
}
