package main

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
)

// cgroupMount is outside of the state directory: who removes that, as a service manager may, would walk into the cgroups.
const cgroupMount = "/run/fairlead-cgroup2"

func newInitCommand(inv *invocation) *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Mount what the agent needs and this node lacks",
		Long: `Mount what the agent needs and this node lacks: a BPF file system, in which maps and programs outlive the agent, and
the cgroup2 tree, if nothing shows its root, as where the first version of cgroups alone is in use. What is there stays
as it is, so the command may be repeated. Unless no device is to be served it also makes the kernel forward packets
(net.ipv4.ip_forward, net.ipv6.conf.all.forwarding), and go on heeding router advertisements where it does. With --bandwidth
devices to come get fq (net.core.default_qdisc), and there is room for 1000 packets that come in faster than they are met
(net.core.netdev_max_backlog) and for 4096 connections that nobody has accepted (net.core.somaxconn,
net.ipv4.tcp_max_syn_backlog), unless there is more. What these settings were is noted in the state directory;
"fairlead cleanup" puts them back, and so does this command those of --bandwidth without that. With --bbr it has the kernel load
that, and sends a packet through network namespaces of its own, by the way that pods' packets take (--pod-device, --host-routing,
--routing), to see whether it still knows its socket, and the time that this gave it, when it leaves. With --sockmap it has two ends of a connection, in a network namespace of its own, do what those may that go past TCP, and end
in all ways. What came of either the agent reads. With --mode=accelerate-only it does that, mounts the BPF file system, and sets nothing.

It is what a privileged step does before an agent that is not privileged itself, such as an init container. The volumes of
that need mountPropagation Bidirectional, and the agent's HostToContainer. "fairlead cleanup" leaves the mounts.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			if !filepath.IsAbs(at) {
				return usageError{fmt.Errorf("--cgroup-mount=%s is not an absolute path", at)}
			}
			bpffs, err := datapath.MountBPFFS(cfg.BPFFS)
			if err != nil {
				return err
			}
			done := preparation{Mounts: []datapath.Mount{bpffs}}
			if !cfg.AcceleratesOnly() {
				cgroup, err := datapath.MountCgroup(at, cfg.CgroupRoot)
				if err != nil {
					return err
				}
				done.Mounts = append(done.Mounts, cgroup)
			}
			if cfg.Devices != "none" {
				if done.Settings, err = setForwarding(procSys, cfg.StateDir); err != nil {
					return err
				}
			}
			rates, err := setForRates(procSys, cfg.StateDir, cfg.Bandwidth == "true")
			if err != nil {
				return err
			}
			done.Settings = append(done.Settings, rates...)
			if done.BBR, err = tryBBR(cfg); err != nil {
				return err
			}
			if done.Sockmap, err = trySockmap(cfg); err != nil {
				return err
			}
			return inv.print(done, done.write)
		},
	}
	config.AddFlags(cmd.Flags(), "bandwidth", "bbr", "cgroup-root", "devices", "host-routing", "mode", "pod-device", "routing", "sockmap", "sockmap-blocking", "sockmap-except")
	cmd.Flags().StringVar(&at, "cgroup-mount", cgroupMount, "where to mount cgroup2 if nothing shows its root")
	return cmd
}

// preparation is what the command found or made.
type preparation struct {
	Mounts   []datapath.Mount
	Settings []Change
	BBR      string `json:",omitempty"` // "works", or why it does not; empty where nobody is to have it
	Sockmap  string `json:",omitempty"` // "fit", or why the kernel is not; empty where nothing is to go past TCP
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
		if _, err := fmt.Fprintf(w, "BBR for connections of pods: %s\n", p.BBR); err != nil {
			return err
		}
	}
	if p.Sockmap != "" {
		_, err := fmt.Fprintf(w, "kernel for connections past TCP: %s\n", p.Sockmap)
		return err
	}
	return nil
}
