package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"fairlead.io/fairlead/deploy/image/oci"
)

// Agent says how fairlead is installed: by its chart, as a user does it.
type Agent struct {
	Chart   string   // its directory
	Image   string   // the archive that make image writes
	Routing string   // the value of that name; the chart's own if it is empty
	Sets    []string // more values, as helm takes them
	Options []string // of the agent, such as --big-tcp=true
}

// releaseName is what helm knows the agent by, in the namespace kube-system.
const releaseName = "fairlead"

// values returns the values of the chart that differ here from what users have: where the API server is, which nobody has
// noted here as kubeadm would, the bits of the image, as there is no registry, and the cgroup of the node, as all nodes
// share one machine.
func (c *Cluster) values(a Agent, image oci.Identity) map[string]any {
	server := apiServer(c.Family)
	options := a.Options
	if !slices.Contains(a.Sets, "mode=accelerate-only") { // which has nothing of cgroups
		options = append([]string{"--cgroup-root=" + c.cgroups.Dir(c.name("$(NODE_NAME)"))}, options...)
	}
	values := map[string]any{
		"k8sServiceHost": server.Addr().String(), "k8sServicePort": strconv.Itoa(int(server.Port())),
		"image":     map[string]any{"repository": image.Repository(), "digest": image.Digest},
		"extraArgs": options,
	}
	if c.CNI != "none" {
		values["podNetwork"] = "off"
	}
	if a.Routing != "" {
		values["routing"] = a.Routing
	}
	return values
}

// install installs the agent on a cluster that is up, or changes how it is installed, and waits until all of the cluster
// works.
func (c *Cluster) install(a Agent, log io.Writer) error {
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if !c.isUp() || c.Bare {
		return errors.New("install the agent: there has to be a cluster with a control plane of ours (make cluster)")
	}
	clock := newClock(log)
	steps := []struct {
		name string
		run  func() error
	}{
		{"image of the agent", func() error { return c.importAgent(a.Image) }},
		{"chart", func() error { return c.installChart(a) }},
		{"agents ready", c.awaitAgents},
		{"nodes ready", c.awaitNodes},
		{"DNS ready", c.awaitDNS},
	}
	for _, s := range steps {
		if err := clock.step(s.name, s.run); err != nil {
			return err
		}
	}
	return nil
}

// importAgent brings the image to every node, under its digest too, as if a node had fetched it by that.
func (c *Cluster) importAgent(archive string) error {
	image, err := oci.Identify(archive)
	if err != nil {
		return err
	}
	if err := c.importEverywhere([]string{archive}); err != nil {
		return err
	}
	for _, name := range c.nodeNames() {
		where, err := c.node(name)
		if err != nil {
			return err
		}
		if _, err := output(where, ctr("images", "tag", "--force", image.Name, image.Repository()+"@"+image.Digest), nil); err != nil {
			return fmt.Errorf("import images on %s: %w", name, err)
		}
	}
	return nil
}

func (c *Cluster) installChart(a Agent) error {
	image, err := oci.Identify(a.Image)
	if err != nil {
		return err
	}
	values, err := json.Marshal(c.values(a, image))
	if err != nil {
		return fmt.Errorf("install the agent: %w", err)
	}
	args := []string{"upgrade", "--install", "--namespace=kube-system", "--values=-"}
	for _, set := range a.Sets {
		args = append(args, "--set="+set)
	}
	helm, err := c.helm(append(args, releaseName, a.Chart)...)
	if err != nil {
		return err
	}
	_, err = output(c.netns("control"), helm, values)
	return err
}

// helm returns a helm command, to be run in the place of the control plane.
func (c *Cluster) helm(args ...string) (*exec.Cmd, error) {
	find := exec.Command("go", "tool", "-n", "-modfile=test/tools/helm/go.mod", "helm")
	find.Stderr = os.Stderr
	path, err := find.Output()
	if err != nil {
		return nil, fmt.Errorf("build helm: %w", err)
	}
	cmd := exec.Command(strings.TrimSpace(string(path)), args...)
	cmd.Env = os.Environ()
	for _, dir := range []string{"CACHE", "CONFIG", "DATA"} { // not those of whoever is at this machine
		cmd.Env = append(cmd.Env, "HELM_"+dir+"_HOME="+c.path("helm"))
	}
	cmd.Env = append(cmd.Env, "KUBECONFIG="+c.kubeconfig())
	return cmd, nil
}

// awaitAgents waits until the agents are those of the last change, and ready.
func (c *Cluster) awaitAgents() error {
	if _, err := c.runKubectl(nil, "--namespace=kube-system", "rollout", "status", "daemonset/"+releaseName, waitFlag()); err != nil {
		return fmt.Errorf("wait for agents: %w", err)
	}
	return nil
}
