// Package programs lets connections of real programs bypass TCP, and checks that each byte arrives,
// even while the acceleration is switched and the agent restarts, that most messages of programs
// that converse bypass TCP, and that programs for which that is unsafe are left to TCP.
package programs

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
	"fairlead.io/fairlead/test/sockmap/agent"
)

var (
	all  = flag.Bool("all", false, "run all programs of others, not only redis; test/tools/programs.sh fetches them")
	load = flag.Duration("load", 3*time.Second, "for how long each program is asked")
)

func TestMain(m *testing.M) {
	os.Exit(rig.Main(agent.Sharing{Tests: m}, rig.Funcs{
		"exec": execMain, "serve": serveMain, "fetch": fetchMain, "mesh": meshMain, "copy": copyMain, "store": storeMain,
	}))
}

// patience is the longest that anything may keep a test waiting.
const patience = 20 * time.Second

// The pods. Each has its own link to the node, which routes between them.
const (
	here = iota
	between
	there
	pods
)

// address returns a pod's IPv4 or IPv6 address.
func address(pod int, six bool) string {
	if six {
		return fmt.Sprintf("fd01:%d::2", pod)
	}
	return fmt.Sprintf("10.1.%d.2", pod)
}

// threePods is three pods of a node, and the agent that serves their sockets.
type threePods struct {
	cgroup *rig.Cgroup // of all programs
	pods   [pods]*rig.Netns
	*agent.Agent
}

// newThreePods returns pods whose agent has the default options.
func newThreePods(t *testing.T) *threePods { return newThreePodsExcept(t, usual()...) }

// usual returns the programs that an agent excludes by default.
func usual() []string {
	for _, option := range config.Options() {
		if option.Name == "sockmap-except" {
			return (&config.Config{SockmapExcept: option.Default}).ExceptedPrograms()
		}
	}
	return nil
}

