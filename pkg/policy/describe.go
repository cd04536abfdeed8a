package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"fairlead.io/fairlead/pkg/model"
)

// selectorWords writes a selector as kubectl does, or "" if it selects all. What is not a plain word is
// quoted: it comes from others, and may end up on a terminal.
func selectorWords(s model.Selector) string {
	var parts []string
	for i := range s {
		label, values := word(s[i].Label), make([]string, 0, len(s[i].Values))
		for _, value := range s[i].Values {
			values = append(values, word(value))
		}
		list := strings.Join(values, ",")
		switch s[i].Operator {
		case model.In:
			if len(values) == 1 {
				parts = append(parts, label+"="+list)
				continue
			}
			parts = append(parts, fmt.Sprintf("%s in (%s)", label, list))
		case model.NotIn:
			parts = append(parts, fmt.Sprintf("%s notin (%s)", label, list))
		case model.Present:
			parts = append(parts, label)
		case model.Absent:
			parts = append(parts, "!"+label)
		case model.Greater:
			parts = append(parts, label+">"+list)
		case model.Less:
			parts = append(parts, label+"<"+list)
		}
	}
	return strings.Join(parts, ",")
}

// word returns a text as it is if it is a plain word.
func word(text string) string {
	if quoted := strconv.QuoteToASCII(text); text == "" || quoted != `"`+text+`"` || strings.ContainsAny(text, " ,()") {
		return quoted
	}
	return text
}

// PodSetWords says which pods a set is.
func PodSetWords(s *model.PodSet) string {
	pods := "all pods"
	if selector := selectorWords(s.Pods); selector != "" {
		pods = "pods " + selector
	}
	if s.Namespace != "" {
		return pods + " in namespace " + word(s.Namespace)
	}
	if selector := selectorWords(s.Namespaces); selector != "" {
		return pods + " in namespaces " + selector
	}
	return pods + " in all namespaces"
}

// PeerWords says what the peers of a rule are.
func PeerWords(rule *model.PolicyRule) []string {
	if rule.AnyPeer {
		return []string{"anybody"}
	}
	list := []string{}
	for i := range rule.Peers {
		switch peer := &rule.Peers[i]; {
		case peer.Pods != nil:
			list = append(list, PodSetWords(peer.Pods))
		case peer.Nodes != nil && len(*peer.Nodes) == 0:
			list = append(list, "all nodes")
		case peer.Nodes != nil:
			list = append(list, "nodes "+selectorWords(*peer.Nodes))
		case peer.Block != nil:
			text := peer.Block.Prefix.String()
			for at, except := range peer.Block.Except {
				text += []string{" except ", ", "}[min(at, 1)] + except.String()
			}
			list = append(list, text)
		}
	}
	return list
}

// PortWords says what the ports of a rule are.
func PortWords(rule *model.PolicyRule) []string {
	if rule.AnyPort {
		return []string{"anything"}
	}
	list := []string{}
	for _, span := range rule.Ports {
		list = append(list, spanWords(span.Protocol, uint32(span.First), uint32(span.Last)))
	}
	for _, named := range rule.Named {
		protocol := "any protocol"
		if named.Protocol != model.AnyProtocol {
			protocol = named.Protocol.String()
		}
		list = append(list, fmt.Sprintf("%s %q", protocol, named.Name))
	}
	return list
}

func spanWords(protocol model.Protocol, first, last uint32) string {
	switch {
	case first == last:
		return fmt.Sprintf("%s %d", protocol, first)
	case first <= 1 && last == 65535:
		return "all " + protocol.String()
	}
	return fmt.Sprintf("%s %d-%d", protocol, first, last)
}

// Span is a range of ports with one verdict.
type Span struct {
	Ports string // in words
	Verdict
}

// Spans returns what policies say of one direction of a subject and a peer, for all ports.
func (t *Tables) Spans(s SubjectOf) []Span {
	if s.Subject == 0 {
		return []Span{{"anything", Verdict{Accepted: true}}}
	}
	runs := t.decision(s.Subject, s.Direction, t.Class(s.Peer))
	if len(runs) == 1 {
		return []Span{{"anything", Verdict{runs[0].Accept, t.Rules[runs[0].Rule]}}}
	}
	var out []Span
	for at, run := range runs {
		for _, part := range protocolsOf(run.Key, end(runs, at)) {
			out = append(out, Span{part, Verdict{run.Accept, t.Rules[run.Rule]}})
		}
	}
	// What has no ports comes last, as what people think of last.
	slices.SortStableFunc(out, func(a, b Span) int { return last(a.Ports) - last(b.Ports) })
	return out
}

const otherWords = "what has no ports, such as ICMP"

func last(ports string) int {
	if ports == otherWords {
		return 1
	}
	return 0
}

// protocolsOf says what keys a run has, in words for each protocol.
func protocolsOf(from, to uint32) (list []string) {
	for _, p := range []struct {
		key      uint32
		protocol model.Protocol
	}{{otherKey, 0}, {tcpKey, model.TCP}, {udpKey, model.UDP}, {sctpKey, model.SCTP}} {
		first, end := max(from, p.key), min(to, p.key+1<<16)
		switch {
		case first >= end:
		case p.key == otherKey:
			list = append(list, otherWords)
		default:
			list = append(list, spanWords(p.protocol, first-p.key, end-1-p.key))
		}
	}
	return list
}

// SubjectOf is who is asked about, in which direction, and its other end.
type SubjectOf struct {
	Subject   uint32
	Direction model.Direction
	Peer      netip.Addr
}
