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
	os.Exit(rig.Main(m, rig.Funcs{"talk": talkMain, "torture": tortureMain}))
}

// world is two pods connected by a veth, and the agent that serves their sockets.
type world struct {
	pods [2]*rig.Netns
	*agent.Agent
}

// The addresses of the second pod.
const (
	server4 = "10.1.0.2"
	server6 = "fd01::2"
)

func newWorld(t *testing.T, limits sockmap.Limits) *world {
	t.Helper()
	rig.Root(t)
	w := &world{pods: [2]*rig.Netns{rig.NewNetns(t, "client"), rig.NewNetns(t, "server")}}
	rig.Veth(t, w.pods[0], "eth0", w.pods[1], "eth0")
	rig.Address(t, w.pods[0], "eth0", "10.1.0.1/24", "fd01::1/64")
	rig.Address(t, w.pods[1], "eth0", server4+"/24", server6+"/64")
	w.Agent = agent.New(t, limits, w.pods[:]...)
	return w
}
