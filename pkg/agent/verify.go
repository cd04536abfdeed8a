package agent

import (
	"context"

	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/reconcile"
)

// verify lets the reconciler compare the maps with the objects.
func (a *agent) verify(ctx context.Context, repair bool) (observe.Verification, error) {
	r := a.reconciler.Load()
	if r == nil {
		return observe.Verification{}, reconcile.ErrUnsynced
	}
	report, err := r.Verify(ctx, repair)
	v := observe.Verification{Repair: repair, Report: report}
	if v.Differences == nil {
		v.Differences = []reconcile.Difference{}
	}
	if err == nil {
		err = a.optOuts.Load().verify(ctx, &v)
	}
	if err == nil {
		err = verifyNodes(a.nodes, &v)
	}
	if err == nil {
		err = a.enforcer.verify(ctx, &v)
	}
	return v, err
}
