package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// candidate is a controller that stands for election.
type candidate struct {
	*line
	name  string
	count *atomic.Int64
	leads atomic.Bool
	end   func()
}

// stand starts a candidate. Its times are shorter than usual, since the test waits for them.
func (p *clusterPolicies) stand(name string) *candidate {
	p.Helper()
	cfg, own, count := p.asController(os.Stderr)
	conditions, err := NewConditions(cfg)
	p.must(err)
	conditions.followed.lacking = 50 * time.Millisecond
	election, err := NewElection(cfg, "kube-system", "fairlead-controller", name)
	p.must(err)
	election.duration, election.deadline, election.retry = 4*time.Second, 3*time.Second, 200*time.Millisecond
	c := &candidate{line: own, name: name, count: count}
	c.end = run(p.T, func(ctx context.Context) {
		election.Run(ctx, func(ctx context.Context) {
			c.leads.Store(true)
			defer c.leads.Store(false)
			conditions.Run(ctx)
		})
	})
	return c
}

// holder returns who has the lease.
func (p *clusterPolicies) holder() string {
	p.Helper()
	lease, err := p.client.CoordinationV1().Leases("kube-system").Get(p.ctx, "fairlead-controller", metav1.GetOptions{})
	p.must(err)
	return *lease.Spec.HolderIdentity
}

// testElection checks that one of two controllers writes, that the other takes over from one that is cut off without a word,
// that the first then writes no more, and that one which ends lets the other lead.
func testElection(w *apiNamespace) {
	p := newClusterPolicies(w)
	p.install()
	const policies = 10
	names := make([]string, policies)
	for i := range names {
		names[i] = fmt.Sprint("policy-", i)
		p.create(names[i], goodPolicy)
	}
	first, second := p.stand("a"), p.stand("b")
	edited := func(by, other *candidate, before int64) {
		w.Helper()
		for _, name := range names {
			p.awaitCondition(name)
		}
		if by.count.Load() != before+policies || !by.leads.Load() || other.leads.Load() || p.holder() != by.name {
			w.Errorf("%s has written %d times, %s %d times, %s has the lease", by.name, by.count.Load(), other.name, other.count.Load(), p.holder())
		}
	}
	edit := func(priority int) {
		for _, name := range names {
			p.patch(name, fmt.Sprintf(`{"spec":{"priority":%d}}`, priority))
		}
	}
	w.await("one to lead", func() bool { return first.leads.Load() || second.leads.Load() })
	if second.leads.Load() {
		first, second = second, first
	}
	edited(first, second, 0)

	first.cut()
	edit(1)
	edited(second, first, 0)
	if n := first.count.Load(); n != policies {
		w.Errorf("who was cut off has written %d times", n)
	}
	first.mend()
	edit(2)
	edited(second, first, policies)

	// A lease that somebody deletes is made again.
	w.must(w.client.CoordinationV1().Leases("kube-system").Delete(w.ctx, "fairlead-controller", metav1.DeleteOptions{}))
	w.await("the lease", func() bool {
		_, err := w.client.CoordinationV1().Leases("kube-system").Get(w.ctx, "fairlead-controller", metav1.GetOptions{})
		return err == nil
	})
	p.testHandover(second, first)
	w.must(w.client.CoordinationV1().Leases("kube-system").Delete(w.ctx, "fairlead-controller", metav1.DeleteOptions{}))
	p.uninstall()
}

// testHandover ends both, whoever leads: the last one gives the lease back.
func (p *clusterPolicies) testHandover(a, b *candidate) {
	p.Helper()
	p.await("one to lead", func() bool { return a.leads.Load() || b.leads.Load() })
	if b.leads.Load() {
		a, b = b, a
	}
	a.end()
	p.await("the other one to lead", b.leads.Load)
	b.end()
	if holder := p.holder(); holder != "" || a.leads.Load() || b.leads.Load() {
		p.Errorf("all have ended, and %q has the lease", holder)
	}
}

func leaseOf(t *testing.T, text string) *coordinationv1.LeaseSpec {
	t.Helper()
	spec := &coordinationv1.LeaseSpec{}
	if err := json.Unmarshal([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestHeld checks who has a lease, whatever it says.
func TestHeld(t *testing.T) {
	election, err := NewElection(Config{REST: &rest.Config{Host: "http://127.0.0.1:1"}, Log: slog.New(slog.DiscardHandler)}, "n", "l", "me")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		spec string
		ago  time.Duration // since when the lease has been like this
		held bool
	}{
		{`{}`, 0, false},
		{`{"holderIdentity":""}`, 0, false},
		{`{"holderIdentity":"me","leaseDurationSeconds":15}`, 0, false},
		{`{"holderIdentity":"other"}`, 14 * time.Second, true},
		{`{"holderIdentity":"other"}`, 16 * time.Second, false},
		{`{"holderIdentity":"other","leaseDurationSeconds":15,"renewTime":"2020-01-01T00:00:00.000000Z"}`, 14 * time.Second, true},
		{`{"holderIdentity":"other","leaseDurationSeconds":15,"renewTime":"2100-01-01T00:00:00.000000Z"}`, 16 * time.Second, false},
		{`{"holderIdentity":"other","leaseDurationSeconds":30}`, 16 * time.Second, true},
		{`{"holderIdentity":"other","leaseDurationSeconds":-1}`, 0, false},
		{`{"holderIdentity":"other","leaseDurationSeconds":2147483647}`, 61 * time.Second, false},
	} {
		lease := leaseOf(t, tt.spec)
		election.held(lease)
		election.seenAt = election.seenAt.Add(-tt.ago)
		if held := election.held(lease); held != tt.held {
			t.Errorf("%s for %v: %t", tt.spec, tt.ago, held)
		}
		election.held(leaseOf(t, `{"holderIdentity":"another"}`))
	}
}
