package preflight

import (
	"net/netip"

	"fairlead.io/fairlead/pkg/devices"
)

// Options are those options of the agent that matter here.
type Options struct {
	XDP        devices.Mode
	NoDevices  bool   // no client outside is served
	PodNetwork string // off, main or chained
	// AccelerateOnly means that the agent only makes connections bypass TCP and leaves everything
	// else to others.
	AccelerateOnly bool
	HostRouting    string // bpf or stack
	Policies       string // enforce, audit or off
	BigTCP         bool
	ConfDir        string // where the container runtime looks for network configurations
	ConfName       string // the file that the agent writes there
	// PodCIDRs are the known networks of this node's pods.
	PodCIDRs []netip.Prefix
}

// Memory is the size of the maps, in bytes.
type Memory struct {
	Start uint64 // when they are created
	Most  uint64 // with the maximum number of flows
}

// Node is the machine to check. The functions that are set ask the running kernel; an error that
// wraps fs.ErrPermission means that the caller lacks the privileges.
type Node struct {
	Root
	Options Options

	Kernel  func() (lacks []string, err error) // err is set if a required feature is missing
	Cgroup  func() (path string, err error)
	BPFFS   func() (path string, err error)
	Memory  func() (Memory, error)
	Chains  func() ([]Chain, error)
	Devices func() ([]devices.Device, error) // those that lead outside
	XDP     func(index int) (offered bool, err error)
	BigTCP  func() (LargePackets, error)
	Own     []netip.Addr // addresses of the node
	// Tracked calls visit with the ends of each connection that netfilter tracks.
	Tracked func(visit func(client, server netip.Addr)) error
	// Sockmap returns why no connection may bypass TCP on this kernel, or "", and the differences
	// from TCP that it has. It is nil if none should. Processes named in Except always use TCP.
	Sockmap  func() (unfit string, differences []string)
	Except   []string
	Policies *int // number of NetworkPolicies in the cluster; nil if unknown
}

// Check checks everything that matters to an agent with these options.
func (n *Node) Check() *Report {
	if n.Options.AccelerateOnly {
		return newReport([]Line{n.kernel(), n.jit(), n.bpffs(), n.sockmap()})
	}
	found, err := n.Devices()
	lines := []Line{
		n.kernel(), n.jit(), n.cgroup(), n.bpffs(), n.memory(),
		n.kubeProxy(), n.otherNetworks(), n.configuration(),
	}
	lines = append(lines, n.devices(found, err)...)
	lines = append(lines, n.mtu(found))
	if !n.Options.NoDevices {
		lines = append(lines, n.forwarding(), n.forwardChains())
	}
	if n.Options.PodNetwork == "main" {
		lines = append(lines, n.reversePath())
	}
	lines = append(lines, n.policies(),
		n.hostRouting(), n.conntrack(), n.preemption(), n.governor(), n.irqbalance(), n.interrupts(found), n.tuned(), n.jumbo(found), n.bigTCP(), n.bbr(), n.sockmap())
	return newReport(lines)
}
