package podnet

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"fairlead.io/fairlead/test/rig"
)

// mostSteps is more than the number of steps of a plugin or an agent.
const mostSteps = 300

// killed runs call with a plugin that is killed at its nth change, and returns at which change; ""
// if it made fewer.
func (n *node) killed(nth int, call func() error) string {
	n.t.Helper()
	k := &killer{nth: nth}
	err := n.followed(k, call)
	if (k.step == "") != (err == nil) || (err != nil && !errors.Is(err, errKilled)) {
		n.t.Fatalf("killed at %q, the %d. change: %v", k.step, nth, err)
	}
	return k.step
}

// followed runs call with a plugin that is followed by a killer.
func (n *node) followed(k *killer, call func() error) error {
	n.t.Helper()
	usual := n.cni
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{plugin.in(n.t)}, n.cache, &killingExec{killer: k})
	defer func() { n.cni = usual }()
	return call()
}

// TestAgentReplacedInAdd checks that ADD succeeds if the agent is replaced between any two steps of
// the plugin.
func TestAgentReplacedInAdd(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	eachStep(t, 25, func(nth int) string {
		p := n.pod("a")
		p.id = strings.Repeat("a", nth)
		k := &killer{nth: nth, instead: n.restart}
		if err := n.followed(k, func() error { _, err := n.add(p); return err }); err != nil {
			t.Errorf("ADD: %v", err)
			return k.step
		}
		if err := n.check(p); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		n.must(n.del(p))
		n.must(p.Close())
		n.nothingLeft()
		return k.step
	})
}

// eachStep calls crash with 1, 2 and so on until nothing was killed, and logs the steps.
func eachStep(t *testing.T, atLeast int, crash func(nth int) string) {
	t.Helper()
	var steps []string
	for nth := 1; ; nth++ {
		step := crash(nth)
		if t.Failed() {
			t.Fatalf("after a crash at the %d. change, %s", nth, step)
		}
		if step == "" {
			break
		}
		steps = append(steps, step)
		if nth > mostSteps {
			t.Fatal("there is no end of it")
		}
	}
	counts := map[string]int{}
	for _, step := range steps {
		counts[step]++
	}
	t.Logf("%d crashes: %v", len(steps), counts)
	if len(steps) < atLeast {
		t.Errorf("only %d steps, want %d: is the process followed?", len(steps), atLeast)
	}
}

// TestCrashInAdd checks that a plugin that is killed in ADD leaves nothing: whether the runtime
// tries again, releases the pod, or the namespace ends without a DEL.
func TestCrashInAdd(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	eachStep(t, 25, func(nth int) string {
		p := n.pod("a")
		p.id = strings.Repeat("a", nth)
		step := n.killed(nth, func() error { _, err := n.add(p); return err })
		switch nth % 3 {
		case 0:
			n.mustAdd(p)
			n.must(n.check(p))
			if len(n.left()) != 6 {
				t.Errorf("ADD again made %q", n.left())
			}
			n.must(n.del(p))
		case 1:
			n.must(n.del(p))
		default:
			n.must(p.Close())
			n.removeIfThere(p) // the kernel takes some time to do this
			n.restart()
		}
		n.must(p.Close())
		n.nothingLeft()
		return step
	})
}

// TestCrashInDel does the same for DEL.
func TestCrashInDel(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	eachStep(t, 4, func(nth int) string {
		p := n.pod("a")
		p.id = strings.Repeat("a", nth)
		n.mustAdd(p)
		step := n.killed(nth, func() error { return n.del(p) })
		if nth%2 == 0 {
			n.must(n.del(p))
		} else {
			n.must(p.Close())
			n.removeIfThere(p)
			n.restart()
		}
		n.must(p.Close())
		n.nothingLeft()
		return step
	})
}

// agentKilled runs call while the agent's half is killed at its nth change, and starts the next one
// at once.
func (n *node) agentKilled(nth int, call func() error) string {
	n.t.Helper()
	follower := rig.NewChild(n.t, nil, nil, "follow", strconv.Itoa(n.agent.Pid()), strconv.Itoa(nth))
	if line, err := follower.ReadLine(); err != nil || line != "following" {
		n.t.Fatalf("the follower said %q, %v: %v", line, err, follower.Wait())
	}
	step := make(chan string, 1)
	go func() { line, _ := follower.ReadLine(); step <- line }()
	called := make(chan error, 1)
	go func() { called <- call() }()
	var at string
	select {
	case at = <-step:
		n.restart()
		n.must(<-called)
	case err := <-called:
		n.must(err)
		n.restart() // the agent may have been killed right after its last answer
		at = <-step
	}
	n.must(follower.Wait())
	return at
}

// follow runs a killer of a running process in a process of its own: the test, as the parent of
// that process, would be told of its stops too, and take them for its end.
func follow(args []string) int {
	runtime.LockOSThread()
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return 2
	}
	k := &killer{}
	if k.nth, err = strconv.Atoi(args[1]); err != nil {
		return 2
	}
	if err = k.attach(pid); err == nil {
		fmt.Println("following")
		_, err = k.follow(pid)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(k.step)
	return 0
}

// TestAgentCrashInAdd checks that an agent that is killed during ADD and started again gives the
// pod what it was given before, and nothing to any other pod.
func TestAgentCrashInAdd(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	eachStep(t, 20, func(nth int) string {
		p := n.pod("a")
		p.id = strings.Repeat("a", nth)
		step := n.agentKilled(nth, func() error { _, err := n.add(p); return err })
		if err := n.check(p); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		if left := n.left(); len(left) != 6 {
			t.Errorf("ADD made %q", left)
		}
		n.must(n.del(p))
		n.must(p.Close())
		n.nothingLeft()
		return step
	})
}

// TestAgentCrashInDel does the same for DEL.
func TestAgentCrashInDel(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10.1.0.0/24", "fd00:1::/64")
	eachStep(t, 10, func(nth int) string {
		p := n.pod("a")
		p.id = strings.Repeat("a", nth)
		n.mustAdd(p)
		step := n.agentKilled(nth, func() error { return n.del(p) })
		n.must(p.Close())
		n.nothingLeft()
		return step
	})
}