// newThreePodsExcept returns pods whose agent excludes these programs.
func newThreePodsExcept(t *testing.T, except ...string) *threePods {
	t.Helper()
	rig.MapIterators(t)
	w := &threePods{cgroup: rig.NewCgroup(t)}
	node := rig.NewNetns(t, "node")
	for _, setting := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := node.SetSysctl(setting, "1"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range w.pods {
		w.pods[i] = rig.NewNetns(t, fmt.Sprintf("pod%d", i))
		device := fmt.Sprintf("pod%d", i)
		rig.Veth(t, w.pods[i], "eth0", node, device)
		rig.Address(t, w.pods[i], "eth0", address(i, false)+"/24", address(i, true)+"/64")
		rig.Address(t, node, device, fmt.Sprintf("10.1.%d.1/24", i), fmt.Sprintf("fd01:%d::1/64", i))
		rig.Route(t, w.pods[i], "0.0.0.0/0", fmt.Sprintf("10.1.%d.1", i))
		rig.Route(t, w.pods[i], "::/0", fmt.Sprintf("fd01:%d::1", i))
	}
	limits := sockmap.DefaultLimits()
	limits.Except = except
	w.Agent = agent.New(t, limits, w.pods[:]...)
	return w
}

// listens waits until something listens at a port in a pod. It does not dial: a proxy that is
// dialed directly may dial itself in turn.
func (w *threePods) listens(pod, port int) {
	w.T.Helper()
	listening := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F:]+ 0A `, port))
	w.Until(fmt.Sprintf("somebody at port %d", port), func() bool {
		var tables []byte
		w.Must(w.pods[pod].Do(func() error {
			for _, table := range []string{"tcp", "tcp6"} {
				content, err := os.ReadFile("/proc/thread-self/net/" + table)
				if err != nil {
					return err
				}
				tables = append(tables, content...)
			}
			return nil
		}))
		return listening.Match(tables)
	})
}

// disturb does, in the course of a load, what an operator may do at any time. At the end it allows
// no connection to bypass TCP any more, and then again all of them.
func (w *threePods) disturb(long time.Duration) {
	w.T.Helper()
	pause := func() { time.Sleep(long / 5) }
	pause()
	w.Must(w.Switch(false))
	time.Sleep(200 * time.Millisecond)
	w.Must(w.Switch(true))
	pause()
	w.Stop()
	time.Sleep(50 * time.Millisecond)
	w.Start()
	pause()
	w.Must(w.Switch(false))
	w.Must(w.Switch(true))
	pause()
	w.Must(w.SetRules(nil))
	time.Sleep(100 * time.Millisecond)
	w.Let(w.pods[:]...)
}

func (w *threePods) tallies() sockmap.Tallies {
	w.T.Helper()
	tallies, err := w.Tallies()
	w.Must(err)
	return tallies
}

func (w *threePods) pairs() []sockmap.Pair {
	w.T.Helper()
	list, err := w.Pairs()
	w.Must(err)
	return list
}

// expectation is what is to become of a program's messages.
type expectation struct {
	share    float64  // at least this share of the messages of connections in the map bypasses TCP
	each     float64  // at least so many messages bypass TCP for each request
	excluded []string // the reasons for which connections must be excluded
	may      []string // the reasons for which they may be
	none     bool     // nothing may bypass TCP
}

// wantRequests logs what became of a program's requests and messages, and fails the test if that is not as
// expected.
func (w *threePods) wantRequests(what string, requests, failed int, want expectation) {
	w.T.Helper()
	tallies := w.tallies()
	messages := tallies.Redirected.Count
	var passed []string
	for _, why := range slices.Sorted(maps.Keys(tallies.Passed)) {
		if n := tallies.Passed[why].Count; n > 0 {
			messages += n
			passed = append(passed, fmt.Sprintf("%s %d", why, n))
		}
	}
	var excluded []string
	for _, why := range slices.Sorted(maps.Keys(tallies.Excluded)) {
		n := tallies.Excluded[why]
		if n > 0 {
			excluded = append(excluded, fmt.Sprintf("%s %d", why, n))
		}
		// At the end of disturb all are excluded by rules, and connections that are just closing
		// are refused.
		may := append([]string{"rules", "refused"}, want.may...)
		if expected := slices.Contains(want.excluded, why); expected != (n > 0) && !slices.Contains(may, why) {
			w.T.Errorf("%s: %d connections were excluded because of %s", what, n, why)
		}
	}
	share := float64(tallies.Redirected.Count) / float64(max(messages, 1))
	each := float64(tallies.Redirected.Count) / float64(max(requests, 1))
	w.T.Logf("%s: %d requests, %d failed; %d messages (%d KiB) past TCP, %.2f of those in the map, %.2f a request; passed: %s; %d connections, %d sockets admitted, %d left; excluded: %s",
		what, requests, failed, tallies.Redirected.Count, tallies.Redirected.Bytes>>10, share, each, strings.Join(passed, ", "),
		tallies.Watched, tallies.Admitted, tallies.Left, strings.Join(excluded, ", "))
	if failed > 0 || requests == 0 {
		w.T.Errorf("%s: %d of %d requests failed", what, failed, requests)
	}
	if want.none && tallies.Redirected.Count > 0 {
		w.T.Errorf("%s: %d messages went past TCP", what, tallies.Redirected.Count)
	}
	if share < want.share || each < want.each {
		w.T.Errorf("%s: %.2f of the messages, and %.2f for a request, went past TCP; expected at least %.2f and %.2f", what, share, each, want.share, want.each)
	}
}

// gone ends all programs, and waits until nothing is left of their connections.
func (w *threePods) gone() {
	w.T.Helper()
	// Kill them one by one: on Linux 6.18, a cgroup that was told to kill all also kills processes
	// that start in it later.
	w.Until("the programs to end", func() bool {
		pids, err := w.cgroup.Pids()
		w.Must(err)
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				w.T.Fatal(err)
			}
		}
		return len(pids) == 0
	})
	w.Until("the rows of connections to be gone", func() bool { return len(w.pairs()) == 0 })
	w.Until("the sockets to be gone", func() bool { n, err := w.Sockets(); w.Must(err); return n == 0 })
}
