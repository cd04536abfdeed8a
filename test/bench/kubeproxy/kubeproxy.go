// Package kubeproxy makes kube-proxy write its rules into a network namespace, for comparison. It
// is the real kube-proxy, of the version that the cluster tests pin, and gets its services from a
// simulated API server.
package kubeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fairlead.io/fairlead/test/apiserver/pinned"
	"fairlead.io/fairlead/test/bench/listwatch"
	"fairlead.io/fairlead/test/rig"
)

// patience is how long kube-proxy may take to write its rules.
const patience = 15 * time.Minute

// Modes returns the kinds of rules.
func Modes() []string { return []string{"iptables", "nftables"} }

// Program is a kube-proxy executable.
type Program struct {
	Path    string
	Version string
}

// Find returns the pinned kube-proxy, or nil and its version if it has not been built.
func Find() (_ *Program, version string, err error) {
	programs, err := pinned.Find("kube-proxy")
	if err != nil {
		return nil, "", err
	}
	version = programs.KubernetesVersion()
	if len(programs.Missing()) > 0 {
		return nil, version, nil
	}
	binary, err := programs.Binary("kube-proxy")
	if err != nil {
		return nil, version, err
	}
	return &Program{Path: binary.Path, Version: version}, version, nil
}

// Rules says which rules to write, and where.
type Rules struct {
	Mode  string
	Fleet listwatch.Fleet
	Netns *rig.Netns // network namespace of the node
	Node  int        // number of the node in the fleet
	// Await returns when the rules are in effect, or when the context ends. All rules are written
	// in one transaction.
	Await func(context.Context) error
}

// Write runs kube-proxy until its rules are in effect, and then stops it, since it sleeps while
// nothing changes. It returns the iptables-save command that lists the rules.
func (p *Program) Write(ctx context.Context, rules Rules) (save string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no rules written within %s", patience))
	defer cancel()
	api, err := listwatch.New(listwatch.Config{Fleet: rules.Fleet})
	if err != nil {
		return "", err
	}
	var listener net.Listener
	if err := rules.Netns.Do(func() error {
		listener, err = listwatch.Listen(ctx, "127.0.0.1:0")
		return err
	}); err != nil {
		return "", err
	}
	served := make(chan error, 1)
	go func() { served <- api.Serve(ctx, listener) }()
	dir, err := os.MkdirTemp("", "fairlead-proxy-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }() // a leftover temporary directory does no harm
		err = p.writeFrom(ctx, rules, dir, listener.Addr())
	}
	cancel()
	if err := errors.Join(err, <-served); err != nil {
		return "", err
	}
	if path, err := exec.LookPath("iptables-legacy-save"); err == nil {
		return path, nil
	}
	return "iptables-save", nil
}

// writeFrom runs kube-proxy against an API server, with a directory for its files.
func (p *Program) writeFrom(ctx context.Context, rules Rules, dir string, api net.Addr) error {
	config := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(config, []byte(listwatch.Kubeconfig(api)), 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	cmd := exec.CommandContext(ctx, p.Path, "--kubeconfig="+config, "--hostname-override="+rules.Fleet.NodeName(rules.Node),
		"--proxy-mode="+rules.Mode, "--cluster-cidr=10.0.0.0/8", "--bind-address=0.0.0.0", "--nodeport-addresses=10.0.0.0/8",
		// The size of the connection table is the machine's, not the network namespace's.
		"--conntrack-max-per-core=0", "--conntrack-min=0")
	if err := preferLegacy(dir); err != nil {
		return err
	}
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	return runUntil(ctx, cmd, rules)
}

// preferLegacy makes the iptables commands in a directory refer to the legacy variant, which has
// its own tables, if the machine has it. The nftables variant needs many minutes for the rules of
// 20,000 services.
func preferLegacy(dir string) error {
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(name + "-legacy" + suffix)
			if err != nil {
				continue
			}
			if err := os.Symlink(path, filepath.Join(dir, name+suffix)); err != nil {
				return fmt.Errorf("choose iptables: %w", err)
			}
		}
	}
	return nil
}

// runUntil runs kube-proxy in the node until its rules are in effect, or until it ends.
func runUntil(ctx context.Context, cmd *exec.Cmd, rules Rules) error {
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		// Stay on one thread from start to end: the kernel kills the child when the thread that
		// started it ends.
		ended <- rules.Netns.Do(cmd.Run)
		stop()
	}()
	awaited := rules.Await(ctx)
	if awaited == nil {
		if err := cmd.Process.Kill(); err != nil {
			return fmt.Errorf("end kube-proxy: %w", err)
		}
		<-ended
		return nil
	}
	stop()
	return fmt.Errorf("run kube-proxy: %w; %w; its last output:\n%s", awaited, <-ended, lastLines(log.String(), 8))
}

func lastLines(text string, most int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
