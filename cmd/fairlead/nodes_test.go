package main

import (
	"regexp"
	"strings"
	"testing"

	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/test/rig"
)

const nodeManifest = `
apiVersion: v1
kind: Node
metadata: {name: @name}
spec: {podCIDRs: ["@cidr"]}
status: {addresses: [{type: InternalIP, address: "@addr"}]}
`

// TestClusterNodes checks that the programs know the nodes of the cluster, that a node's number
// outlives the agent and a node that comes before it by name, that rows that differ are found and
// repaired, and that a node that goes leaves nothing.
func TestClusterNodes(t *testing.T) {
	n := newNode(t)
	manifest := func(name, addr, cidr string) {
		n.write(name+".yaml", strings.NewReplacer("@name", name, "@addr", addr, "@cidr", cidr).Replace(nodeManifest))
	}
	dump := func(name string) string { return n.run("map", "dump", name) }
	has := func(name string, lines ...string) func() bool {
		return func() bool {
			text := regexp.MustCompile(" +").ReplaceAllString(dump(name), " ")
			for _, line := range lines {
				absent, without := strings.CutPrefix(line, "!")
				if strings.Contains(text, absent) == without {
					return false
				}
			}
			return true
		}
	}
	manifest("node-a", "192.0.2.1", "10.1.0.0/24")
	manifest("node-c", "192.0.2.3", "10.3.0.0/24")
	n.start()
	n.waitFor("the nodes", has("cluster_nodes", "192.0.2.1 1 true", "192.0.2.3 2 false"))
	n.waitFor("their sources", has("node_sources", "192.0.2.1/32 1", "10.1.0.0/24 1", "10.3.0.0/24 2", "192.0.2.3/32 2"))
	n.agent.Kill()
	manifest("node-b", "192.0.2.2", "10.2.0.0/24")
	n.start()
	n.waitFor("another node", has("cluster_nodes", "192.0.2.1 1 true", "192.0.2.2 3 false", "192.0.2.3 2 false"))
	manifest("node-b", "192.0.2.2", "10.3.0.0/24") // which is node-c's
	n.waitFor("the sources of before", has("node_sources", "10.3.0.0/24 2", "192.0.2.2/32 3", "!10.2.0.0/24"))
	out, err := rig.RunChild(nil, nil, "fairlead", append([]string{"status"}, n.flags...)...)
	if !strings.Contains(out, "10.3.0.0/24 of node node-b: it overlaps with 10.3.0.0/24 of node node-c") {
		t.Errorf("status does not say whose claim is not believed: %v\n%s", err, out)
	}

	m, err := maps.Open(datapath.MapsDir(n.bpffs), false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var first maps.Addr
	if err := m.ClusterNodes.NextKey(nil, &first); err != nil {
		t.Fatal(err)
	}
	if first == (maps.Addr{}) {
		if err := m.ClusterNodes.NextKey(&first, &first); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.ClusterNodes.Delete(&first); err != nil {
		t.Fatal(err)
	}
	if out, err := rig.RunChild(nil, nil, "fairlead", append([]string{"verify"}, n.flags...)...); err == nil || !strings.Contains(out, "cluster node") {
		t.Errorf("a row that is missing: %v, %s", err, out)
	}
	if out := n.run("verify", "--repair"); !strings.Contains(out, "1 differences, 1 mended") {
		t.Errorf("repairing it: %s", out)
	}
	if row, err := m.ClusterNodes.LookupBytes(&first); err != nil || row == nil {
		t.Errorf("it is not repaired: %v, %v", row, err)
	}

	n.remove("node-c.yaml")
	n.waitFor("that a node went", has("cluster_nodes", "192.0.2.2 3 false", "!192.0.2.3"))
	n.waitFor("that its network is another's", has("node_sources", "10.3.0.0/24 3", "!192.0.2.3"))
}
