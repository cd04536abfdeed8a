// Package node makes a node as users have it: the real agent in a network namespace, pods attached
// by the real plugin, and an outside host on a wire.
package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/rig"
)

// Name is the node's name, and the namespace of its pods.
const Name = "bench"

// Outside is the address of the outside host.
var Outside = netip.MustParseAddr("198.51.100.7")

var (
	nodeAddrs  = []string{"198.51.100.1/24", "2001:db8:1::1/64"}
	outsideNet = []string{"198.51.100.7/24", "2001:db8:1::7/64"}
)

// podCIDRs have room for all pods of a run: the address of a removed pod is not reused for a while.
const podCIDRs = "10.1.0.0/16,fd00:1::/64"

// readiness is how long an agent may take to start, even on an emulated processor.
const readiness = "180s"

// Node is a node with a real agent, and an outside host on its own wire.
type Node struct {
	*rig.Netns
	Outside  *rig.Netns
	binaries string
	dir      string
	flags    []string
	pid      int // of the agent
	cni      *libcni.CNIConfig
	list     *libcni.NetworkConfigList
	parts    []func() error // cleanup functions, called in reverse order
}

// New starts a node with the agent and the plugin in a folder. The flags are passed to the agent.
func New(binaries string, flags ...string) (*Node, error) {
	return NewOf(binaries, func(*Node) ([]string, error) { return flags, nil })
}

// NewOf is New with flags that depend on the node, which has its network and its folder by then.
func NewOf(binaries string, flags func(*Node) ([]string, error)) (_ *Node, err error) {
	n := &Node{binaries: binaries}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if n.Netns, err = n.newNetns("node"); err != nil {
		return nil, err
	}
	if n.Outside, err = n.newNetns("outside"); err != nil {
		return nil, err
	}
	if err := n.connect(); err != nil {
		return nil, err
	}
	if n.dir, err = os.MkdirTemp(memory, "fairlead-bench-"); err != nil {
		return nil, err
	}
	n.later(func() error { return os.RemoveAll(n.dir) })
	list, err := flags(n)
	if err != nil {
		return nil, err
	}
	if err := n.startAgent(list); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	return n, n.configure()
}

// Close stops the node and everything that belongs to it.
func (n *Node) Close() error {
	var errs []error
	for _, undo := range slices.Backward(n.parts) {
		errs = append(errs, undo())
	}
	n.parts = nil
	return errors.Join(errs...)
}

func (n *Node) later(undo func() error) { n.parts = append(n.parts, undo) }

func (n *Node) newNetns(label string) (*rig.Netns, error) {
	ns, err := rig.CreateNetns(label)
	if err == nil {
		n.later(ns.Close)
	}
	return ns, err
}

// connect connects the node to the outside.
func (n *Node) connect() error {
	if err := rig.ConnectVeth(n.Netns, "eth0", n.Outside, "eth0"); err != nil {
		return err
	}
	for at, prefixes := range map[*rig.Netns][]string{n.Netns: nodeAddrs, n.Outside: outsideNet} {
		for _, prefix := range prefixes {
			if err := at.AddAddr("eth0", netip.MustParsePrefix(prefix)); err != nil {
				return err
			}
		}
	}
	return errors.Join(
		n.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), Outside),
		n.SetSysctl("net/ipv4/ip_forward", "1"), n.SetSysctl("net/ipv6/conf/all/forwarding", "1"),
	)
}

// memory is an in-memory file system on any machine. /run is one on a node, but not in every
// container.
const memory = "/dev/shm"

// startAgent starts the agent as a user would, with files in place of a cluster, and with its state
// in memory as by default.
func (n *Node) startAgent(flags []string) error {
	bpffs, unmount, err := rig.MountBPFFS()
	if err != nil {
		return err
	}
	n.later(unmount)
	cgroup, err := rig.CreateCgroup()
	if err != nil {
		return err
	}
	n.later(cgroup.Close)
	if err := os.Mkdir(n.manifests(), 0o755); err != nil {
		return err
	}
	n.flags = []string{"--bpffs=" + bpffs, "--state-dir=" + n.state()}
	agent := n.command(append([]string{
		"agent", "--source=" + n.manifests(), "--cgroup-root=" + cgroup.Path(), "--node-name=" + Name, "--log-level=warn", "--devices=eth0", "--xdp=off",
		"--pod-network=main", "--pod-cidrs=" + podCIDRs,
	}, append(n.flags, flags...)...)...)
	var log bytes.Buffer
	agent.Stdout, agent.Stderr = &log, &log
	ended := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// Stay on one thread from start to end: the kernel kills the child when the thread that
		// started it ends.
		_ = n.Do(func() error {
			err := agent.Start()
			if started <- err; err == nil {
				ended <- agent.Wait()
			}
			return nil
		})
	}()
	if err := <-started; err != nil {
		return err
	}
	n.pid = agent.Process.Pid
	n.later(func() error {
		if err := agent.Process.Signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("end the agent: %w", err)
		}
		if err := <-ended; err != nil {
			return fmt.Errorf("the agent ended: %w\n%s", err, log.String())
		}
		return nil
	})
	status := n.command(append([]string{"status", "--wait", "--wait-duration=" + readiness}, n.flags...)...)
	if text, err := status.CombinedOutput(); err != nil {
		return fmt.Errorf("wait for the agent: %w\n%s", err, text)
	}
	return nil
}

