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
	v := observe.Verification{
		Repair: repair, Services: report.Services, Frontends: report.Frontends, Backends: report.Backends,
		Found: report.Found, Mended: report.Mended, Pending: report.Pending, Took: report.Took,
		Differences: []observe.Difference{},
	}
	for _, d := range report.Differences {
		v.Differences = append(v.Differences, observe.Difference{Kind: d.Kind, Where: d.Where, Want: d.Want, Have: d.Have, Mended: d.Mended})
	}
	if err == nil {
		err = a.optOuts.Load().verify(ctx, &v)
	}
	if err == nil {
		err = verifyNodes(a.nodes, &v)
	}
	return v, err
}
