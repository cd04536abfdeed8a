package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

var errArrivalEnded = errors.New("the agent is ending")

// TakenError says that another pod has a port that a pod wants.
type TakenError struct {
	Port maps.SvcKey
	By   model.Key
}

// Error returns the sentence.
func (e *TakenError) Error() string {
	return fmt.Sprintf("%v/%v of the node leads to %s", maps.AddrPort(e.Port), model.Protocol(e.Port.Proto), e.By)
}

// arrival is somebody who waits until what a pod wants is in the maps.
type arrival struct {
	ctx    context.Context
	key    model.Key
	answer chan error // has room for one
}

// Await returns once the host ports of a pod lead to it, or nothing leads to it any more if it has none, as of what the Store
// has now. The error is a *TakenError, the context's, or says that Run has ended. It may be called from any
// goroutine.
func (r *Reconciler) Await(ctx context.Context, pod model.Name) error {
	a := &arrival{ctx, model.Key{Kind: model.KindPod, Name: pod}, make(chan error, 1)}
	select {
	case r.arrivals <- a:
	case <-r.checks.ended:
		return errArrivalEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-a.answer:
		return err
	case <-r.checks.ended:
		return errArrivalEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// announce answers those who wait for what is in the maps by now. What failed, or waits for readers of a row, is for a later pass.
func (r *Reconciler) announce() {
	r.awaited = slices.DeleteFunc(r.awaited, func(a *arrival) bool {
		done, err := r.arrived(a.key)
		if done {
			a.answer <- err
		}
		return done || a.ctx.Err() != nil
	})
}

// arrived reports whether the maps have what an object wants, and who has what it cannot get before that other goes.
func (r *Reconciler) arrived(key model.Key) (bool, error) {
	if _, failed := r.failed[key]; failed || slices.Contains(r.held, key) {
		return false, nil
	}
	o := r.objects[key]
	if o == nil {
		return true, nil
	}
	var lost error
	for _, s := range o.services {
		for _, key := range s.frontends {
			if _, touched := r.frontends.touched[key]; touched || slices.Contains(r.frontends.unsure, key) {
				return false, nil
			}
			// A Service has the better right whenever it comes, so that is told as a problem and keeps no pod from starting.
			if owner := r.frontends.keys[key].owner.service; owner != s && owner != nil && owner.object.key.Kind == model.KindPod {
				lost = &TakenError{Port: key, By: owner.object.key}
			}
		}
	}
	return true, lost
}
