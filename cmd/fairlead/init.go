package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/agent/acceleration"
	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/hostfs"
	"fairlead.io/fairlead/pkg/sysctl"
)

// cgroupMount is outside of the state directory, because a service manager that removes that
// directory would descend into the cgroups.
const cgroupMount = "/run/fairlead-cgroup2"

func newInitCommand(inv *invocation) *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Prepare this node for an agent: mounts and kernel settings",
		Long: `Prepare this node for an agent. The command can be repeated; it does not change what is already in place.

- It mounts a BPF file system, which keeps maps and programs while no agent runs, and the cgroup2 tree if its root is not
  visible, as on nodes that use only version 1 of cgroups.
- Unless no device is to be served, it makes the kernel forward packets (net.ipv4.ip_forward,
  net.ipv6.conf.all.forwarding). Devices that accept router advertisements keep accepting them.
- With --bandwidth, new devices get the fq queue (net.core.default_qdisc), and queues are raised to 1000 packets that
  arrive faster than they are handled (net.core.netdev_max_backlog) and to 4096 connections that wait to be accepted
  (net.core.somaxconn, net.ipv4.tcp_max_syn_backlog), unless they are longer already.
- With --bbr, it has the kernel load BBR. Then it sends a packet through network namespaces of its own, on the path of
  pods' packets (--pod-device, --host-routing, --routing), to see whether the packet still knows its socket, and the time
  that the socket set, when it leaves.
- With --sockmap, it makes a connection in a network namespace of its own, and has its ends do what connections that
  bypass TCP may do, including every way to end.

The agent reads the results of the last two. The original kernel settings are saved in the state directory; "fairlead
cleanup" restores them, and so does this command without --bandwidth for the settings of --bandwidth. With
--mode=accelerate-only it mounts the BPF file system, runs the check of --sockmap, and changes no settings.

Run it as a privileged step, such as an init container, before an agent that is not privileged itself. The init
container's volumes need mountPropagation Bidirectional, and the agent's HostToContainer. "fairlead cleanup" leaves the
mounts in place.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			if !filepath.IsAbs(at) {
				return config.UsageError{Err: fmt.Errorf("--cgroup-mount=%s is not an absolute path", at)}
			}
			bpffs, err := hostfs.MountBPFFS(cfg.BPFFS)
			if err != nil {
				return err
			}
			done := preparation{Mounts: []hostfs.Mount{bpffs}}
			if !cfg.AcceleratesOnly() {
				cgroup, err := hostfs.MountCgroup(at, cfg.CgroupRoot)
				if err != nil {
					return err
				}
				done.Mounts = append(done.Mounts, cgroup)
			}
			if cfg.Devices != "none" {
				if done.Settings, err = sysctl.EnableForwarding(sysctl.Root, cfg.StateDir); err != nil {
					return err
				}
			}
			rates, err := sysctl.ApplyForRates(sysctl.Root, cfg.StateDir, cfg.Bandwidth == "true")
			if err != nil {
				return err
			}
			done.Settings = append(done.Settings, rates...)
			if done.BBR, err = podnetwork.TryBBR(cfg); err != nil {
				return err
			}
			if done.Sockmap, err = acceleration.TryKernel(cfg); err != nil {
				return err
			}
			return inv.print(done, done.write)
		},
	}
	config.AddFlags(cmd.Flags(), "bandwidth", "bbr", "cgroup-root", "devices", "host-routing", "mode", "pod-device", "routing", "sockmap", "sockmap-blocking", "sockmap-except")
	cmd.Flags().StringVar(&at, "cgroup-mount", cgroupMount, "where to mount cgroup2 if its root is not visible")
	return cmd
}

// preparation is what the command found or did.
type preparation struct {
	Mounts   []hostfs.Mount
	Settings []sysctl.Change
	BBR      string `json:",omitempty"` // "works", or why BBR does not; empty with --bbr=false
	// Sockmap is "fit", or why the kernel is not; empty with --sockmap=false.
	Sockmap string `json:",omitempty"`
}

func (p preparation) write(w io.Writer) error {
	for _, m := range p.Mounts {
		text := "is mounted at"
		if m.Mounted {
			text = "was not mounted; now it is at"
		}
		if _, err := fmt.Fprintf(w, "%s %s %s\n", m.Kind, text, m.Path); err != nil {
			return err
		}
	}
	for _, s := range p.Settings {
		text := "is set"
		if s.Changed {
			text = "was not set; now it is"
		}
		if _, err := fmt.Fprintf(w, "%s %s\n", s.Setting, text); err != nil {
			return err
		}
	}
	if p.BBR != "" {
		if _, err := fmt.Fprintf(w, "BBR for pods' connections: %s\n", p.BBR); err != nil {
			return err
		}
	}
	if p.Sockmap != "" {
		_, err := fmt.Fprintf(w, "kernel support for bypassing TCP: %s\n", p.Sockmap)
		return err
	}
	return nil
}
