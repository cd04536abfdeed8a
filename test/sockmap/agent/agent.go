// Package agent runs the agent's part in letting connections bypass TCP, for tests with real
// sockets.
package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

// Agent serves the sockets of a test's pods. It can stop and start again; what is pinned keeps
// working in between.
type Agent struct {
	*sockmap.Sockmap // of the running agent; Start replaces it
	T                *testing.T
	BPFFS            string
	Limits           sockmap.Limits

	stop func()
}

// New starts an agent that lets all of the pods bypass TCP until the test ends. Its programs may be those of a test of
// before, with clean maps.
func New(t *testing.T, limits sockmap.Limits, pods ...*rig.Netns) *Agent {
	t.Helper()
	p := take(t, limits)
	a := &Agent{T: t, BPFFS: p.bpffs, Limits: limits}
	t.Cleanup(func() {
		a.Stop()
		p.leave(a)
	})
	a.Start()
	if p.files == nil {
		a.Must(p.note())
	}
	a.Let(pods...)
	a.Must(a.Switch(true))
	return a
}

// Must fails the test at once if there is an error.
func (a *Agent) Must(err error) {
	a.T.Helper()
	if err != nil {
		a.T.Fatal(err)
	}
}

// Start starts the agent, or starts it again after Stop.
func (a *Agent) Start() {
	a.T.Helper()
	s, err := sockmap.Open(sockmap.Config{BPFFS: a.BPFFS, Limits: a.Limits, Log: slog.New(slog.DiscardHandler)})
	a.Must(err)
	a.Sockmap = s
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	a.stop = func() {
		cancel()
		a.Must(<-ended)
		a.Must(s.Close())
	}
}

// Runs reports whether the agent runs.
func (a *Agent) Runs() bool { return a.stop != nil }

// Stop ends the agent if it runs.
func (a *Agent) Stop() {
	if a.stop != nil {
		a.stop()
		a.stop = nil
	}
}

// Let lets connections between any two of these pods bypass TCP, and no others.
func (a *Agent) Let(pods ...*rig.Netns) {
	a.T.Helper()
	rules := map[sockmap.Endpoint]sockmap.Rules{}
	for _, pod := range pods {
		rules[sockmap.Endpoint{Netns: a.Cookie(pod)}] = sockmap.Rules{From: 1, To: 1}
	}
	a.Must(a.SetRules(rules))
}

// Cookie returns the cookie of a pod's network namespace.
func (a *Agent) Cookie(pod *rig.Netns) uint64 {
	a.T.Helper()
	cookie, err := pod.Cookie()
	a.Must(err)
	return cookie
}

// patience is the longest that anything may keep a test waiting.
const patience = 20 * time.Second

// Until waits for something that another process or the agent does.
func (a *Agent) Until(what string, f func() bool) {
	a.T.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			a.T.Fatalf("waited in vain for %s", what)
		}
	}
}
