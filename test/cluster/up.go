package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"fairlead.io/fairlead/test/cluster/plan"
)

// clock prints how long each step took.
type clock struct {
	out   io.Writer
	began time.Time
	last  time.Time
}

func newClock(out io.Writer) *clock {
	now := time.Now()
	return &clock{out: out, began: now, last: now}
}

// step runs a step and prints its seconds.
func (k *clock) step(name string, fn func() error) error {
	if err := fn(); err != nil {
		return err
	}
	now := time.Now()
	fmt.Fprintf(k.out, "%6.1f s  %s\n", now.Sub(k.last).Seconds(), name)
	k.last = now
	return nil
}

// up brings up the cluster that the options describe. One that runs with the same options is left as it is; another, or
// what an interrupted start has left, is taken down first. Every node gets the archives of images.
func (c *Cluster) up(want Options, images []string, log io.Writer) error {
	want.Kubernetes = c.programs.KubernetesVersion()
	if err := want.validate(); err != nil {
		return err
	}
	if err := errors.Join(c.checkMachine(), want.filterBridges()); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	clock := newClock(log)
	if c.Options == want && c.isUp() {
		fmt.Fprintln(log, "the cluster is up already")
	} else if err := c.create(want, images, clock); err != nil {
		return err
	}
	if err := c.importEverywhere(images); err != nil {
		return err
	}
	if err := c.await(clock); err != nil {
		return err
	}
	fmt.Fprintf(log, "%6.1f s  in all; KUBECONFIG=%s is for the network namespace %s\n", time.Since(clock.began).Seconds(), c.kubeconfig(), c.name("control"))
	return nil
}

func (o Options) validate() error {
	_, err := plan.ParseFamily(string(o.Family))
	if o.Nodes < 1 || o.Nodes > plan.MaxNodes {
		err = errors.Join(err, fmt.Errorf("%d nodes: there can be 1 to %d", o.Nodes, plan.MaxNodes))
	}
	if o.CNI != "bridge" && o.CNI != "none" {
		err = errors.Join(err, fmt.Errorf("CNI %q: it is bridge or none", o.CNI))
	}
	if o.Proxy != "none" && o.Proxy != "iptables" && o.Proxy != "nftables" {
		err = errors.Join(err, fmt.Errorf("proxy %q: it is none, iptables or nftables", o.Proxy))
	}
	if o.Bare && (o.CNI != "none" || o.Proxy != "none") {
		err = errors.Join(err, errors.New("bare nodes: they have neither a CNI plugin nor a proxy"))
	}
	return err
}

// create makes a new cluster, whatever is left of another one.
func (c *Cluster) create(want Options, images []string, clock *clock) error {
	var own string
	prepare := func() (err error) { own, err = c.prepare(want, clock.out); return err }
	if err := clock.step("programs and images", prepare); err != nil {
		return err
	}
	if err := clock.step("nothing left of another cluster", c.remove); err != nil {
		return err
	}
	c.Options = want
	var lay []func() error
	for i := range c.Nodes {
		lay = append(lay, func() error { return c.layNode(i+1, append([]string{own}, images...)) })
	}
	var kubelets []func() error
	for i := range c.Nodes {
		kubelets = append(kubelets, func() error { return c.startKubelet(i + 1) })
	}
	type step struct {
		name string
		run  func() error
	}
	steps := []step{
		{"namespaces", func() error { return inOrder(c.makeState, c.makeNetwork, c.makeCredentials) }},
		{"control plane, runtimes and their images", func() error {
			return together(append(lay, func() error { return inOrder(c.startControl, c.registerNodes, c.allowProxy, c.deployDNS) })...)
		}},
		{"kubelets", func() error { return together(kubelets...) }},
	}
	if c.Bare {
		steps = []step{
			{"namespaces", func() error { return inOrder(c.makeState, c.makeNetwork) }},
			{"runtimes and their images", func() error { return together(lay...) }},
		}
	}
	for _, s := range steps {
		if err := clock.step(s.name, s.run); err != nil {
			return err
		}
	}
	return c.saveOptions()
}

