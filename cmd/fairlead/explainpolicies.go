package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/explain"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/policies"
	"fairlead.io/fairlead/pkg/reasons"
)

// maxJudged is for how many backends policies are asked.
const maxJudged = 8

// policyVerdict is what policies say about the first packet, if it goes to one address.
type policyVerdict struct {
	policies.Answer
	// Program is what the program at the device of a pod of this node did with the packet, on trial.
	Program *explain.Trial `json:"program,omitempty"`
}

// judging asks what policies say about one connection.
type judging struct {
	cfg    *config.Config
	q      *explain.Question
	e      *explain.Explanation
	source netip.AddrPort // of the packet that is tried; not valid for a process of the node
}

// judge adds what policies say about the addresses to which the connection may go. Nothing is added if no policy can say
// anything about it here.
func (e *explanation) judge(ctx context.Context, cfg *config.Config, src string, q *explain.Question) error {
	j := judging{cfg: cfg, q: q, e: e.Explanation}
	if q.Client.IsValid() && !q.Client.IsLoopback() && !q.Client.IsUnspecified() {
		var err error
		if j.source, err = clientOf(src); err != nil {
			return config.UsageError{Err: err}
		}
	}
	for _, to := range j.destinations() {
		v, err := j.about(ctx, to)
		if err != nil {
			return err
		}
		if len(v.Judgments) > 0 {
			e.Policies = append(e.Policies, v)
		}
	}
	if len(e.Policies) == 0 {
		return nil
	}
	j.tryDialed(ctx, e.Policies)
	for i := range e.Policies {
		e.Policies[i].settle()
	}
	e.addVerdict()
	return nil
}

// destinations returns where the first packet may go, in the form in which policies see it.
func (j *judging) destinations() (list []netip.AddrPort) {
	switch {
	case j.e.Next != nil:
		return []netip.AddrPort{*j.e.Next}
	case j.e.Outcome == explain.LeftAlone:
		return []netip.AddrPort{j.e.Destination}
	case j.e.Outcome == explain.ToBackend:
		for i := range j.e.Candidates[:min(len(j.e.Candidates), maxJudged)] {
			list = append(list, j.e.Candidates[i].Address)
		}
	}
	return list
}

// about asks the agent about one address, and has it run the program; without an agent it asks the maps.
func (j *judging) about(ctx context.Context, to netip.AddrPort) (v policyVerdict, err error) {
	from := "node"
	if j.source.IsValid() {
		from = j.source.Addr().String()
	}
	question := policies.Question{From: from, To: to.Addr().String(), Ports: policies.Ports{One: true, Protocol: j.q.Protocol, Port: to.Port()}}
	answers, err := client(j.cfg).ExplainPolicies(ctx, question)
	switch {
	case unreachable(err):
		return j.byMaps(to, question.Ports.String())
	case err != nil || len(answers) == 0: // it enforces none, or knows neither end
		return v, nil
	}
	v.Answer = answers[0]
	if len(v.Judgments) > 0 && j.source.Addr() != to.Addr() {
		v.try(j.trial(ctx, to))
	}
	return v, nil
}

// trial has the agent run the program at a pod's device.
func (j *judging) trial(ctx context.Context, to netip.AddrPort) (explain.Trial, error) {
	source := j.source
	if !source.IsValid() {
		source = netip.AddrPortFrom(model.FamilyOf(to.Addr()).Unspecified(), anyPort)
	}
	return client(j.cfg).Try(ctx, &explain.TrialQuestion{AtPod: true, Source: source, Destination: to, Protocol: j.q.Protocol.String()})
}

func (v *policyVerdict) try(t explain.Trial, err error) {
	if err != nil {
		v.Notes = append(v.Notes, fmt.Sprintf("The program could not be run, so this is what the agent has compiled: %v.", err))
		return
	}
	v.Program = nil
	if t.Outcome != explain.TrialInside {
		v.Program = &t
	}
}

// tryDialed has the program at the pod's device choose the backend, if that is where it is chosen.
func (j *judging) tryDialed(ctx context.Context, list []policyVerdict) {
	if j.e.Forwarding != explain.ByPodDevice {
		return
	}
	t, err := j.trial(ctx, j.e.Destination)
	chosen := slices.IndexFunc(list, func(v policyVerdict) bool { return v.To.Address == t.Backend.Addr() })
	if err == nil && chosen >= 0 {
		list[chosen].Program = &t
		j.e.Notes = append(j.e.Notes, fmt.Sprintf("From port %d, the program at the pod's device chooses %s.", j.source.Port(), t.Backend))
	}
	for i := range list {
		if list[i].From.Address == list[i].To.Address && list[i].Program == nil {
			list[i].Notes = append(list[i].Notes, "By a Service a pod reaches itself only if it may send and receive that; to see it, give SRC a port from which it gets this backend.")
		}
	}
}

