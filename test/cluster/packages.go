package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// tool is a command and the distribution's package that provides it.
type tool struct{ command, pkg string }

// proxyTools returns the tools that kube-proxy calls.
func proxyTools() []tool { return []tool{{"nft", "nftables"}, {"iptables", "iptables"}} }

// nodeTools returns the tools that the nodes take from the distribution.
func nodeTools() []tool {
	return append(proxyTools(), tool{"containerd", "containerd"}, tool{"ctr", "containerd"}, tool{"runc", "runc"},
		tool{"mount", "mount"}, tool{"apt-get", "apt"}, tool{"dpkg-deb", "dpkg"})
}

// missingPackages returns the packages of the tools that are not in PATH.
func missingPackages(tools []tool) []string {
	var missing []string
	for _, needed := range tools {
		if _, err := exec.LookPath(needed.command); err != nil {
			missing = append(missing, needed.pkg)
		}
	}
	return slices.Compact(missing)
}

// installNodePackages installs the packages that the nodes need and the machine lacks.
func installNodePackages(log io.Writer) error {
	missing := missingPackages(nodeTools())
	if !hasPlugins() {
		missing = append(missing, "containernetworking-plugins")
	}
	return install(missing, log)
}

// install installs packages if there are any.
func install(packages []string, log io.Writer) error {
	if len(packages) == 0 {
		return nil
	}
	list := strings.Join(packages, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("missing packages: %s; run sudo apt-get install %s", list, list)
	}
	fmt.Fprintf(log, "installing %s\n", list)
	for _, args := range [][]string{{"update"}, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)} {
		cmd := exec.Command("apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("install %s: %w; install them by hand\n%s", list, err, out)
		}
	}
	return nil
}

func hasPlugins() bool {
	for _, dir := range pluginDirs() {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			return true
		}
	}
	return false
}

// checkMachine reports problems that would otherwise show late and unclearly.
func (c *Cluster) checkMachine() error {
	if os.Geteuid() != 0 {
		return errors.New("start cluster: this needs root (sudo make cluster)")
	}
	for _, top := range []string{"/etc/", "/opt/", "/run/", "/var/"} {
		if strings.HasPrefix(c.dir, top) {
			return fmt.Errorf("start cluster: nodes have their own %s, so the cluster's state cannot be in %s; set XDG_CACHE_HOME", top, c.dir)
		}
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return fmt.Errorf("create state: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(c.dir, &fs); err != nil {
		return fmt.Errorf("find out the file system of %s: %w", c.dir, err)
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return fmt.Errorf("start cluster: %s is on an overlay, and containers' file systems would be overlays on it; set XDG_CACHE_HOME to a directory on a disk", c.dir)
	}
	return nil
}

// filterBridges makes the rules see packets that stay on a node's bridge; otherwise kube-proxy's
// replies from one pod to another on the same node would bypass them. Kubernetes requires this of
// every node.
func (o Options) filterBridges() error {
	if o.CNI != "bridge" || o.Proxy == "none" {
		return nil
	}
	if _, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables"); err == nil {
		return nil
	}
	if out, err := exec.Command("modprobe", "br_netfilter").CombinedOutput(); err != nil {
		return fmt.Errorf("load br_netfilter, which kube-proxy needs on a bridge: %w: %s", err, out)
	}
	return nil
}
