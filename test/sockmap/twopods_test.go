// Package sockmap tests, with real sockets in network namespaces, that connections within a node
// bypass TCP when they should, and that applications cannot tell.
package sockmap

import (
	"os"
	"testing"

	"fairlead.io/fairlead/pkg/sockmap"
	"fairlead.io/fairlead/test/rig"
	"fairlead.io/fairlead/test/sockmap/agent"
)

func TestMain(m *testing.M) {
	os.Exit(rig.Main(agent.Sharing{Tests: m}, rig.Funcs{"talk": talkMain, "torture": tortureMain}))
}

// twoPods is two pods connected by a veth, and the agent that serves their sockets.
type twoPods struct {
	pods [2]*rig.Netns
	*agent.Agent
}

// The addresses of the second pod.
const (
	server4 = "10.1.0.2"
	server6 = "fd01::2"
)

// newTwoPods returns pods whose agent takes readers by edge-triggered epoll for such that look again. Go's sockets are
// read so, and the ends of the tests' connections read just what they expect, which does not show it.
func newTwoPods(t *testing.T, limits sockmap.Limits) *twoPods {
	t.Helper()
	limits.DrainingReaders = true
	return newTwoPodsAsIs(t, limits)
}

func newTwoPodsAsIs(t *testing.T, limits sockmap.Limits) *twoPods {
	t.Helper()
	rig.MapIterators(t)
	w := &twoPods{pods: [2]*rig.Netns{rig.NewNetns(t, "client"), rig.NewNetns(t, "server")}}
	rig.Veth(t, w.pods[0], "eth0", w.pods[1], "eth0")
	rig.Address(t, w.pods[0], "eth0", "10.1.0.1/24", "fd01::1/64")
	rig.Address(t, w.pods[1], "eth0", server4+"/24", server6+"/64")
	w.Agent = agent.New(t, limits, w.pods[:]...)
	return w
}
