package preflight

import (
	"net/netip"

	"fairlead.io/fairlead/pkg/devices"
)

// Options are those of the agent that matter here.
type Options struct {
	XDP        devices.Mode
	NoDevices  bool   // no client outside is to be served
	PodNetwork string // off, main or chained
	// AccelerateOnly says that connections are to go past TCP, and all else is others'.
	AccelerateOnly bool
	HostRouting    string // bpf or stack
	BigTCP         bool
	ConfDir        string // where the container runtime looks for networks
	ConfName       string // what the agent writes there
	// PodCIDRs are the networks of this node's pods, as far as they are known.
	PodCIDRs []netip.Prefix
}

// Memory is what the maps take, in bytes.
type Memory struct {
	Start uint64 // when they are made
	Most  uint64 // with as many flows as may be remembered
}

// Node is the machine that is looked at. The functions are nil or ask the running kernel; an error that wraps
// fs.ErrPermission says that the caller may not look.
type Node struct {
	Root    string // below which proc, sys and etc are
	Options Options

	Kernel  func() (lacks []string, err error) // the error says what it cannot do without
	Cgroup  func() (path string, err error)
	BPFFS   func() (path string, err error)
	Memory  func() (Memory, error)
	Chains  func() ([]Chain, error)
	Devices func() ([]devices.Device, error) // that lead outside
	XDP     func(index int) (offered bool, err error)
	BigTCP  func() (LargePackets, error)
	Own     []netip.Addr // addresses of the node
	// Sockmap returns why nothing may go past TCP on this kernel; nil where nothing is to. Processes by the names of Except are left to TCP.
	Sockmap  func() (unfit string)
	Except   []string
	Policies *int // NetworkPolicies of the cluster; nil where that is not known
}

// Check looks at everything that an agent with these options has to do with.
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
		lines = append(lines, n.forwarding())
	}
	if n.Options.PodNetwork == "main" {
		lines = append(lines, n.reversePath())
	}
	lines = append(lines, n.policies(),
		n.hostRouting(), n.conntrack(), n.preemption(), n.governor(), n.irqbalance(), n.interrupts(found), n.tuned(), n.jumbo(found), n.bigTCP(), n.bbr(), n.sockmap())
	return newReport(lines)
}
