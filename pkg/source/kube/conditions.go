package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

const (
	// conditionsOwner is the field manager of what Conditions writes: the server leaves the conditions of others alone.
	conditionsOwner = "fairlead-controller"

	// However many policies there are and whoever else writes to them, the server gets few requests.
	conditionsRate  = 5
	conditionsBurst = 25

	conditionsTimeout                      = 10 * time.Second
	conditionsMinRetry, conditionsMaxRetry = 250 * time.Millisecond, 5 * time.Minute
	conditionsLacking                      = 10 * time.Second // between two requests to a cluster without the kind
)

// Conditions writes into the status of each ClusterNetworkPolicy how agents read it, by the same translation. It writes only
// what differs from what is there.
type Conditions struct {
	followed *kind[*source.ClusterPolicy, conditioned]
	client   rest.Interface
	log      *slog.Logger
	now      func() time.Time

	mu       sync.Mutex
	policies map[string]*conditioned
	queue    workqueue.TypedRateLimitingInterface[string] // nil while nobody follows
}

// conditioned is a policy as the server last sent it: the condition that it should have, and the one that it has.
type conditioned struct {
	name, version string
	want          metav1.Condition
	have          *metav1.Condition
}

// NewConditions returns Conditions that write nothing before Run. Of the configuration it uses what leads to the server.
func NewConditions(cfg Config) (*Conditions, error) {
	base, _, err := restConfig(&cfg)
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := source.AddClusterPolicies(scheme); err != nil {
		return nil, fmt.Errorf("register types: %w", err)
	}
	reader, err := newClient(base, scheme, source.ClusterPolicyGroup())
	if err != nil {
		return nil, err
	}
	base.QPS, base.Burst = conditionsRate, conditionsBurst
	writer, err := newClient(base, scheme, source.ClusterPolicyGroup())
	if err != nil {
		return nil, err
	}
	c := &Conditions{client: writer, log: cfg.Log, now: time.Now, policies: map[string]*conditioned{}}
	c.followed = newKind(resource[*source.ClusterPolicy, conditioned]{
		name: "clusternetworkpolicies", client: reader,
		object: &source.ClusterPolicy{}, list: func() runtime.Object { return &source.ClusterPolicyList{} },
		selected: func(*metav1.ListOptions) {}, translate: condition, lacking: conditionsLacking,
		set: c.set, drop: c.drop, replace: c.replace,
	}, cfg.Log)
	return c, nil
}

func condition(in *source.ClusterPolicy) *conditioned {
	return &conditioned{name: in.Name, version: in.ResourceVersion, want: source.ClusterPolicyCondition(in), have: source.ClusterPolicyHas(in)}
}

// due returns the condition to write, or false if it is there.
func (c *conditioned) due(now time.Time) (metav1.Condition, bool) {
	next := c.want
	next.LastTransitionTime = metav1.NewTime(now)
	if c.have == nil {
		return next, true
	}
	if c.have.Status == next.Status && !c.have.LastTransitionTime.IsZero() {
		next.LastTransitionTime = c.have.LastTransitionTime
	}
	return next, *c.have != next
}

// Run follows the policies and writes until the context ends. It may be called again after it has returned.
func (c *Conditions) Run(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](conditionsMinRetry, conditionsMaxRetry))
	c.mu.Lock()
	c.queue = queue
	c.mu.Unlock()
	var running sync.WaitGroup
	running.Go(func() { c.followed.run(ctx) })
	running.Go(func() { c.work(ctx, queue) })
	<-ctx.Done()
	queue.ShutDown()
	running.Wait()
	c.replace(nil)
}

func (c *Conditions) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) {
	for {
		name, ended := queue.Get()
		if ended {
			return
		}
		err := c.write(ctx, name)
		switch {
		case err == nil:
			queue.Forget(name)
		case apierrors.IsConflict(err): // the policy has changed, and is about to be delivered
			queue.AddRateLimited(name)
		case ctx.Err() == nil:
			c.log.Warn("cannot write the condition of a ClusterNetworkPolicy, trying again", "policy", name, "failures", queue.NumRequeues(name)+1, "error", err)
			queue.AddRateLimited(name)
		}
		queue.Done(name)
	}
}

// write writes the condition of a policy, if it is due.
func (c *Conditions) write(ctx context.Context, name string) error {
	c.mu.Lock()
	policy := c.policies[name]
	c.mu.Unlock()
	if policy == nil {
		return nil
	}
	next, due := policy.due(c.now())
	if !due {
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": source.ClusterPolicyGroup().String(), "kind": "ClusterNetworkPolicy",
		// The version makes the server refuse what was computed from another state of the policy, also by a process that does not
		// know yet that it has lost the election.
		"metadata": map[string]any{"name": policy.name, "resourceVersion": policy.version},
		"status":   map[string]any{"conditions": []metav1.Condition{next}},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, conditionsTimeout)
	defer cancel()
	err = c.client.Patch(types.ApplyYAMLPatchType).Resource("clusternetworkpolicies").Name(policy.name).SubResource("status").
		Param("fieldManager", conditionsOwner).Param("force", "true").Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("apply status: %w", err)
	}
	c.log.Info("wrote the condition of a ClusterNetworkPolicy", "policy", name, "accepted", next.Status, "reason", next.Reason)
	return nil
}

func (c *Conditions) set(policy *conditioned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policies[policy.name] = policy
	c.queue.Add(policy.name)
}

func (c *Conditions) drop(name model.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.policies, name.Name)
}

func (c *Conditions) replace(policies []*conditioned) {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.policies)
	for _, policy := range policies {
		c.policies[policy.name] = policy
		c.queue.Add(policy.name)
	}
}
