// Command agent packs the agent for a cluster: the smallest image that holds it, and the smallest manifest that runs it
// on every node.
//
//	go run ./test/cluster/agent -out DIR      writes DIR/agent.tar and DIR/agent.yaml
//
// A user's nodes need neither of the two values that the manifest of this rig sets: the address of the API server, as
// nobody serves its cluster IP before the agent does and there is no balancer in front, and the cgroup of the node, as
// all nodes share one machine.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"fairlead.io/fairlead/test/cluster/place"
	"fairlead.io/fairlead/test/cluster/plan"
)

// apiServerPort is where the cluster's API server listens.
const apiServerPort = "6443"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("agent", flag.ContinueOnError)
	out := flags.String("out", filepath.Join("_output", "agent"), "directory to write agent.tar and agent.yaml to")
	binary := flags.String("binary", filepath.Join("bin", "fairlead"), "the agent, as make build leaves it")
	plugin := flags.String("plugin", filepath.Join("bin", "fairlead-cni"), "the CNI plugin, likewise")
	rbac := flags.String("rbac", filepath.Join("deploy", "kubernetes", "rbac.yaml"), "manifests of what the agent may do")
	prefix := flags.String("prefix", "fl", "prefix of the cluster")
	family := flags.String("family", string(plan.IPv4), "families of the cluster: ipv4, dual or ipv6")
	routing := flags.String("routing", "", "have the agent give pods their network, with this --routing; another plugin does if it is empty")
	options := flags.String("options", "", "more options of the agent, with blanks between them, such as --dsr=ipip")
	if err := flags.Parse(args); err != nil {
		return err
	}
	settings, err := settingsOf(*prefix, *family)
	if err != nil {
		return err
	}
	settings.Routing, settings.Options = *routing, strings.Fields(*options)
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	name, err := writeImage(filepath.Join(*out, "agent.tar"), *binary, *plugin)
	if err != nil {
		return err
	}
	manifest, err := render(name, settings)
	if err != nil {
		return err
	}
	rules, err := os.ReadFile(*rbac)
	if err != nil {
		return fmt.Errorf("read the agent's rights: %w", err)
	}
	content := append(append(rules, "---\n"...), manifest...)
	if err := os.WriteFile(filepath.Join(*out, "agent.yaml"), content, 0o644); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	return nil
}

// settingsOf returns what differs on this rig.
func settingsOf(prefix, family string) (Settings, error) {
	f, err := plan.ParseFamily(family)
	if err != nil {
		return Settings{}, err
	}
	cgroups, err := place.FindCgroups()
	if err != nil {
		return Settings{}, err
	}
	server := net.JoinHostPort(f.Control()[0].Addr().String(), apiServerPort)
	return Settings{APIServer: server, CgroupRoot: cgroups.Dir(prefix + "-$(NODE_NAME)")}, nil
}