// await waits for what can be expected: nodes need a pod network, and the DNS needs somebody who serves Services.
func (c *Cluster) await(clock *clock) error {
	if c.Bare {
		fmt.Fprintln(clock.out, "the nodes have a runtime and nothing else")
		return nil
	}
	if c.CNI == "none" {
		fmt.Fprintln(clock.out, "the nodes are not waited for: they have no pod network yet")
		return nil
	}
	if err := clock.step("nodes ready", c.awaitNodes); err != nil {
		return err
	}
	if c.Proxy == "none" {
		fmt.Fprintln(clock.out, "the DNS is not waited for: nobody serves Services yet")
		return nil
	}
	return clock.step("DNS ready", c.awaitDNS)
}

// prepare builds what is missing and returns the archive of the images.
func (c *Cluster) prepare(want Options, log io.Writer) (string, error) {
	if err := installNodePackages(log); err != nil {
		return "", err
	}
	if err := buildPrograms(want.Proxy != "none", log); err != nil {
		return "", err
	}
	return c.buildImages(log)
}

// makeState makes the directories that a start begins with, and keeps this program for the nodes' first processes.
func (c *Cluster) makeState() error {
	if err := os.MkdirAll(c.path("logs"), 0o755); err != nil {
		return fmt.Errorf("create state: %w", err)
	}
	if err := c.cgroups.Create(c.name("control")); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return fmt.Errorf("read this program: %w", err)
	}
	// A start that was interrupted may have left one that still runs, which cannot be written to.
	if err := os.Remove(c.path("cluster")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keep this program: %w", err)
	}
	if err := os.WriteFile(c.path("cluster"), program, 0o755); err != nil {
		return fmt.Errorf("keep this program: %w", err)
	}
	return nil
}

// allowProxy lets kube-proxy read what it needs.
func (c *Cluster) allowProxy() error {
	if c.Proxy == "none" {
		return nil
	}
	_, err := c.runKubectl(nil, "create", "clusterrolebinding", "kube-proxy", "--clusterrole=system:node-proxier", "--user=system:kube-proxy")
	return err
}

// down ends the cluster. Images stay unpacked, for the next one, unless all is to be purged.
func (c *Cluster) down(purge bool) error {
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.remove(); err != nil {
		return err
	}
	if !purge {
		return nil
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	return nil
}

// remove ends every process of the cluster and removes what it has on the machine, each thing by the name that this
// program gives: also after a start that was interrupted, and of a cluster with other options.
func (c *Cluster) remove() error {
	parts := []string{"control", "router", "outside"}
	for i := range plan.MaxNodes {
		parts = append(parts, nodeName(i+1))
	}
	var ends []func() error
	for _, part := range parts {
		ends = append(ends, func() error {
			return inOrder(
				func() error { return c.cgroups.Remove(c.name(part)) },
				func() error { return removeNetns(netnsPath(c.name(part))) },
			)
		})
	}
	if err := together(ends...); err != nil {
		return err
	}
	gone := []string{"options.json", "kubeconfig", "cluster", "pki", "etcd", "helm"}
	for _, part := range parts[3:] {
		for _, dir := range []string{"etc", "etc.work", "opt", "opt.work", "var", "var.work", "kubelet", "cgroup", "kubelet.json", "containerd.toml"} {
			gone = append(gone, filepath.Join(part, dir))
		}
	}
	for _, path := range gone {
		if err := os.RemoveAll(c.path(path)); err != nil {
			return fmt.Errorf("remove state: %w", err)
		}
	}
	return nil
}

// exec runs a command in a part of the cluster, such as node1 or outside, on this terminal.
func (c *Cluster) exec(part string, command []string) error {
	where := c.netns(part)
	if strings.HasPrefix(part, "node") {
		var err error
		if where, err = c.node(part); err != nil {
			return err
		}
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
	return where.Run(cmd)
}
