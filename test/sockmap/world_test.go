// Package sockmap tests, with real sockets in network namespaces, that connections of one node go past TCP when they should, and that nobody can tell.
package sockmap

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
)

func TestMain(m *testing.M) {
	os.Exit(rig.Main(m, rig.Funcs{"talk": talkMain, "torture": tortureMain}))
}

// world is two pods that a device connects, and what serves their sockets.
type world struct {
	t      *testing.T
	cgroup *rig.Cgroup
	pods   [2]*rig.Netns
	bpffs  string
	limits sockmap.Limits
	*sockmap.Sockmap
	stop func()
}

// The addresses of the second pod.
const (
	server4 = "10.1.0.2"
	server6 = "fd01::2"
)

func newWorld(t *testing.T, limits sockmap.Limits) *world {
	t.Helper()
	rig.Root(t)
	w := &world{t: t, cgroup: rig.NewCgroup(t), bpffs: rig.BPFFS(t), limits: limits}
	w.pods = [2]*rig.Netns{rig.NewNetns(t, "client"), rig.NewNetns(t, "server")}
	rig.Veth(t, w.pods[0], "eth0", w.pods[1], "eth0")
	rig.Address(t, w.pods[0], "eth0", "10.1.0.1/24", "fd01::1/64")
	rig.Address(t, w.pods[1], "eth0", server4+"/24", server6+"/64")
	w.open()
	t.Cleanup(func() { w.close() })
	w.letAll()
	w.must(w.Switch(true))
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// open starts an agent's part.
func (w *world) open() {
	w.t.Helper()
	s, err := sockmap.Open(sockmap.Config{BPFFS: w.bpffs, Limits: w.limits, Log: slog.New(slog.DiscardHandler)})
	w.must(err)
	w.Sockmap = s
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	w.stop = func() {
		cancel()
		w.must(<-ended)
		w.must(s.Close())
	}
}

// close ends it. What is pinned goes on.
func (w *world) close() {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
}

// letAll lets the pods speak past TCP, with each other and with themselves.
func (w *world) letAll() {
	w.t.Helper()
	rules := map[sockmap.Place]sockmap.Rules{}
	for _, pod := range w.pods {
		rules[sockmap.Place{Netns: w.cookie(pod)}] = sockmap.Rules{From: 1, To: 1}
	}
	w.must(w.SetRules(rules))
}

// until waits for something that another process or the agent brings about.
func (w *world) until(what string, f func() bool) {
	w.t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited in vain for %s", what)
		}
	}
}
