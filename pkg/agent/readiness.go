package agent

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/health"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
)

// readiness says whether this node serves, and what it waits for.
type readiness struct {
	cfg        *config.Config
	store      *model.Store
	path       *datapath.Datapath
	reconciler func() *reconcile.Reconciler // nil until the maps exist
	answered   func(path string, code int)  // counts answers
}

// proxy returns the answers that load balancers get.
func (r *readiness) proxy() *health.Proxy {
	return &health.Proxy{
		Waiting: r.stuck, Updated: r.updated, Eligible: r.eligible, Serving: r.serving, Count: r.answered,
	}
}

// waiting returns since when the oldest change has been waiting, or since when the reconciler has
// been waiting for readers.
func (r *readiness) waiting() time.Time {
	since := r.store.Waiting()
	if writer := r.reconciler(); writer != nil {
		if grace := writer.Stats().GraceSince; since.IsZero() || !grace.IsZero() && grace.Before(since) {
			return grace
		}
	}
	return since
}

// stuck returns since when nothing has come of the changes that wait; zero if none do, or if they
// only wait for their turn.
func (r *readiness) stuck() time.Time {
	if writer := r.reconciler(); writer != nil {
		return writer.Stuck()
	}
	return r.store.Waiting()
}

// updated returns when the maps were last up to date.
func (r *readiness) updated() time.Time {
	if writer := r.reconciler(); writer != nil {
		return writer.Stats().LastApplied
	}
	return time.Time{}
}

// eligible reports whether load balancers may send to this node. A cluster that does not know the
// node, or no longer does, is about to lose it; files need not mention it.
func (r *readiness) eligible() bool {
	node := r.store.Self()
	return !node.Leaving && (node.UID != "" || r.cfg.Source != config.Kubernetes)
}

// serving reports whether the programs have maps to read: those of an earlier agent, or ones that
// this agent has written.
func (r *readiness) serving() bool {
	writer := r.reconciler()
	return writer != nil && (r.path.Adopted() || !writer.Stats().LastApplied.IsZero())
}

// checks returns the checks of /readyz.
func (r *readiness) checks() []health.Check {
	return []health.Check{
		{Name: "source-synced", Run: func() error {
			if missing := r.store.Unsynced(); len(missing) > 0 {
				return fmt.Errorf("missing: %s", strings.Join(missing, ", "))
			}
			return nil
		}},
		{Name: "maps-written", Run: func() error {
			writer := r.reconciler()
			if writer == nil {
				return errors.New("the maps do not exist yet")
			}
			if stats := writer.Stats(); !stats.Synced || stats.LastApplied.IsZero() {
				return fmt.Errorf("%d changes are waiting", stats.Pending)
			}
			return nil
		}},
		{Name: "programs-attached", Run: func() error {
			attached, err := r.path.Status()
			if err != nil {
				return err
			}
			var missing []string
			for _, p := range attached.Programs {
				if !p.Attached && !p.Idle {
					missing = append(missing, p.Name)
				}
			}
			if len(missing) > 0 {
				return fmt.Errorf("missing: %s", strings.Join(missing, ", "))
			}
			return nil
		}},
		{Name: "programs-at-work", Run: r.programsAtWork},
	}
}

// programsAtWork returns why the last check found that the programs miss sockets that they should
// see. It returns nil if the agent's own sockets cannot tell, because that is not the node's fault.
func (r *readiness) programsAtWork() error {
	attached, err := r.path.Status()
	if err != nil {
		return err
	}
	found := attached.Attachment
	if found == nil {
		return errors.New("not checked yet")
	}
	if err := found.Err(); err != nil {
		return err
	}
	var errs []error
	for _, p := range found.Proofs {
		if p.State == datapath.Missed {
			errs = append(errs, fmt.Errorf("%s: %s", p.Family, p.Why))
		}
	}
	return errors.Join(errs...)
}