// byMaps asks the maps, which name rules by number.
func (j *judging) byMaps(to netip.AddrPort, ports string) (v policyVerdict, err error) {
	found, err := explain.Judge(mapsDir(j.cfg), j.source.Addr(), to, j.q.Protocol)
	if err != nil || len(found) == 0 {
		return v, err
	}
	v.Answer = policies.Answer{
		From: policies.End{Address: j.source.Addr(), Where: "not a pod that policies of this node are about"}, Ports: ports, Outcome: policies.Accepted,
		To:    policies.End{Address: to.Addr(), Where: "not a pod that policies of this node are about"},
		Notes: []string{"No agent answers, so this is what the maps say that the program reads, and rules have only numbers."},
	}
	if !j.source.IsValid() {
		v.From = policies.End{Address: model.FamilyOf(to.Addr()).Unspecified(), Where: "this node"}
	}
	for _, f := range found {
		end := &v.From
		if f.Direction == model.Ingress.String() {
			end = &v.To
		}
		end.Where = "a pod of this node"
		span := policies.SpanView{Ports: ports, Accepted: f.Accepted, By: explain.RuleText(f.Rule)}
		v.Judgments = append(v.Judgments, policies.Judgment{Direction: f.Direction, Spans: []policies.SpanView{span}})
		switch {
		case !f.Accepted && !f.Audit:
			v.Outcome = policies.Denied
		case !f.Accepted && v.Outcome == policies.Accepted:
			v.Outcome = policies.Audited
		}
	}
	return v, nil
}

// settle makes the program's verdict the outcome. The agent's may be of rules that are not in force yet.
func (v *policyVerdict) settle() {
	p, outcome := v.Program, policies.Accepted
	switch {
	case p == nil:
		return
	case p.Outcome == explain.TrialDrop && p.Reason != reasons.Policy:
		v.Notes = append(v.Notes, fmt.Sprintf("The program drops the packet for another reason: %s.", p.Reason))
		return
	case p.Outcome == explain.TrialDrop:
		outcome = policies.Denied
	case len(p.Denials) > 0:
		outcome = policies.Audited
	}
	if outcome != v.Outcome {
		v.Notes = append(v.Notes, fmt.Sprintf("By what the agent has compiled it would be: %s. That may not be in force yet; ask again.", v.Outcome))
	}
	v.Outcome = outcome
}

// by returns who denies it.
func (v *policyVerdict) by() string {
	if v.Program != nil && len(v.Program.Denials) > 0 {
		return v.Program.Denials[0].By
	}
	for _, j := range v.Judgments {
		for _, s := range j.Spans {
			if !s.Accepted {
				return s.By
			}
		}
	}
	return "unknown"
}

// addVerdict says in one line what the verdicts mean for the connection.
func (e *explanation) addVerdict() {
	counts, by := map[string]int{}, map[string]string{}
	for i := range e.Policies {
		v := &e.Policies[i]
		counts[v.Outcome]++
		by[v.Outcome] = v.by()
	}
	asked, of := len(e.Policies), max(len(e.Candidates), len(e.Policies))
	if e.Next != nil {
		of = 1
	}
	switch denied, audited := counts[policies.Denied], counts[policies.Audited]; {
	case denied == of:
		e.Verdict = "denied: " + by[policies.Denied]
		e.Deny()
	case denied > 0:
		e.Verdict = fmt.Sprintf("%d of %d backends are denied, see below", denied, of)
	case audited == of:
		e.Verdict = policies.Audited + ": " + by[policies.Audited]
	case audited > 0:
		e.Verdict = fmt.Sprintf("accepted, but %d of %d backends would be denied if policies were enforced, see below", audited, of)
	case of > maxJudged && asked == maxJudged:
		e.Verdict = fmt.Sprintf("accepted, for %d of %d backends that were asked about", asked, of)
	default:
		e.Verdict = policies.Accepted
	}
}

func writeVerdicts(w io.Writer, list []policyVerdict) error {
	for i := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := writeAnswer(w, &list[i].Answer, list[i].programLines()); err != nil {
			return err
		}
	}
	return nil
}

// programLines says what the program did.
func (v *policyVerdict) programLines() []string {
	p := v.Program
	if p == nil {
		return nil
	}
	text := "the packet goes on"
	if p.Outcome == explain.TrialDrop {
		text = "the packet is dropped, reason " + p.Reason
	}
	var by []string
	for _, d := range p.Denials {
		by = append(by, d.By)
	}
	if len(by) > 0 {
		text += " (denied by " + strings.Join(by, "; ") + ")"
	}
	return []string{fmt.Sprintf("  program at %s: %s", p.Device, text)}
}