// Apply makes the agent read a manifest in place of the previous one.
func (n *Node) Apply(manifest string) error {
	whole := filepath.Join(n.dir, "all.yaml") // renamed into place, so that the agent never reads a part of it
	if err := os.WriteFile(whole, []byte(manifest), 0o644); err != nil {
		return err
	}
	return os.Rename(whole, filepath.Join(n.manifests(), "all.yaml"))
}

// Ask runs a command of the agent's program on the node, and returns its output.
func (n *Node) Ask(args ...string) (text []byte, err error) {
	err = n.Do(func() error {
		var stderr bytes.Buffer
		cmd := n.command(append(args, n.flags...)...)
		cmd.Stderr = &stderr
		if text, err = cmd.Output(); err != nil {
			return fmt.Errorf("fairlead %v: %w\n%s", args, err, stderr.Bytes())
		}
		return nil
	})
	return text, err
}

// Dir returns the node's own folder, which is in memory.
func (n *Node) Dir() string { return n.dir }

// Pid returns the process of the agent.
func (n *Node) Pid() int { return n.pid }

func (n *Node) manifests() string { return filepath.Join(n.dir, "manifests") }

func (n *Node) state() string { return filepath.Join(n.dir, "state") }

func (n *Node) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(n.binaries, "fairlead"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// configure prepares the plugin's configuration, as a container runtime has it.
func (n *Node) configure() error {
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.binaries}, filepath.Join(n.dir, "cache"), nil)
	var err error
	n.list, err = libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "fairlead-cni", "socket": %q}]}`,
		filepath.Join(n.state(), cni.SocketName)))
	return err
}

// Pod is a pod of a node.
type Pod struct {
	*rig.Netns
	ID   string
	Addr netip.Addr // the IPv4 address
	// What the runtime says about it.
	Namespace, Name, UID string
}

// NewPod makes a pod without a network.
func (n *Node) NewPod(id string) (*Pod, error) {
	ns, err := n.newNetns(id)
	return &Pod{Netns: ns, ID: id, Namespace: Name, Name: id, UID: "uid-" + id}, err
}

func (p *Pod) conf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.ID, NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", p.Namespace}, {"K8S_POD_NAME", p.Name}, {"K8S_POD_UID", p.UID}},
	}
}

// Add attaches a pod as a container runtime would, and returns the time it took.
func (n *Node) Add(ctx context.Context, p *Pod) (took time.Duration, err error) {
	err = n.Do(func() error {
		began := time.Now()
		got, err := n.cni.AddNetworkList(ctx, n.list, p.conf())
		took = time.Since(began)
		if err != nil {
			return err
		}
		result, err := current.NewResultFromResult(got)
		if err != nil {
			return err
		}
		for _, ip := range result.IPs {
			if addr, _ := netip.AddrFromSlice(ip.Address.IP); addr.Unmap().Is4() {
				p.Addr = addr.Unmap()
			}
		}
		return nil
	})
	return took, err
}

// Del detaches a pod as a container runtime would.
func (n *Node) Del(ctx context.Context, p *Pod) error {
	return n.Do(func() error { return n.cni.DelNetworkList(ctx, n.list, p.conf()) })
}

// AddPods attaches the given number of pods, which stay attached.
func (n *Node) AddPods(ctx context.Context, count int) ([]*Pod, error) {
	var pods []*Pod
	for i := range count {
		p, err := n.NewPod(fmt.Sprintf("pod%d", i))
		if err == nil {
			_, err = n.Add(ctx, p)
		}
		if err != nil {
			return nil, fmt.Errorf("add pod %d: %w", i, err)
		}
		pods = append(pods, p)
	}
	return pods, nil
}
