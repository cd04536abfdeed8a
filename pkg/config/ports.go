package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Ports is a range of ports, including both ends.
type Ports struct{ First, Last uint16 }

func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// parsePorts parses FIRST-LAST, or a single port.
func parsePorts(value string) (Ports, error) {
	first, last, ok := strings.Cut(value, "-")
	if !ok {
		last = first
	}
	from, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	to, toErr := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err != nil || toErr != nil || from == 0 || from > to {
		return Ports{}, errors.New("not a range of ports such as 1024-29999")
	}
	return Ports{uint16(from), uint16(to)}, nil
}

func ports(value string) error {
	_, err := parsePorts(value)
	return err
}

func portsOrEmpty(value string) error {
	if value == "" {
		return nil
	}
	return ports(value)
}

// checkPorts rejects source ports that clients outside use as NodePorts.
func (c *Config) checkPorts() error {
	source, nodePorts := c.SourcePorts(), c.NodePorts()
	if source.First > nodePorts.Last || source.Last < nodePorts.First {
		return nil
	}
	return fmt.Errorf("option snat-ports: %s overlaps with the NodePorts, %s: choose others, or set nodeport-range to the cluster's range", source, nodePorts)
}

// NodePorts returns the range in the option nodeport-range.
func (c *Config) NodePorts() Ports {
	p, _ := parsePorts(c.NodePortRange) // checked by Load
	return p
}

// SourcePorts returns the range in the option snat-ports, which is zero if the agent chooses.
func (c *Config) SourcePorts() Ports {
	p, _ := parsePorts(c.SnatPorts) // checked by Load
	return p
}
