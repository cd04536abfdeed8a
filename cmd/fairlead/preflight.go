package main

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fairlead.io/fairlead/pkg/agent/acceleration"
	"fairlead.io/fairlead/pkg/agent/connections"
	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/bigtcp"
	"fairlead.io/fairlead/pkg/cni/install"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/hostfs"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/netfilter"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/preflight"
)

func newPreflightCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Check this machine: what an agent lacks, what is in its way, and what would make it faster",
		Long: `Check this machine: what an agent lacks, what is in its way, and what would make it faster. The command changes and
attaches nothing. It works without an agent, with the options in its own flags and environment, and beside a running
one, with the agent's options. Each line is ok, warn, fail or unknown, followed by what helps. The exit code is 1 if any
line says fail.

    kernel, jit          what the programs need from the kernel, tried by loading a few instructions; net.core.bpf_jit_*
    cgroup2, bpffs       whether they are mounted, or can be
    memory               what the maps use, compared with the machine's memory and the limit of this process's cgroup
    kube-proxy           its process, the device kube-ipvs0, and its chains in nftables, which include those of iptables
                         unless iptables is of the legacy kind; the line says so
    other networks, cni  devices and chains of other plugins, and which network the container runtime uses
    device, mtu          for each device on which clients outside arrive: driver, receive queues, native XDP as
                         announced by the driver (Linux 6.3; before that, only attaching shows it)
    forwarding, rp_filter    the node's settings
    network policies     whether they are enforced; if not, an agent counts those of the cluster
    host routing, conntrack  whether pods' packets pass through the node's stack, and whether netfilter tracks them
    preemption, governor, irqbalance, interrupts, tuned, jumbo frames, big TCP, bbr    what is tuned, or could be
    acceleration         with --sockmap, whether the kernel supports it, and which programs to exclude

With --mode=accelerate-only it checks only kernel, jit, bpffs and past TCP, because kube-proxy and other networks are not
in the way.

Root sees everything. Other users see most of it, and lines marked unknown say what they cannot see. In a container, run
it in the agent's container, or in one with the node's network and process namespaces.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := inv.node(cmd)
			if err != nil {
				return err
			}
			report := node.Check()
			if err := inv.print(report, report.WriteText); err != nil {
				return err
			}
			if failed := report.Failed(); len(failed) > 0 {
				return fmt.Errorf("this machine is not ready: %s", strings.Join(failed, ", "))
			}
			return nil
		},
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

// node returns what the command checks: this machine, as an agent with these options would use it.
func (inv *invocation) node(cmd *cobra.Command) (*preflight.Node, error) {
	cfg, err := inv.config(cmd)
	if err != nil {
		return nil, err
	}
	agent := client(cfg)
	var status observe.Status // empty if no agent answers
	if origins, asked := agent.Config(cmd.Context()); asked == nil {
		if cfg, err = sameConfig(origins); err != nil {
			return nil, fmt.Errorf("read the agent's options: %w", err)
		}
		status, _ = agent.Status(cmd.Context()) // without it, the report just says less
	}
	return nodeOf(cfg, &status)
}

// sameConfig returns the configuration of an agent with these options.
func sameConfig(origins []config.Origin) (*config.Config, error) {
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	config.AddFlags(flags)
	for _, o := range origins {
		// An agent of another version may have options that this program does not know and does not
		// need.
		if flags.Lookup(o.Name) == nil || o.Name == "config-dir" {
			continue
		}
		if err := flags.Set(o.Name, o.Value); err != nil {
			return nil, fmt.Errorf("option %s: %w", o.Name, err)
		}
	}
	return config.Load(flags, nil)
}

func nodeOf(cfg *config.Config, status *observe.Status) (*preflight.Node, error) {
	filter, err := devices.ParseFilter(cfg.Devices)
	if err != nil {
		return nil, config.UsageError{Err: fmt.Errorf("option devices: %w", err)}
	}
	own := ownAddresses()
	find := func() ([]devices.Device, error) { return devices.Detect(filter, own) }
	n := &preflight.Node{
		Options: preflight.Options{
			XDP: devices.Mode(cfg.XDP), NoDevices: filter.None(), PodNetwork: cfg.PodNetwork, HostRouting: cfg.HostRouting, Policies: cfg.Policies,
			BigTCP: cfg.BigTCP == "true", ConfDir: cfg.CNIConfDir, ConfName: cfg.CNIConfName, PodCIDRs: cfg.PodPrefixes(),
			AccelerateOnly: cfg.AcceleratesOnly(),
		},
		Kernel: kernelLacks,
		Cgroup: func() (string, error) { return hostfs.CgroupRoot(cfg.CgroupRoot) },
		BPFFS:  func() (string, error) { return cfg.BPFFS, hostfs.CheckBPFFS(cfg.BPFFS) },
		Memory: func() (preflight.Memory, error) { return mapMemory(cfg) },
		Chains: sync.OnceValues(preflight.ListChains), Devices: find, XDP: devices.OffersXDP, Own: own, Tracked: netfilter.Ends,
		BigTCP: func() (preflight.LargePackets, error) { return largePackets(cfg, find) },
	}
	if cfg.Sockmap == "true" {
		n.Sockmap, n.Except = func() (string, []string) { return acceleration.Unfit(cfg) }, cfg.ExceptedPrograms()
	}
	if n.Options.ConfDir == "" {
		n.Options.ConfDir = install.ConfigurationDir
	}
	if p := status.PodNetwork; p != nil && len(n.Options.PodCIDRs) == 0 {
		for _, text := range p.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil {
				n.Options.PodCIDRs = append(n.Options.PodCIDRs, prefix)
			}
		}
	}
	if status.Policies != nil {
		n.Policies = status.Policies.Count
	}
	return n, nil
}

func kernelLacks() (lacks []string, err error) {
	features, err := datapath.ProbeKernel()
	if err == nil && !features.CanRefuse {
		lacks = append(lacks, "refuse connections to Services without backends by ECONNREFUSED")
	}
	return lacks, err
}

// ownAddresses returns the addresses of the node, or none if they cannot be listed.
func ownAddresses() (own []netip.Addr) {
	list, _ := net.InterfaceAddrs()
	for _, a := range list {
		if prefix, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(prefix.IP); ok {
				own = append(own, addr.Unmap())
			}
		}
	}
	return own
}

// mapMemory returns the memory of the maps of a small cluster, and what it may grow to with flows
// alone.
func mapMemory(cfg *config.Config) (m preflight.Memory, err error) {
	n := connections.Needs{CPUs: runtime.NumCPU()}
	if n.Memory, err = connections.TotalMemory(); err != nil {
		return m, err
	}
	if n.FlowRows, err = connections.MostRows(cfg.Conntrack.Max); err != nil {
		return m, err
	}
	m.Start, err = maps.Footprint(maps.MinSizes(), n.Room(), n.CPUs)
	m.Most = m.Start + uint64(n.FlowRows/2)*connections.FlowBytes
	return m, err
}

// largePackets returns how large TCP packets could be with these options.
func largePackets(cfg *config.Config, find func() ([]devices.Device, error)) (preflight.LargePackets, error) {
	found, err := find()
	if err != nil {
		return preflight.LargePackets{}, err
	}
	why4, why6 := podnetwork.WhyUsual(cfg)
	s, err := bigtcp.Find(bigtcp.Config{Devices: func() []devices.Device { return found }, Why4: why4, Why6: why6})
	return preflight.LargePackets{V4: s.V4, V6: s.V6, Why4: s.Why4, Why6: s.Why6}, err
}
