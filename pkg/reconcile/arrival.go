package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

var errArrivalEnded = errors.New("the agent is shutting down")

// TakenError says that another pod holds a port that a pod wants.
type TakenError struct {
	Port maps.SvcKey
	By   model.Key
}

// Error names the port and the pod that holds it.
func (e *TakenError) Error() string {
	return fmt.Sprintf("%v/%v of the node leads to %s", maps.AddrPort(e.Port), model.Protocol(e.Port.Proto), e.By)
}

// arrival is a caller of Await waiting until what a pod wants is in the maps.
type arrival struct {
	ctx    context.Context
	key    model.Key
	answer chan error // buffered, so that answering never blocks
}

// Await returns once the maps match what the Store now says about a pod: its host ports lead to it,
// or nothing does if it has none. The error is a *TakenError, the context's error, or says that Run
// has ended. Await is safe for concurrent use.
func (r *Reconciler) Await(ctx context.Context, pod model.Name) error {
	a := &arrival{ctx, model.Key{Kind: model.KindPod, Name: pod}, make(chan error, 1)}
	select {
	case r.arrivals <- a:
	case <-r.ended:
		return errArrivalEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-a.answer:
		return err
	case <-r.ended:
		return errArrivalEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// announce answers the callers of Await whose pods are now in the maps. Pods whose rows failed to
// be written, or wait for readers of an old row, stay for a later pass.
func (r *Reconciler) announce() {
	r.awaited = slices.DeleteFunc(r.awaited, func(a *arrival) bool {
		done, err := r.arrived(a.key)
		if done {
			a.answer <- err
		}
		return done || a.ctx.Err() != nil
	})
}

// arrived reports whether the maps have what an object wants. The error names a pod that holds a
// frontend the object cannot have before that pod goes.
func (r *Reconciler) arrived(key model.Key) (bool, error) {
	if _, failed := r.objects.failed[key]; failed || slices.Contains(r.held, key) {
		return false, nil
	}
	if _, late := r.backlog.late[key]; late {
		return false, nil
	}
	o := r.objects.known[key]
	if o == nil {
		return true, nil
	}
	var lost error
	for _, s := range o.services {
		for _, key := range s.frontends {
			if _, touched := r.frontends.touched[key]; touched || slices.Contains(r.frontends.unsure, key) {
				return false, nil
			}
			// A Service outranks pods whenever it comes. That is reported as a problem and keeps no
			// pod from starting.
			if owner := r.frontends.keys[key].owner.service; owner != s && owner != nil && owner.object.key.Kind == model.KindPod {
				lost = &TakenError{Port: key, By: owner.object.key}
			}
		}
	}
	return true, lost
}
