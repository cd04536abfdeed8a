package acceleration

import (
	"errors"
	stdmaps "maps"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
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
		return &sockmap.Status{Error: unfit, Stale: a.stale}
	}
	if s == nil {
		return nil
	}
	status := &sockmap.Status{}
	if err := fillSockmapStatus(status, s); err != nil {
		status.Unread = err.Error()
	}
	return status
}

// Problems lists the problems of policies for this node's pods, sorted by name.
func (a *Accelerator) Problems() (list []observe.Problem) {
	if a == nil {
		return nil
	}
	s, _ := a.state()
	if s == nil {
		return nil
	}
	for _, c := range s.rules.Status().Complaints {
		key := model.Key{Kind: model.KindAcceleration, Name: c.Policy.Name}
		list = append(list, observe.Problem{Object: key.String(), Reason: c.Reason, Message: c.Message})
	}
	slices.SortFunc(list, func(a, b observe.Problem) int { return strings.Compare(a.Object, b.Object) })
	return list
}

func fillSockmapStatus(status *sockmap.Status, s *acceleration) error {
	pods, checked := s.rules.Status(), s.Checked()
	status.Pods, status.Waiting, status.Rated = pods.Pods, pods.Waiting, pods.Rated
	status.NotCovered, status.Uncovered = pods.NotCovered, stdmaps.Clone(pods.Uncovered)
	status.Differences = s.differences
	status.Error, status.Stale = checked.Fault, pods.Error
	status.Checks = sockmap.StatusChecks{Passed: checked.Passed, Failed: checked.Failed, LastTime: checked.Last, Unable: checked.Unable}
	view, err := s.State()
	if err != nil {
		return err
	}
	status.On, status.Held, status.Sockets = view.On, view.Held, view.Sockets
	t, err := s.Tallies()
	if err != nil {
		return err
	}
	status.Watched, status.Admitted, status.Left, status.Full, status.Excluded = t.Watched, t.Admitted, t.Left, t.Full, t.Excluded
	status.Redirected = sockmap.StatusTally(t.Redirected)
	status.Passed = map[string]sockmap.StatusTally{}
	for why, tally := range t.Passed {
		status.Passed[why] = sockmap.StatusTally(tally)
	}
	return nil
}
