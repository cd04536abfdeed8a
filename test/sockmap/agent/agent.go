// Package agent is an agent's part in connections past TCP, for tests with real sockets.
package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

// Agent is what serves the sockets of a test's pods. It can stop and start anew: what is pinned goes on.
type Agent struct {
	*sockmap.Sockmap // that of the moment
	T                *testing.T
	BPFFS            string
	Limits           sockmap.Limits

	stop func()
}

// New starts an agent that lets all of the pods speak past TCP, until the test ends.
func New(t *testing.T, limits sockmap.Limits, pods ...*rig.Netns) *Agent {
	t.Helper()
	a := &Agent{T: t, BPFFS: rig.BPFFS(t), Limits: limits}
	a.Start()
	t.Cleanup(a.Stop)
	a.Let(pods...)
	a.Must(a.Switch(true))
	return a
}

// Must ends the test if there is an error.
func (a *Agent) Must(err error) {
	a.T.Helper()
	if err != nil {
		a.T.Fatal(err)
	}
}

// Start starts it anew.
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

// Runs reports whether it runs.
func (a *Agent) Runs() bool { return a.stop != nil }

// Stop ends it, if it runs.
func (a *Agent) Stop() {
	if a.stop != nil {
		a.stop()
		a.stop = nil
	}
}

// Let lets pods speak past TCP, each with all of them, and nobody else.
func (a *Agent) Let(pods ...*rig.Netns) {
	a.T.Helper()
	rules := map[sockmap.Place]sockmap.Rules{}
	for _, pod := range pods {
		rules[sockmap.Place{Netns: a.Cookie(pod)}] = sockmap.Rules{From: 1, To: 1}
	}
	a.Must(a.SetRules(rules))
}

// Cookie returns that of a pod.
func (a *Agent) Cookie(pod *rig.Netns) uint64 {
	a.T.Helper()
	cookie, err := pod.Cookie()
	a.Must(err)
	return cookie
}

// patience is how long anything may keep anybody waiting.
const patience = 20 * time.Second

// Until waits for what another process or the agent brings about.
func (a *Agent) Until(what string, f func() bool) {
	a.T.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			a.T.Fatalf("waited in vain for %s", what)
		}
	}
}
