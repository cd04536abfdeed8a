package datapath

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/model"
)

// Taken are ports that the node cannot use for connections to backends on other nodes.
type Taken struct {
	NodePorts model.PortRange   // the cluster's range
	Local     model.PortRange   // for sockets of the node that do not ask for a port
	Reserved  []model.PortRange // by the node's administrator
}

// ReadTaken reads which ports the node's own sockets use, from the kernel settings below root, such
// as /proc/sys.
func ReadTaken(root string, nodePorts model.PortRange) (Taken, error) {
	taken := Taken{NodePorts: nodePorts}
	read := func(name string) (string, error) {
		content, err := os.ReadFile(filepath.Join(root, "net/ipv4", name))
		if err != nil {
			return "", fmt.Errorf("read which ports the node's sockets use: %w", err)
		}
		return strings.TrimSpace(string(content)), nil
	}
	local, err := read("ip_local_port_range")
	if err != nil {
		return taken, err
	}
	if taken.Local, err = model.ParsePortRange(strings.Join(strings.Fields(local), "-")); err != nil {
		return taken, fmt.Errorf("read ip_local_port_range: %w", err)
	}
	reserved, err := read("ip_local_reserved_ports")
	if err != nil || reserved == "" {
		return taken, err
	}
	for item := range strings.SplitSeq(reserved, ",") {
		ports, err := model.ParsePortRange(item)
		if err != nil {
			return taken, fmt.Errorf("read ip_local_reserved_ports: %w", err)
		}
		taken.Reserved = append(taken.Reserved, ports)
	}
	return taken, nil
}

const (
	// firstSnatPort leaves out the ports that only root may bind.
	firstSnatPort = 1024
	// fewestSnatPorts is the smallest useful number: it limits the flows to any one backend on
	// another node.
	fewestSnatPorts = 1024
)

// Largest returns the largest range of ports that are not taken.
func (t Taken) Largest() (model.PortRange, error) {
	taken := slices.Concat([]model.PortRange{t.NodePorts, t.Local}, t.Reserved)
	slices.SortFunc(taken, func(a, b model.PortRange) int { return int(a.First) - int(b.First) })
	next, best := firstSnatPort, model.PortRange{}
	offer := func(last int) {
		if last >= next && (best.First == 0 || last-next+1 > best.Len()) {
			best = model.PortRange{First: uint16(next), Last: uint16(last)}
		}
	}
	for _, p := range taken {
		offer(int(p.First) - 1)
		next = max(next, int(p.Last)+1)
	}
	offer(65535)
	if best.First == 0 || best.Len() < fewestSnatPorts {
		return model.PortRange{}, fmt.Errorf("%s leave fewer than %d consecutive ports for connections to backends on other nodes: "+
			"make net.ipv4.ip_local_port_range smaller, for example \"32768 60999\"", t, fewestSnatPorts)
	}
	return best, nil
}

// Check returns an error that says what to do if the range cannot be used on this node. Package
// config compares it with the NodePorts.
func (t Taken) Check(ports model.PortRange) error {
	if ports.Overlaps(t.Local) {
		return fmt.Errorf("ports %s overlap with net.ipv4.ip_local_port_range, %s, which the node's sockets use: change one of the two",
			ports, t.Local)
	}
	for _, r := range t.Reserved {
		if ports.Overlaps(r) {
			return fmt.Errorf("ports %s overlap with net.ipv4.ip_local_reserved_ports, which contains %s: choose others", ports, r)
		}
	}
	return nil
}

// String lists the taken ports.
func (t Taken) String() string {
	text := fmt.Sprintf("NodePorts (%s), net.ipv4.ip_local_port_range (%s)", t.NodePorts, t.Local)
	if len(t.Reserved) == 0 {
		return text
	}
	var list []string
	for _, r := range t.Reserved {
		list = append(list, r.String())
	}
	return text + " and net.ipv4.ip_local_reserved_ports (" + strings.Join(list, ", ") + ")"
}
