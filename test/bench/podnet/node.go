package main

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
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
	current "github.com/containernetworking/cni/pkg/types/100"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/test/bench/kubeproxy"
	"fairlead.io/fairlead/test/bench/listwatch"
	"fairlead.io/fairlead/test/rig"
)

// The addresses of a node and of who is outside of it.
var (
	nodeAddrs  = []string{"198.51.100.1/24", "2001:db8:1::1/64"}
	outside    = netip.MustParseAddr("198.51.100.7")
	outsideNet = []string{"198.51.100.7/24", "2001:db8:1::7/64"}
)

// podCIDRs have room for all pods of a run: an address rests when its pod is gone.
const podCIDRs = "10.1.0.0/16,fd00:1::/64"

// readiness is how long an agent may take to start.
const readiness = "60s"

// node is a node with a real agent, and somebody outside on a wire of its own.
type node struct {
	binaries string // where the agent and the plugin are
	dir      string
	ns       *rig.Netns
	outside  *rig.Netns
	flags    []string
	cni      *libcni.CNIConfig
	list     *libcni.NetworkConfigList
	added    int            // pods, one after the other
	parts    []func() error // what is to be undone, the last first
}

// newNode starts a node whose packets of pods take that way.
func newNode(binaries, routing string) (_ *node, err error) {
	n := &node{binaries: binaries}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	if n.ns, err = n.netns("node"); err != nil {
		return nil, err
	}
	if n.outside, err = n.netns("outside"); err != nil {
		return nil, err
	}
	if err := n.connect(); err != nil {
		return nil, err
	}
	if err := n.startAgent(routing); err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	return n, n.configure()
}

// Close ends the node and all that belongs to it.
func (n *node) Close() error {
	var errs []error
	for _, undo := range slices.Backward(n.parts) {
		errs = append(errs, undo())
	}
	n.parts = nil
	return errors.Join(errs...)
}

func (n *node) later(undo func() error) { n.parts = append(n.parts, undo) }

func (n *node) netns(label string) (*rig.Netns, error) {
	ns, err := rig.CreateNetns(label)
	if err == nil {
		n.later(ns.Close)
	}
	return ns, err
}

// connect gives the node its device to the outside.
func (n *node) connect() error {
	if err := rig.ConnectVeth(n.ns, "eth0", n.outside, "eth0"); err != nil {
		return err
	}
	for at, prefixes := range map[*rig.Netns][]string{n.ns: nodeAddrs, n.outside: outsideNet} {
		for _, prefix := range prefixes {
			if err := at.AddAddr("eth0", netip.MustParsePrefix(prefix)); err != nil {
				return err
			}
		}
	}
	return errors.Join(
		n.ns.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), outside),
		n.ns.SetSysctl("net/ipv4/ip_forward", "1"), n.ns.SetSysctl("net/ipv6/conf/all/forwarding", "1"),
	)
}

// memory is a filesystem in memory on any machine, which /run is on a node, but not in every container.
const memory = "/dev/shm"

// startAgent starts the agent as a user does, with files in place of a cluster, and its state in memory as by default.
func (n *node) startAgent(routing string) error {
	var err error
	if n.dir, err = os.MkdirTemp(memory, "fairlead-bench-"); err != nil {
		return err
	}
	n.later(func() error { return os.RemoveAll(n.dir) })
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
	manifests := filepath.Join(n.dir, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		return err
	}
	n.flags = []string{"--bpffs=" + bpffs, "--state-dir=" + n.state()}
	agent := n.command(append([]string{
		"agent", "--source=" + manifests, "--cgroup-root=" + cgroup.Path(), "--node-name=bench", "--log-level=warn", "--devices=eth0", "--xdp=off",
		"--pod-network=main", "--pod-cidrs=" + podCIDRs, "--host-routing=" + routing,
	}, n.flags...)...)
	var log bytes.Buffer
	agent.Stdout, agent.Stderr = &log, &log
	ended := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// On one thread from start to end: the kernel kills the child when the thread that started it ends.
		_ = n.ns.Do(func() error {
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
		return fmt.Errorf("wait for it: %w\n%s", err, text)
	}
	return nil
}

func (n *node) state() string { return filepath.Join(n.dir, "state") }

func (n *node) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(n.binaries, "fairlead"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// configure makes what a container runtime has of the plugin.
func (n *node) configure() error {
	n.cni = libcni.NewCNIConfigWithCacheDir([]string{n.binaries}, filepath.Join(n.dir, "cache"), nil)
	var err error
	n.list, err = libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "fairlead-cni", "socket": %q}]}`,
		filepath.Join(n.state(), cni.SocketName)))
	return err
}

// pod is a pod of a node.
type pod struct {
	*rig.Netns
	id   string
	addr netip.Addr // of IPv4
}

// newPod makes a pod that has no network yet.
func (n *node) newPod(id string) (*pod, error) {
	ns, err := n.netns(id)
	return &pod{Netns: ns, id: id}, err
}

func (p *pod) conf() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: p.id, NetNS: p.Path(), IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "bench"}, {"K8S_POD_NAME", p.id}, {"K8S_POD_UID", "uid-" + p.id}},
	}
}

// add attaches a pod as a container runtime does, and returns how long that took.
func (n *node) add(ctx context.Context, p *pod) (took time.Duration, err error) {
	err = n.ns.Do(func() error {
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
				p.addr = addr.Unmap()
			}
		}
		return nil
	})
	return took, err
}

func (n *node) del(ctx context.Context, p *pod) error {
	return n.ns.Do(func() error { return n.cni.DelNetworkList(ctx, n.list, p.conf()) })
}

// addPods attaches so many pods that stay.
func (n *node) addPods(ctx context.Context, count int) ([]*pod, error) {
	var pods []*pod
	for i := range count {
		p, err := n.newPod(fmt.Sprintf("pod%d", i))
		if err == nil {
			_, err = n.add(ctx, p)
		}
		if err != nil {
			return nil, fmt.Errorf("add pod %d: %w", i, err)
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// writeRules has kube-proxy write the rules of so many services into the node's namespace.
func (n *node) writeRules(ctx context.Context, program *kubeproxy.Program, services int) error {
	_, err := program.Write(ctx, kubeproxy.Rules{
		Mode: "iptables", Netns: n.ns,
		Fleet: listwatch.Fleet{Services: services, Endpoints: 1, Nodes: 1, Namespaces: 100, FirstPod: 1<<23 + 1},
		Await: func(ctx context.Context) error { return n.awaitRules(ctx, services) },
	})
	return err
}

// awaitRules returns when there are rules of so many services.
func (n *node) awaitRules(ctx context.Context, services int) error {
	save := "iptables-save"
	if path, err := exec.LookPath("iptables-legacy-save"); err == nil {
		save = path
	}
	for {
		cmd := exec.CommandContext(ctx, save, "-t", "nat")
		var rules []byte
		err := n.ns.Do(func() (err error) {
			rules, err = cmd.Output()
			return err
		})
		count := strings.Count(string(rules), "-j KUBE-SVC-")
		if err == nil && count >= services {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), fmt.Errorf("there are rules of %d services", count), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
