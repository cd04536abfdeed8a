package acceleration

import (
	"errors"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/sockmap"
)

// Ready returns why connections do not bypass TCP yet.
func (a *Accelerator) Ready() error {
	at, unfit := a.state()
	switch {
	case unfit != "":
		return errors.New(unfit)
	case at == nil:
		return errors.New("nothing is attached yet")
	case !at.rules.Status().Applied:
		return errors.New("the programs have not been told yet which pods may bypass TCP")
	}
	return nil
}

// Status returns the state of connections that bypass TCP. It is nil if the option is off, and
// before anything runs.
func (a *Accelerator) Status() *sockmap.Status {
	if a == nil || a.Options.Sockmap != "true" {
		return nil
	}
	s, unfit := a.state()
	if unfit != "" {
		a.mu.Lock()
		defer a.mu.Unlock()
		return &sockmap.Status{Error: unfit, RuleStatus: sockmap.RuleStatus{Stale: a.stale}}
	}
	if s == nil {
		return nil
	}
	status := s.Status(s.rules.Status())
	status.Differences = s.differences
	return status
}

// Problems lists the problems of policies for this node's pods, sorted by name.
func (a *Accelerator) Problems() (list []model.ObjectProblem) {
	if a == nil {
		return nil
	}
	s, _ := a.state()
	if s == nil {
		return nil
	}
	for _, c := range s.rules.Status().Complaints {
		key := model.Key{Kind: model.KindAcceleration, Name: c.Policy.Name}
		list = append(list, model.ObjectProblem{Object: key.String(), Problem: c.Problem})
	}
	slices.SortFunc(list, func(a, b model.ObjectProblem) int { return strings.Compare(a.Object, b.Object) })
	return list
}
