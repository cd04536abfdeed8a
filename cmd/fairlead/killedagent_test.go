package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/test/rig"
)

// TestKilledAgent checks that a node whose agent is killed again and again is degraded and says so,
// and that an agent that is told to end does not count.
func TestKilledAgent(t *testing.T) {
	n := newNode(t)
	begin := func(killed int) (degraded []string) {
		args := []string{"agent", "--source=" + n.manifests, "--cgroup-root=" + n.cgroup.Path(), "--node-name=node-a", "--log-level=error"}
		n.agent = rig.NewChild(t, nil, n.ns, "fairlead", append(args, n.flags...)...)
		n.waitFor("the agent answers", func() bool {
			out, _ := rig.RunChild(nil, n.ns, "fairlead", append([]string{"status", "-o", "json"}, n.flags...)...)
			var status observe.Status
			if json.Unmarshal([]byte(strings.TrimSpace(out)), &status) != nil || status.Agent == nil {
				return false
			}
			if status.Agent.Killed != killed {
				t.Fatalf("%d agents were killed, status says %d", killed, status.Agent.Killed)
			}
			degraded = status.Degraded
			return true
		})
		return degraded
	}
	const most = 5
	said := func(degraded []string) bool {
		return slices.ContainsFunc(degraded, func(s string) bool { return strings.HasPrefix(s, "The agent has ended ") })
	}
	for killed := range most {
		if degraded := begin(killed); said(degraded) {
			t.Errorf("after %d: %q", killed, degraded)
		}
		n.agent.Kill()
	}
	if degraded := begin(most); !said(degraded) {
		t.Errorf("after %d: %q", most, degraded)
	}
	if err := unix.Kill(n.agent.Pid(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := n.agent.Wait(); err != nil {
		t.Error(err)
	}
	begin(most)
}
