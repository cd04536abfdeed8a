package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/test/rig"
)

// An agent that was killed is counted by the next one, until the node starts again; one that ended
// by itself is not.
func TestStarts(t *testing.T) {
	dir, now := t.TempDir(), time.Unix(1000, 0)
	start := func(boot string, killed, lately int) starts {
		t.Helper()
		s, err := noteStart(dir, boot, now)
		if err != nil {
			t.Fatal(err)
		}
		if have := lifeStatus(s, now); have.Killed != killed || have.KilledLately != lately {
			t.Errorf("%d were killed, %d lately, want %d and %d", have.Killed, have.KilledLately, killed, lately)
		}
		return s
	}
	start("one", 0, 0)
	s := start("one", 1, 1)
	if err := s.noteEnd(dir); err != nil {
		t.Fatal(err)
	}
	start("one", 1, 1)
	now = now.Add(observe.KilledPeriod)
	start("one", 2, 1)
	for n := range 2 * mostNoted {
		s = start("one", 3+n, min(mostNoted, 2+n))
	}
	if len(s.Noted) != mostNoted {
		t.Errorf("%d times are noted", len(s.Noted))
	}
	start("two", 0, 0)
	if err := os.WriteFile(startsFile(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := noteStart(dir, "two", now); err == nil {
		t.Error("a damaged record is read")
	}
	start("two", 1, 1)
	if _, err := noteStart(filepath.Join(dir, "gone"), "two", now); err == nil {
		t.Error("a record without a directory is written")
	}
}

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
