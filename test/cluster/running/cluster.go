// Package running gives access to a running cluster from programs other than the one that started
// it. It asks that program where the parts of the cluster are.
package running

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"fairlead.io/fairlead/test/cluster/place"
	"fairlead.io/fairlead/test/cluster/plan"
)

// Cluster locates the parts of a cluster.
type Cluster struct {
	Prefix     string
	Family     plan.Family
	Nodes      int
	Kubernetes string // version
	Kubeconfig string
	Logs       string // directory of the logs
	netns      string // path prefix of the network namespaces
	cgroups    string // path prefix of the nodes' cgroups
}

// Command returns the command that starts, stops and queries clusters, with the given arguments.
// The project's directory is root.
func Command(ctx context.Context, root string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "./test/cluster"}, args...)...)
	cmd.Dir, cmd.Stderr = root, os.Stderr
	return cmd
}

// Find returns the cluster with the given prefix.
func Find(ctx context.Context, root, prefix string) (*Cluster, error) {
	text, err := Command(ctx, root, "env", "-prefix", prefix).Output()
	if err != nil {
		return nil, fmt.Errorf("find cluster: %w", err)
	}
	c, err := parse(string(text))
	if err == nil && c.Nodes == 0 {
		err = errors.New("the cluster is not up (make cluster)")
	}
	if err != nil {
		return nil, fmt.Errorf("find cluster: %w", err)
	}
	c.Prefix = prefix
	return c, nil
}

// parse reads the command's output, one shell variable per line.
func parse(text string) (*Cluster, error) {
	vars := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		vars[name] = value
	}
	for _, name := range []string{"KUBECONFIG", "LOGS", "NETNS", "CGROUPS", "FAMILY", "NODES", "KUBERNETES"} {
		if _, ok := vars[name]; !ok {
			return nil, fmt.Errorf("no %s in %q", name, text)
		}
	}
	nodes, err := strconv.Atoi(vars["NODES"])
	if err != nil {
		return nil, fmt.Errorf("read the number of nodes: %w", err)
	}
	return &Cluster{
		Family: plan.Family(vars["FAMILY"]), Nodes: nodes, Kubernetes: vars["KUBERNETES"],
		Kubeconfig: vars["KUBECONFIG"], Logs: vars["LOGS"], netns: vars["NETNS"], cgroups: vars["CGROUPS"],
	}, nil
}

// Names returns the names of the nodes.
func (c *Cluster) Names() []string {
	var names []string
	for i := range c.Nodes {
		names = append(names, "node"+strconv.Itoa(i+1))
	}
	return names
}

// Netns returns a place in the network namespace of a part: control, outside, router or a node.
func (c *Cluster) Netns(part string) place.Place { return place.Place{Netns: c.netns + part} }

// Cgroup returns the cgroup2 directory of a node.
func (c *Cluster) Cgroup(name string) string { return c.cgroups + name }

// Node returns the place of a node's own processes.
func (c *Cluster) Node(name string) (place.Place, error) {
	text, err := os.ReadFile(c.cgroups + name + "/init/cgroup.procs")
	if err != nil {
		return place.Place{}, fmt.Errorf("find %s: %w", name, err)
	}
	init, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return place.Place{}, fmt.Errorf("find %s: the node is not up: %w", name, err)
	}
	return place.Place{Init: init, Cgroup: c.cgroups + name + "/system"}, nil
}
