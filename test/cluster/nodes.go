package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/test/cluster/image"
	"fairlead.io/fairlead/test/cluster/node"
	"fairlead.io/fairlead/test/cluster/place"
)

// nodeInit is the command by which this program becomes the first process of a node.
const nodeInit = "node-init"

// pluginDirs are where distributions put the CNI plugins.
func pluginDirs() []string { return []string{"/usr/lib/cni", "/usr/libexec/cni"} }

// layNode makes a node without its kubelet: the runtime is ready, and has the images.
func (c *Cluster) layNode(i int, images []string) error {
	name := nodeName(i)
	if err := c.cgroups.Create(c.name(name), "init", "system"); err != nil {
		return err
	}
	if err := c.writeNodeConfig(i); err != nil {
		return err
	}
	if err := c.startInit(name); err != nil {
		return err
	}
	return inOrder(
		func() error { return c.installPlugins(i) },
		func() error { return c.masqueradePods(name) },
		func() error { return c.startRuntime(name) },
		func() error { return c.importImages(name, images) },
	)
}

// writeNodeConfig writes what the programs of a node read, into a directory that the node sees too.
func (c *Cluster) writeNodeConfig(i int) error {
	dir := c.path(nodeName(i))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("configure node: %w", err)
	}
	config := []byte(node.Containerd(image.Pause))
	if err := os.WriteFile(filepath.Join(dir, "containerd.toml"), config, 0o644); err != nil || c.Bare {
		return err
	}
	kubelet, err := node.Kubelet(node.KubeletConfig{
		Family: c.Family, CgroupRoot: "/" + c.name(nodeName(i)), ClientCA: c.path("pki", "ca.crt"),
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "kubelet.json"), kubelet, 0o644)
}

// startInit starts the first process of a node and waits until it has laid out the node.
func (c *Cluster) startInit(name string) error {
	ready, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	defer ready.Close()
	where := c.netns(name)
	where.Cgroup = c.cgroups.Dir(c.name(name) + "/init")
	cmd := exec.Command(c.path("cluster"), nodeInit, name, c.path(name))
	cmd.Stdout = write
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS}
	started, err := c.start(where, name+"-init", cmd)
	write.Close()
	if err != nil {
		return err
	}
	if line, err := bufio.NewReader(ready).ReadString('\n'); line != node.Ready {
		return fmt.Errorf("start %s: %w; the last of %s:\n%s", name, err, started.log, tail(started.log))
	}
	return nil
}

// installPlugins gives a node the CNI plugins, the configuration that names them last.
func (c *Cluster) installPlugins(i int) error {
	where, err := c.node(nodeName(i))
	if err != nil {
		return err
	}
	root := fmt.Sprintf("/proc/%d/root", where.Init)
	for _, dir := range pluginDirs() {
		plugins, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, p := range plugins {
			if c.CNI == "none" && p.Name() != "loopback" { // the runtime itself wants that one
				continue
			}
			if err := os.Symlink(filepath.Join(dir, p.Name()), root+"/opt/cni/bin/"+p.Name()); err != nil {
				return fmt.Errorf("install CNI plugins: %w", err)
			}
		}
		break
	}
	if c.CNI == "none" {
		return nil
	}
	bridge, err := node.Bridge(c.Family.NodePods(i))
	if err != nil {
		return err
	}
	if err := os.WriteFile(root+"/etc/cni/net.d/90-bridge.conflist", bridge, 0o644); err != nil {
		return fmt.Errorf("configure CNI: %w", err)
	}
	return nil
}

// masqueradePods writes the rules by which pods reach the outside, if nothing else in the cluster does that.
func (c *Cluster) masqueradePods(name string) error {
	if c.CNI == "none" {
		return nil
	}
	where, err := c.node(name)
	if err != nil {
		return err
	}
	if _, err := output(where, exec.Command("nft", "-f", "-"), []byte(node.Masquerade(c.Family))); err != nil {
		return fmt.Errorf("masquerade pods: %w", err)
	}
	return nil
}

// restartRuntime starts the container runtime of a node that was up before, with all that it remembers.
func (c *Cluster) restartRuntime(name string) error {
	where, err := c.node(name)
	if err != nil {
		return err
	}
	_, err = c.runContainerd(where, name)
	return err
}

// startRuntime starts the container runtime and waits until it listens. What an earlier run left is removed: a kubelet
// would take it for pods of its own that are gone, and ask the plugins to take their networks down.
func (c *Cluster) startRuntime(name string) error {
	where, err := c.node(name)
	if err != nil {
		return err
	}
	runtime, err := c.runContainerd(where, name)
	if err != nil {
		return err
	}
	left, err := output(where, ctr("containers", "list", "--quiet"), nil)
	if err != nil || left == "" {
		return err
	}
	if _, err := output(where, ctr(append([]string{"containers", "rm"}, strings.Fields(left)...)...), nil); err != nil {
		return err
	}
	runtime.stop() // it remembers them
	_, err = c.runContainerd(where, name)
	return err
}

func (c *Cluster) runContainerd(where place.Place, name string) (*process, error) {
	p, err := c.start(where, name+"-containerd", exec.Command("containerd", "--config", c.path(name, "containerd.toml")))
	if err != nil {
		return nil, err
	}
	return p, p.await(func(ctx context.Context) error {
		return node.AskRuntime(ctx, fmt.Sprintf("/proc/%d/root%s", where.Init, node.RuntimeSocket))
	})
}

func ctr(args ...string) *exec.Cmd {
	return exec.Command("ctr", append([]string{"--address", node.RuntimeSocket, "--namespace", "k8s.io"}, args...)...)
}

// startKubelet starts a node's kubelet, and kube-proxy if the cluster has it.
func (c *Cluster) startKubelet(i int) error {
	name := nodeName(i)
	where, err := c.node(name)
	if err != nil {
		return err
	}
	var addrs []string
	for _, p := range c.Family.Node(i) {
		addrs = append(addrs, p.Addr().String())
	}
	_, err = c.start(where, name+"-kubelet", exec.Command(c.program("kubelet"), "--config="+c.path(name, "kubelet.json"),
		"--kubeconfig="+c.path("pki", name+".kubeconfig"), "--hostname-override="+name, "--node-ip="+strings.Join(addrs, ","), "--v=2"))
	if err != nil || c.Proxy == "none" {
		return err
	}
	_, err = c.start(where, name+"-kube-proxy", exec.Command(c.program("kube-proxy"), "--kubeconfig="+c.path("pki", "proxy.kubeconfig"),
		"--hostname-override="+name, "--proxy-mode="+c.Proxy, "--cluster-cidr="+join(c.Family.Pods()), "--v=2",
		// The size of the table belongs to the machine, not to a network namespace.
		"--conntrack-max-per-core=0", "--conntrack-min=0"))
	return err
}
