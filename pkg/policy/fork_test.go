package policy

import (
	"net/netip"
	"testing"
)

// What happens to a fork does not reach the Compiler that it came from.
func TestFork(t *testing.T) {
	c := isolated()
	c.SetPod(pod("n", "web", "web", client.String()))
	c.Update()
	fork := Fork(c, nil)
	fork.Update()
	fork.DeletePod(pod("n", "web", "web", client.String()).Name)
	fork.SetPod(pod("n", "other", "web", "192.0.2.1"))
	fork.DeletePolicy(c.Policies()[0].Name)
	fork.Update()
	c.Update()
	c.accepts(t, client, true)
	c.accepts(t, netip.MustParseAddr("192.0.2.1"), false)
	if _, known := c.Namespace(client); !known {
		t.Errorf("the pods of the first are those of its fork: %d", c.Pods())
	}
}
