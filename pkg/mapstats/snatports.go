package mapstats

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/reasons"
)

// SnatPorts is the SNAT ports that this node lends to flows, each once per destination.
type SnatPorts struct {
	// Uses are of the destinations toward which most are in use, as of the agent's last pass over
	// the flows, by user: all flows but those of pods to the outside, all pods, a single pod.
	Uses          []SnatUse `json:"uses,omitempty"`
	RefusedLately uint64    `json:"refusedLately"`       // packets for which there was no port, in the last minutes
	RefusedEnd    time.Time `json:"refusedEnd,omitzero"` // when RefusedLately is zero again, if no more are refused
}

// SnatUse is how many SNAT ports are in use toward one destination.
type SnatUse struct {
	User        string         `json:"user"` // as the label of the metric: "others", "pods" or "one-pod"
	Used        int            `json:"used"`
	Limit       int            `json:"limit"`
	Protocol    string         `json:"protocol,omitempty"`
	Destination netip.AddrPort `json:"destination,omitzero"`
	Pod         netip.Addr     `json:"pod,omitzero"` // of "one-pod"
}

// usedUp is the part of the ports beyond which some flows find none: a flow tries 32 ports, so at
// four of five in use one in a thousand fails, and at nine of ten one in thirty.
const usedUp = 0.8

func (u *SnatUse) share() float64 { return float64(u.Used) / float64(max(1, u.Limit)) }

// who says whose flows use the ports.
func (u *SnatUse) who() string {
	switch u.User {
	case "others":
		return "clients' flows"
	case "pods":
		return "pods' flows"
	}
	return "flows of pod " + u.Pod.String()
}

func (u *SnatUse) text() string {
	return fmt.Sprintf("%s to %s/%s use %d of %d SNAT ports", u.who(), u.Destination, u.Protocol, u.Used, u.Limit)
}

// Text returns the line shown in the status.
func (s *SnatPorts) Text() string {
	var words []string
	for i := range s.Uses {
		if s.Uses[i].Used > 0 {
			words = append(words, s.Uses[i].text())
		}
	}
	return strings.Join(words, "; ")
}

// Fullest returns the use that leaves least. Nil: there is none.
func (s *SnatPorts) Fullest() *SnatUse {
	var most *SnatUse
	for i := range s.Uses {
		if u := &s.Uses[i]; u.Used > 0 && (most == nil || u.share() > most.share()) {
			most = u
		}
	}
	return most
}

// cure says how those who use the ports get more.
func (u *SnatUse) cure() string {
	if u.User == "others" {
		return "More backends, more nodes that clients come to, or a larger --snat-ports give room for more; externalTrafficPolicy: Local and --dsr need no ports. " +
			"If pods are masqueraded, their flows have the other half of --snat-ports."
	}
	share := "Pods have half of --snat-ports, and each of them half of that."
	return share + " Spread the pods over more nodes, have them keep fewer connections to one address and port, or give the destination more addresses; a larger --snat-ports gives room for more."
}

// Findings says that ports are used up. Conntrack-max has nothing to do with it.
func (s *SnatPorts) Findings(say func(string, ...any)) {
	if s == nil || s.RefusedLately == 0 {
		return
	}
	over := overBy("more are refused", s.RefusedEnd)
	most := s.Fullest()
	switch {
	case most == nil:
		say("Of new flows, %d packets were refused in the last minutes, since all SNAT ports toward their destination were in use. No flow uses one now.%s", s.RefusedLately, over)
	case most.share() < usedUp:
		say("Of new flows, %d packets were refused in the last minutes, since all SNAT ports toward their destination were in use. Ports are free again: at most, %s.%s",
			s.RefusedLately, most.text(), over)
	default:
		say("SNAT ports are used up: %s. Of new flows, %d packets were refused in the last minutes. "+
			"\"fairlead conntrack list\" shows who keeps so many. %s%s", most.text(), s.RefusedLately, most.cure(), over)
	}
}

// refusedForPorts returns how many packets found no SNAT port.
func refusedForPorts(counters []reasons.Counter) (n uint64) {
	for _, c := range counters {
		if c.Reason == "no-port" {
			n += c.Packets
		}
	}
	return n
}
