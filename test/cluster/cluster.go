package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/apiserver/pinned"
	"fairlead.io/fairlead/test/cluster/place"
	"fairlead.io/fairlead/test/cluster/plan"
)

// Options say what a cluster is like.
type Options struct {
	Nodes  int
	Family plan.Family
	CNI    string // "bridge", or "none" for nodes without a pod network
	Proxy  string // "none", or the mode of kube-proxy
	Bare   bool   // the nodes have a runtime and no kubelet, and there is no control plane: somebody else starts Kubernetes

	Kubernetes string // its version, such as v1.36.3
}

// Cluster is a cluster on this machine, whether it is up or not.
type Cluster struct {
	Options
	prefix   string
	dir      string // of all its state
	cgroups  *place.Cgroups
	programs *pinned.Set
}

// programNames are what a cluster is made of, less kube-proxy.
func programNames() []string {
	return []string{
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl",
		"coredns", "agnhost", "regression-issue-74839",
	}
}

// openCluster returns the cluster of that prefix, with the options that it was started with if it was.
func openCluster(prefix string) (*Cluster, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache: %w", err)
	}
	c := &Cluster{prefix: prefix, dir: filepath.Join(base, "fairlead", "cluster", prefix)}
	if c.cgroups, err = place.FindCgroups(); err != nil {
		return nil, err
	}
	if c.programs, err = pinned.Find(append(programNames(), "kube-proxy")...); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(c.path("options.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &c.Options)
	}
	if err != nil {
		return nil, fmt.Errorf("read options of the cluster: %w", err)
	}
	return c, nil
}

// saveOptions writes down that the cluster is up, and how.
func (c *Cluster) saveOptions() error {
	content, err := json.Marshal(c.Options)
	if err == nil {
		err = os.WriteFile(c.path("options.json"), content, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write options of the cluster: %w", err)
	}
	return nil
}

// lock keeps others from starting or ending the cluster meanwhile.
func (c *Cluster) lock() (unlock func(), err error) {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, fmt.Errorf("create state: %w", err)
	}
	file, err := os.OpenFile(c.path("lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock state: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock state: %w", err)
	}
	return func() { file.Close() }, nil
}

// path returns a path in the state of the cluster.
func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.dir}, elements...)...)
}

func (c *Cluster) kubeconfig() string { return c.path("kubeconfig") }

// program returns the path of a program.
func (c *Cluster) program(name string) string {
	b, err := c.programs.Binary(name)
	if err != nil {
		return name // starting it says that it is not there
	}
	return b.Path
}

// name returns the name of a part of the cluster on the machine.
func (c *Cluster) name(part string) string { return c.prefix + "-" + part }

func nodeName(i int) string { return "node" + strconv.Itoa(i) }

// nodeNames returns the names of the cluster's nodes.
func (c *Cluster) nodeNames() []string {
	var names []string
	for i := range c.Nodes {
		names = append(names, nodeName(i+1))
	}
	return names
}

// netns returns a place in the network namespace of a part.
func (c *Cluster) netns(part string) place.Place { return place.Place{Netns: netnsPath(c.name(part))} }

// node returns the place of a node's own processes.
func (c *Cluster) node(name string) (place.Place, error) {
	pids, err := c.cgroups.Pids(c.name(name) + "/init")
	if err != nil {
		return place.Place{}, err
	}
	if len(pids) != 1 {
		return place.Place{}, fmt.Errorf("find %s: it is not up (make cluster)", c.name(name))
	}
	return place.Place{Init: pids[0], Cgroup: c.cgroups.Dir(c.name(name) + "/system")}, nil
}

// isUp tells whether all of the cluster runs.
func (c *Cluster) isUp() bool {
	if c.Nodes == 0 {
		return false
	}
	if pids, err := c.cgroups.Pids(c.name("control")); err != nil || len(pids) < 4 && !c.Bare {
		return false
	}
	for _, name := range c.nodeNames() {
		if _, err := c.node(name); err != nil {
			return false
		}
	}
	return true
}

// kubectl returns a kubectl command, to be run in the place of the control plane.
func (c *Cluster) kubectl(args ...string) *exec.Cmd {
	cmd := exec.Command(c.program("kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
	return cmd
}

// runKubectl runs kubectl with an input, and returns what it prints.
func (c *Cluster) runKubectl(input []byte, args ...string) (string, error) {
	return output(c.netns("control"), c.kubectl(args...), input)
}
