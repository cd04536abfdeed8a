package kube

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// The times of an election are those that Kubernetes' own controllers have. A leader gives up before others may take over.
const (
	leaseDuration = 15 * time.Second // others wait for so long after the last renewal that they saw
	leaseDeadline = 10 * time.Second // the leader leads for so long after its last renewal
	leaseRetry    = 2 * time.Second
	leaseTimeout  = 5 * time.Second

	maxLeaseDuration = time.Minute // of a lease that somebody else has written
)

// Election lets one of several processes do something, by a Lease in the form that client-go's leader election has. That
// itself would bring client-go's clientset with it, which is linked into the agent too: 11 MB, 7 of which every agent would have
// in memory.
//
// As with any such election two processes may believe to lead for a moment, such as one that was stopped and goes on. So what a
// leader writes must name the version of the object that it was computed from.
type Election struct {
	client                    rest.Interface
	namespace, name, identity string
	log                       *slog.Logger
	duration, deadline, retry time.Duration

	seen   coordinationv1.LeaseSpec // the last one
	seenAt time.Time                // when it was seen first, by this process' clock: those of machines differ
}

// NewElection returns an Election by a Lease. The identity must be this process' alone. Of the configuration it uses what leads
// to the server.
func NewElection(cfg Config, namespace, name, identity string) (*Election, error) {
	base, _, err := restConfig(&cfg)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register types: %w", err)
	}
	client, err := newClient(base, scheme, coordinationv1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	return &Election{
		client: client, namespace: namespace, name: name, identity: identity, log: cfg.Log,
		duration: leaseDuration, deadline: leaseDeadline, retry: leaseRetry,
	}, nil
}

// Run calls lead whenever this process is elected, with a context that ends when it no longer is, and waits until lead has
// returned before it stands again. It returns when its context has ended.
func (e *Election) Run(ctx context.Context, lead func(context.Context)) {
	for failed := false; ctx.Err() == nil; {
		began := time.Now()
		lease, err := e.acquire(ctx)
		switch {
		case err == nil && lease != nil:
			e.lead(ctx, lease, began, lead)
			failed = false
		case err != nil && ctx.Err() == nil:
			if !failed { // once, however long it lasts
				e.log.Warn("cannot take part in the election, trying again", "lease", e.namespace+"/"+e.name, "error", err)
			}
			failed = true
		default:
			failed = false
		}
		e.pause(ctx)
	}
}

func (e *Election) pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(e.retry + rand.N(e.retry)): // spreads those that wait
	}
}

// lead leads until the lease is lost or the context ends. The last renewal began at the given time.
func (e *Election) lead(ctx context.Context, lease *coordinationv1.Lease, renewed time.Time, lead func(context.Context)) {
	e.log.Info("elected", "lease", e.namespace+"/"+e.name, "identity", e.identity)
	leading, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { lead(leading) })
	// The timer ends what is under way, also while a renewal waits for an answer.
	timer := time.AfterFunc(time.Until(renewed.Add(e.deadline)), stop)
	for e.wait(leading) {
		began := time.Now()
		next, err := e.renew(leading, lease)
		switch {
		case leading.Err() != nil:
		case err != nil:
			e.log.Warn("cannot renew the lease, trying again", "lease", e.namespace+"/"+e.name, "error", err)
		case next == nil:
			stop()
		default:
			lease = next
			// A timer that has fired has ended it already.
			if timer.Stop() {
				timer.Reset(time.Until(began.Add(e.deadline)))
			}
		}
	}
	timer.Stop()
	stop()
	running.Wait()
	if ctx.Err() != nil {
		e.release(lease)
		return
	}
	e.log.Warn("no longer elected", "lease", e.namespace+"/"+e.name, "identity", e.identity)
}

// wait returns true when it is time to renew, or false if the context has ended.
func (e *Election) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(e.retry):
		return ctx.Err() == nil
	}
}

// acquire takes the lease or renews it, or returns nil if another process has it.
func (e *Election) acquire(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	lease := &coordinationv1.Lease{}
	err := e.client.Get().Namespace(e.namespace).Resource("leases").Name(e.name).Do(ctx).Into(lease)
	switch {
	case apierrors.IsNotFound(err):
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: e.name}}
		e.fill(&lease.Spec)
		made, err := written(e.client.Post().Namespace(e.namespace).Resource("leases").Body(lease).Do(ctx))
		if apierrors.IsAlreadyExists(err) {
			return nil, nil
		}
		return made, err
	case err != nil:
		return nil, fmt.Errorf("read lease: %w", err)
	case e.held(&lease.Spec):
		return nil, nil
	}
	e.fill(&lease.Spec)
	return e.update(ctx, lease)
}

// renew renews a lease, or returns nil if another process has it.
func (e *Election) renew(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	next := lease.DeepCopy()
	e.fill(&next.Spec)
	next, err := e.update(ctx, next)
	if next == nil && err == nil { // it was changed or deleted, which need not have been by another process
		return e.acquire(ctx)
	}
	return next, err
}

// release lets others take the lease at once. If that fails they have to wait until it has expired.
func (e *Election) release(lease *coordinationv1.Lease) {
	next := lease.DeepCopy()
	e.fill(&next.Spec)
	nobody, soon := "", int32(1)
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = &nobody, &soon
	if _, err := e.update(context.Background(), next); err != nil {
		e.log.Warn("cannot release the lease", "lease", e.namespace+"/"+e.name, "error", err)
	}
}

// update stores a lease, or returns nil if it is no longer the one that was read.
func (e *Election) update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	next, err := written(e.client.Put().Namespace(e.namespace).Resource("leases").Name(e.name).Body(lease).Do(ctx))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	return next, err
}

func written(result rest.Result) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	if err := result.Into(lease); err != nil {
		return nil, fmt.Errorf("write lease: %w", err)
	}
	return lease, nil
}

// fill makes a lease one of this process, renewed now.
func (e *Election) fill(spec *coordinationv1.LeaseSpec) {
	now, seconds := metav1.NowMicro(), int32(e.duration/time.Second)
	if spec.HolderIdentity == nil || *spec.HolderIdentity != e.identity {
		changes := int32(0)
		if spec.LeaseTransitions != nil {
			changes = *spec.LeaseTransitions + 1
		}
		identity := e.identity
		spec.HolderIdentity, spec.AcquireTime, spec.LeaseTransitions = &identity, &now, &changes
	}
	spec.RenewTime, spec.LeaseDurationSeconds = &now, &seconds
}

// held reports whether another process has a lease.
func (e *Election) held(spec *coordinationv1.LeaseSpec) bool {
	if !reflect.DeepEqual(&e.seen, spec) {
		e.seen, e.seenAt = *spec.DeepCopy(), time.Now()
	}
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" || *spec.HolderIdentity == e.identity {
		return false
	}
	lasts := e.duration
	if spec.LeaseDurationSeconds != nil { // as its holder counts, who may be of another version
		lasts = min(max(time.Duration(*spec.LeaseDurationSeconds)*time.Second, 0), maxLeaseDuration)
	}
	return time.Since(e.seenAt) < lasts
}
