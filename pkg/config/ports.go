package config

import (
	"errors"
	"fmt"

	"fairlead.io/fairlead/pkg/model"
)

func ports(value string) error {
	if _, err := model.ParsePortRange(value); err != nil {
		return errors.New("not a range of ports such as 1024-29999") // the value is named before this
	}
	return nil
}

func portsOrEmpty(value string) error {
	if value == "" {
		return nil
	}
	return ports(value)
}

// firstUnprivileged is the lowest port that needs no privilege. Nodes recognize by the ports below
// what other nodes send them, see GENEVE_FIRST_SOURCE in bpf/lib/packet.h.
const firstUnprivileged = 1024

// checkPorts rejects source ports that clients outside use as NodePorts, and privileged ones.
func (c *Config) checkPorts() error {
	if source := c.SourcePorts(); source.First != 0 && source.First < firstUnprivileged {
		return fmt.Errorf("option snat-ports: %s begins with ports that are the node's own: begin at %d", source, firstUnprivileged)
	}
	if source, nodePorts := c.SourcePorts(), c.NodePorts(); source.Overlaps(nodePorts) {
		return fmt.Errorf("option snat-ports: %s overlaps with the NodePorts, %s: choose others, or set nodeport-range to the cluster's range", source, nodePorts)
	}
	if c.Routing != "vxlan" {
		return nil
	}
	for option, ports := range map[string]model.PortRange{"snat-ports": c.SourcePorts(), "nodeport-range": c.NodePorts()} {
		if ports.Overlaps(TunnelPorts()) {
			return fmt.Errorf("option %s: %s overlaps with %s, from which nodes send through the tunnel (--routing=vxlan): choose others", option, ports, TunnelPorts())
		}
	}
	return nil
}

// TunnelPorts returns the source ports of tunnels between nodes. A receiver takes whatever comes
// from another port for a packet that was only given a node's address, so nothing else may have
// them.
func TunnelPorts() model.PortRange { return model.PortRange{First: 61000, Last: 65535} }

// NodePorts returns the range in the option nodeport-range.
func (c *Config) NodePorts() model.PortRange {
	p, _ := model.ParsePortRange(c.NodePortRange) // checked by Load
	return p
}

// SourcePorts returns the range in the option snat-ports, which is zero if the agent chooses.
func (c *Config) SourcePorts() model.PortRange {
	p, _ := model.ParsePortRange(c.SnatPorts) // checked by Load
	return p
}
