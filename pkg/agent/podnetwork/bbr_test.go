package podnetwork

import (
	"os"
	"testing"

	"fairlead.io/fairlead/pkg/config"
)

// TestBBRRecord checks that what init has recorded counts for agents with the same way for packets
// only. A record that does not say for which way it is counts for none.
func TestBBRRecord(t *testing.T) {
	const (
		veth   = "--pod-device=veth --host-routing=bpf"
		advice = `: run "fairlead init --bbr=true" with the agent's options, and restart the agent`
	)
	plain := config.Config{PodDevice: "auto", HostRouting: "bpf", Routing: "none"}
	stack, netkit, tunnel, native := plain, plain, plain, plain
	stack.HostRouting, netkit.PodDevice, tunnel.Routing, native.Routing = "stack", "netkit", "vxlan", "native"
	for _, c := range []struct {
		record string
		agent  config.Config
		lacks  string
	}{
		{veth + "\nworks\n", plain, ""},
		{veth + "\nworks\n", native, ""},
		{veth + "\nit does not\n", plain, "it does not"},
		{veth + "\nworks\n", stack, "it has not been tested with --pod-device=veth --host-routing=stack" + advice},
		{veth + "\nit does not\n", netkit, "it has not been tested with --pod-device=netkit --host-routing=bpf" + advice},
		{veth + "\nworks\n", tunnel, "it has not been tested with " + veth + " --routing=vxlan" + advice},
		{veth + " --routing=vxlan\nworks\n", tunnel, ""},
		{"works\n", plain, "it has not been tested with " + veth + advice},
		{"it does not\n", plain, "it has not been tested with " + veth + advice},
		{veth + "\n", plain, "it has not been tested with " + veth + advice},
		{"", plain, "it has not been tested with " + veth + advice},
	} {
		cfg := c.agent
		cfg.StateDir, cfg.BBR = t.TempDir(), "true"
		if err := os.WriteFile(BBRFile(&cfg), []byte(c.record), 0o600); err != nil {
			t.Fatal(err)
		}
		if lacks := LacksBBR(&cfg); lacks != c.lacks {
			t.Errorf("%q: an agent lacks %q, want %q", c.record, lacks, c.lacks)
		}
	}
}
