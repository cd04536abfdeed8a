package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/bpf"
	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reasons"
	"fairlead.io/fairlead/pkg/trial"
)

// try runs the programs on a packet, for a client of the API.
func (a *agent) try(q explain.TrialQuestion) (explain.Trial, error) {
	p := trial.Packet{
		Source:      netip.AddrPortFrom(q.Source.Addr().Unmap().WithZone(""), q.Source.Port()),
		Destination: netip.AddrPortFrom(q.Destination.Addr().Unmap().WithZone(""), q.Destination.Port()),
		Device:      q.Device,
	}
	switch q.Protocol {
	case "tcp":
		p.Protocol = unix.IPPROTO_TCP
	case "udp":
		p.Protocol = unix.IPPROTO_UDP
	case "sctp":
		p.Protocol = unix.IPPROTO_SCTP
	default:
		return explain.Trial{}, fmt.Errorf("try a packet: unknown protocol %q: use tcp, udp or sctp", q.Protocol)
	}
	if p.Source.Addr().Is4() != p.Destination.Addr().Is4() {
		return explain.Trial{}, errors.New("try a packet: the client and the destination are of different families")
	}
	if q.AtPod {
		return a.tryAtPod(p)
	}
	result, err := a.path.Try(p)
	if err != nil {
		return explain.Trial{}, err
	}
	trial, err := trialOf(&result)
	if err == nil && trial.Outcome == explain.TrialBackend {
		keys := lb.NewHashKeys(a.cfg.HashSeed)
		trial.Numbers = &explain.Numbers{Flow: keys.Flow(p.Source, p.Destination.Port()), Client: keys.Client(p.Source.Addr())}
	}
	return trial, err
}

// tryAtPod runs the program at a pod's device, and puts into words what policies deny.
func (a *agent) tryAtPod(p trial.Packet) (explain.Trial, error) {
	result, err := a.path.TryAtPod(p)
	if err != nil {
		return explain.Trial{}, err
	}
	t, err := trialOf(&result)
	if t.Outcome == explain.TrialStack {
		t.Outcome = explain.TrialPassed
	}
	for _, d := range result.Denials {
		t.Denials = append(t.Denials, explain.TrialDenial{
			Direction: model.Direction(d.Direction).String(), Rule: d.Rule, By: cmp.Or(a.enforcer.name(d.Rule), explain.RuleText(d.Rule)),
		})
	}
	return t, err
}

// trialOf translates the result of a trial into words.
func trialOf(r *trial.Result) (explain.Trial, error) {
	t := explain.Trial{Device: r.Device, Way: r.Way}
	switch {
	case r.Inside:
		return explain.Trial{Outcome: explain.TrialInside}, nil
	case r.Idle:
		return explain.Trial{Outcome: explain.TrialIdle}, nil
	}
	var err error
	if t.Hook, t.Reason, err = reasons.WordsOf(int(r.Hook), int(r.Reason)); err != nil {
		return t, err
	}
	if r.Reason == bpf.MapsReasonREASON_NONE {
		t.Reason = ""
	}
	switch {
	case r.Dropped:
		t.Outcome, t.Rejected = explain.TrialDrop, r.Answer
	case r.Row == nil:
		t.Outcome = explain.TrialStack
	default:
		t.Outcome, t.Known, t.Forwarding = explain.TrialBackend, r.Known, explain.ForwardingOf(r.Row)
	}
	if r.Row != nil {
		t.Source = netip.AddrPortFrom(maps.NetipOf(r.Row.Saddr), maps.PortOf(r.Row.Sport))
		t.Backend = netip.AddrPortFrom(maps.NetipOf(r.Row.Daddr), maps.PortOf(r.Row.Dport))
		if r.Row.Dmac != [6]uint8{} {
			t.NextHop = net.HardwareAddr(r.Row.Dmac[:]).String()
		}
	}
	return t, nil
}
