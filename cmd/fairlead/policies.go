package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/observe"
)

const (
	// policiesEvery is how often NetworkPolicies are counted. Five thousand nodes then ask ten times a second in all, for an
	// answer of a few hundred bytes.
	policiesEvery = 10 * time.Minute
	// policiesFirst is the longest time until the first look: nodes that start together do not ask together.
	policiesFirst = time.Minute
)

// policyWatch tells when the cluster has NetworkPolicies, which somebody may take to be enforced.
type policyWatch struct {
	count func(context.Context) (int, error)
	post  func(message string) bool
	log   *slog.Logger

	mu    sync.Mutex
	found observe.PolicyStatus
	told  bool
}

// newPolicyWatch returns nil where there is nobody to ask.
func (a *agent) newPolicyWatch(around cluster, log *slog.Logger) *policyWatch {
	if around.policies == nil {
		return nil
	}
	return &policyWatch{count: around.policies.Count, log: log, post: func(message string) bool {
		return around.events.Standing(a.store.Self().UID, "NetworkPolicyNotEnforced", message)
	}}
}

// run looks until the context ends.
func (p *policyWatch) run(ctx context.Context) error {
	if p == nil {
		return nil
	}
	for pause := rand.N(policiesFirst); ; pause = policiesEvery/2 + rand.N(policiesEvery) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
			p.look(ctx)
		}
	}
}

// look counts, and tells of the first that there are. What cannot be posted now is told after the next look.
func (p *policyWatch) look(ctx context.Context) {
	count, err := p.count(ctx)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if p.found.Error != err.Error() {
			p.log.Warn("whether the cluster has NetworkPolicies is not known; they are not enforced", "error", err)
		}
		p.found.Error = err.Error()
		return
	}
	p.found = observe.PolicyStatus{Count: &count, Checked: time.Now()}
	if count == 0 {
		p.told = false
		return
	}
	if message := unenforced(count); !p.told && p.post(message) {
		p.log.Warn(message)
		p.told = true
	}
}

func unenforced(count int) string {
	return fmt.Sprintf("The cluster has NetworkPolicies (%d), and fairlead enforces none of them: unless something else does, pods can be reached as if "+
		"there were none.", count)
}

// status returns what the last look found; nil where nobody looks.
func (p *policyWatch) status() *observe.PolicyStatus {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.found
	return &found
}
