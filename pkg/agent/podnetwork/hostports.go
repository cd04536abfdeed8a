package podnetwork

import (
	"context"
	"errors"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/reconcile"
)

// hostPorts tells the pod network when host ports lead to their pods. The reconciler writes them,
// like Services.
type hostPorts struct {
	*model.Store
	await func(context.Context, model.Name) error
}

// portPatience is long enough for a start, when the reconciler waits for sources, and for maps that
// grow.
const portPatience = reconcile.ColdWait + 5*time.Second

// Await returns once the tables have the host ports that the Store has for a pod.
func (p hostPorts) Await(pod model.Name) error {
	ctx, cancel := context.WithTimeout(context.Background(), portPatience)
	defer cancel()
	err := p.await(ctx, pod)
	var taken *reconcile.TakenError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &taken):
		return cni.Refusal(cni.ErrPortTaken, "%v", err)
	}
	return cni.Refusal(types.ErrTryAgainLater, "the pod's host ports do not lead to it yet: %v", err)
}
