package main

import (
	"context"
	"errors"
	"fmt"

	"fairlead.io/fairlead/test/bench/kubeproxy"
	"fairlead.io/fairlead/test/bench/result"
	"fairlead.io/fairlead/test/bench/round"
)

// How many packets a node must forward at least, as a multiple of what others do.
const (
	goalOverTC    = 2.2 // of XDP, beside tc
	goalOverRules = 3.2 // of XDP, beside kube-proxy's rules
	goalTCOver    = 1.3 // of tc, beside kube-proxy's rules
)

const (
	rateFlows   = 1000
	ratePackets = 60_000
)

// The ways to balance.
const (
	routing = "no translation"
	byXDP   = "XDP"
	byTC    = "tc"
)

func byRules(mode string) string { return "kube-proxy " + mode }

// The services, by the location of the backend.
const (
	here = iota
	there
)

// rateRows returns the rows of the rates, in the order of services.
func rateRows() []string {
	return []string{"rate, to a pod of the node", "rate, to a pod of another node"}
}

// rates asks how many packets a node forwards with our programs and with others'.
func (o options) rates(ctx context.Context, report *result.Report) (err error) {
	setups, err := o.setups(ctx, report)
	defer func() {
		for _, s := range setups {
			err = errors.Join(err, s.Close())
		}
	}()
	if err != nil {
		return err
	}
	var variants []round.Variant
	for _, s := range setups {
		for service := range cluster().Services {
			to := s.frontend(0, service)
			if s.name == routing {
				to = pod(service)
			} else if err := s.establish(service); err != nil {
				return fmt.Errorf("%s: %w", nameOf(s.name, service), err)
			}
			w, err := s.newWay(service, max(int(o.effort*ratePackets), rateFlows), to)
			if err != nil {
				return fmt.Errorf("%s: %w", nameOf(s.name, service), err)
			}
			variants = append(variants, w.variant())
		}
	}
	series, err := round.Run(ctx, round.Plan{Variants: variants, Rounds: o.rounds, WarmUp: 1, Out: report.Out()})
	if err != nil {
		return err
	}
	return series.Report(report, rateQuestions(setups)...)
}

// setups makes a setup for every way to balance. After an error it returns the setups made so far.
func (o options) setups(ctx context.Context, report *result.Report) ([]*clientTwoNodes, error) {
	program, version, err := kubeproxy.Find()
	if err != nil {
		return nil, err
	}
	names := []string{routing, byXDP, byTC}
	if program == nil {
		fmt.Fprintf(report.Out(), "NOT MEASURED: kube-proxy %s is not built; \"go run ./test/cluster build\" does that\n", version)
	} else {
		for _, mode := range kubeproxy.Modes() {
			names = append(names, byRules(mode))
		}
	}
	var setups []*clientTwoNodes
	for _, name := range names {
		s, err := newClientTwoNodes(name, rateFlows)
		if err != nil {
			return setups, fmt.Errorf("%s: %w", name, err)
		}
		setups = append(setups, s)
		if err := s.balance(ctx, program); err != nil {
			return setups, fmt.Errorf("%s: %w", name, err)
		}
	}
	return setups, nil
}

// balance makes the nodes of a setup balance as its name says.
func (s *clientTwoNodes) balance(ctx context.Context, program *kubeproxy.Program) error {
	if s.name == byXDP || s.name == byTC {
		return s.attachOurs(s.name == byXDP)
	}
	for _, mode := range kubeproxy.Modes() {
		if s.name == byRules(mode) {
			return s.writeRules(ctx, program, mode)
		}
	}
	return nil
}

// rateQuestions asks about all pairs that matter: more than the rules forward, how close to plain
// routing, and the cost of a packet that goes on to another node.
func rateQuestions(setups []*clientTwoNodes) []round.Question {
	var questions []round.Question
	ask := func(service int, balancer, beside string, goal float64) {
		questions = append(questions, round.Question{
			Row: rateRows()[service], Case: balancer + " beside " + beside, Metric: established,
			Variant: nameOf(balancer, service), Yardstick: nameOf(beside, service), Goal: goal,
		})
	}
	ask(there, byXDP, byTC, goalOverTC)
	for _, s := range setups {
		switch s.name {
		case routing, byXDP, byTC:
			continue
		}
		ask(there, byXDP, s.name, goalOverRules)
		ask(there, byTC, s.name, goalTCOver)
		// To one of its own pods, a node sends by tc what XDP passes on, so there is no question
		// about XDP.
		ask(here, byTC, s.name, goalTCOver)
	}
	for _, s := range setups {
		if s.name != routing {
			ask(here, s.name, routing, 0)
			ask(there, s.name, routing, 0)
		}
		questions = append(questions, round.Question{
			Row: "the hop to another node", Case: s.name, Metric: bothCost,
			Variant: nameOf(s.name, there), Yardstick: nameOf(s.name, here), Over: true,
		})
	}
	return questions
}
