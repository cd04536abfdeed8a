package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"fairlead.io/fairlead/pkg/source"
)

const (
	// policiesEvery is how often NetworkPolicies are counted, on average. Five thousand nodes then
	// send ten requests a second in all, for answers of a few hundred bytes.
	policiesEvery = 10 * time.Minute
	// policiesFirst is the longest time until the first count. It spreads nodes that start
	// together.
	policiesFirst = time.Minute
)

// PolicyWatch reports that the cluster has NetworkPolicies, because users may believe that they are
// enforced.
type PolicyWatch struct {
	count func(context.Context) (int, error)
	post  func(message string) bool
	log   *slog.Logger

	mu       sync.Mutex
	found    source.PolicyStatus
	reported bool
}

// NewPolicyWatch returns nil if objects come from files, or if policies are followed. node returns the UID of this node.
func NewPolicyWatch(around API, node func() string, log *slog.Logger) *PolicyWatch {
	if around.policies == nil {
		return nil
	}
	return &PolicyWatch{count: around.policies.Count, log: log, post: func(message string) bool {
		return around.Events.Standing(node(), "NetworkPolicyNotEnforced", message)
	}}
}

// Run counts until the context ends.
func (p *PolicyWatch) Run(ctx context.Context) error {
	if p == nil {
		return nil
	}
	for pause := rand.N(policiesFirst); ; pause = policiesEvery/2 + rand.N(policiesEvery) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
			p.recount(ctx)
		}
	}
}

// recount counts NetworkPolicies, and reports when there are any. If the event cannot be posted now, a
// later count posts it.
func (p *PolicyWatch) recount(ctx context.Context) {
	count, err := p.count(ctx)
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if p.found.Error != err.Error() {
			p.log.Warn("cannot count NetworkPolicies; if there are any, fairlead does not enforce them",
				"error", err)
		}
		p.found.Error = err.Error()
		return
	}
	p.found = source.PolicyStatus{Count: &count, Checked: time.Now()}
	if count == 0 {
		p.reported = false
		return
	}
	if message := unenforced(count); !p.reported && p.post(message) {
		p.log.Warn(message)
		p.reported = true
	}
}

func unenforced(count int) string {
	return fmt.Sprintf("The cluster has NetworkPolicies (%d), and fairlead enforces none of them: unless something else does, pods can be reached as if "+
		"there were none.", count)
}

// Status returns the result of the last count, or nil if objects come from files.
func (p *PolicyWatch) Status() *source.PolicyStatus {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	found := p.found
	return &found
}
