package main

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"fairlead.io/fairlead/test/cluster/plan"
	"fairlead.io/fairlead/test/rig"
)

// The first process of a node is this program, and in a test this test.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{nodeInit, giveAddresses}, os.Args[1]) {
		fmt.Fprintln(os.Stderr, run(os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestValidate(t *testing.T) {
	good := Options{Nodes: 3, Family: plan.IPv4, CNI: "bridge", Proxy: "none"}
	if err := good.validate(); err != nil {
		t.Errorf("%+v: %v", good, err)
	}
	for _, change := range []func(*Options){
		func(o *Options) { o.Nodes = 0 },
		func(o *Options) { o.Nodes = plan.MaxNodes + 1 },
		func(o *Options) { o.Family = "ipv5" },
		func(o *Options) { o.CNI = "flannel" },
		func(o *Options) { o.Proxy = "ipvs" },
		func(o *Options) { o.Bare = true }, // with a bridge
	} {
		bad := good
		change(&bad)
		if err := bad.validate(); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestRun(t *testing.T) {
	for _, args := range [][]string{
		nil, {"upp"}, {"up", "-prefix", "UPPER"}, {"up", "-prefix", "../x"}, {"up", "-nodes", "x"}, {"exec"}, {"exec", "node1"}, {"build", "nothing"},
	} {
		if err := run(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

// A family has to reach every flag that has addresses in it.
func TestFlags(t *testing.T) {
	tests := map[plan.Family][]string{
		plan.IPv4: {
			"--advertise-address=10.200.0.2", "--service-cluster-ip-range=10.202.0.0/16",
			"--cluster-cidr=10.201.0.0/16", "--service-cluster-ip-range=10.202.0.0/16", "--node-cidr-mask-size=24",
		},
		plan.IPv6: {
			"--advertise-address=fd00:10:200::2", "--service-cluster-ip-range=fd00:10:202::/112",
			"--cluster-cidr=fd00:10:201::/48", "--service-cluster-ip-range=fd00:10:202::/112", "--node-cidr-mask-size=64",
		},
		plan.Dual: {
			"--advertise-address=10.200.0.2", "--service-cluster-ip-range=10.202.0.0/16,fd00:10:202::/112",
			"--cluster-cidr=10.201.0.0/16,fd00:10:201::/48", "--service-cluster-ip-range=10.202.0.0/16,fd00:10:202::/112",
			"--node-cidr-mask-size-ipv4=24", "--node-cidr-mask-size-ipv6=64",
		},
	}
	for family, want := range tests {
		c := &Cluster{Options: Options{Family: family}}
		have := slices.DeleteFunc(slices.Concat(c.apiServerFlags(), c.controllerFlags()), func(flag string) bool {
			return !strings.Contains(flag, "cidr=") && !strings.Contains(flag, "mask") && !strings.Contains(flag, "ip-range") && !strings.Contains(flag, "advertise")
		})
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s (-want +have):\n%s", family, diff)
		}
	}
}

func TestRenderDNS(t *testing.T) {
	c, err := openCluster("render")
	if err != nil {
		t.Fatal(err)
	}
	c.Options = Options{Nodes: 1, Family: plan.IPv6}
	text, err := c.renderDNS()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]map[string]any{}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		kinds[fmt.Sprint(object["kind"])], _ = object["spec"].(map[string]any)
	}
	if address := kinds["Service"]["clusterIP"]; address != "fd00:10:202::a" {
		t.Errorf("address %v", address)
	}
	if replicas := kinds["Deployment"]["replicas"]; replicas != 1.0 {
		t.Errorf("%v replicas on one node", replicas)
	}
	if !strings.Contains(string(text), "image: "+c.coreDNSImage()+"\n") {
		t.Errorf("no image %s in\n%s", c.coreDNSImage(), text)
	}
}

// A cluster comes up after a start that was interrupted, is what it says it is, and leaves nothing behind.
func TestCluster(t *testing.T) {
	rig.Root(t)
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	// One name for a checkout: other checkouts have others, and what an interrupted run left is found by the next.
	c, err := openCluster(fmt.Sprintf("t%06x", crc32.ChecksumIEEE([]byte(dir))&0xffffff))
	if err != nil {
		t.Fatal(err)
	}
	requireBuilt(t, c)
	t.Cleanup(func() {
		if err := c.down(true); err != nil {
			t.Errorf("down: %v", err)
		}
		checkNothingLeft(t, c)
	})
	want := Options{Nodes: 1, Family: plan.Dual, CNI: "bridge", Proxy: "none"}
	c.Options = want
	for _, step := range []func() error{c.remove, c.makeState, c.makeNetwork} { // as far as an interrupted start may have come
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	c.Options = Options{}
	var log bytes.Buffer
	if err := c.up(want, nil, &log); err != nil {
		t.Fatalf("up: %v\n%s", err, log.String())
	}
	t.Logf("\n%s", log.String())

	if _, err := c.runKubectl(nil, "wait", "--for=condition=Ready", "node/node1", "--timeout=120s"); err != nil {
		t.Fatal(err)
	}
	const columns = `jsonpath={.metadata.labels.topology\.kubernetes\.io/zone} {.spec.podCIDRs} {.status.addresses[*].address} {.status.nodeInfo.kubeletVersion}`
	have, err := c.runKubectl(nil, "get", "node", "node1", "-o", columns)
	if err != nil {
		t.Fatal(err)
	}
	if want := `zone1 ["10.201.1.0/24","fd00:10:201:1::/64"] 10.200.0.11 fd00:10:200::11 node1 ` + c.programs.KubernetesVersion(); have != want {
		t.Errorf("the node is %q, want %q", have, want)
	}
	where, err := c.node("node1")
	if err != nil {
		t.Fatal(err)
	}
	have, err = output(where, exec.Command("sh", "-c", "hostname; grep ^0:: /proc/self/cgroup; ls -d /sys/class/net/eth0; ls -A /sys/fs/bpf | grep -vc debug"), nil)
	if want := "node1\n0::/" + c.name("node1") + "/system\n/sys/class/net/eth0\n0\n"; have != want {
		t.Errorf("on the node: %q, want %q (%v)", have, want, err)
	}
	// Nobody listens there, which only the node can say.
	refused := c.netns("outside").Do(func() error { _, err := net.Dial("tcp", "[fd00:10:200::11]:1"); return err })
	if !errors.Is(refused, unix.ECONNREFUSED) {
		t.Errorf("from outside to the node: %v", refused)
	}
	log.Reset()
	if err := c.up(want, nil, &log); err != nil || !strings.Contains(log.String(), "up already") {
		t.Errorf("up again: %v\n%s", err, log.String())
	}
}

// requireBuilt ends the test unless the programs are there: building them takes minutes.
func requireBuilt(t *testing.T, c *Cluster) {
	t.Helper()
	images, err := c.imagesPath()
	if err != nil {
		t.Fatal(err)
	}
	missing := slices.DeleteFunc(c.programs.Missing(), func(name string) bool { return name == "kube-proxy" })
	if _, err := os.Stat(images); err != nil {
		missing = append(missing, filepath.Base(images))
	}
	if len(missing) > 0 {
		rig.Lacking(t, "cluster", strings.Join(missing, ", ")+" must be built first: go run ./test/cluster build")
	}
}

func checkNothingLeft(t *testing.T, c *Cluster) {
	t.Helper()
	for _, part := range []string{"control", "router", "outside", "node1"} {
		paths := []string{netnsPath(c.name(part))}
		for _, hierarchy := range append(c.cgroups.Old, c.cgroups.Unified) {
			paths = append(paths, filepath.Join(hierarchy, c.name(part)))
		}
		for _, path := range paths {
			if _, err := os.Stat(path); !os.IsNotExist(err) {
				t.Errorf("%s is left behind (%v)", path, err)
			}
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), c.dir) {
		t.Errorf("mounts are left behind (%v):\n%s", err, mounts)
	}
}
