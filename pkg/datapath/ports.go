package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Ports is a range of ports, including both ends.
type Ports struct{ First, Last uint16 }

// String returns the format that parsePorts reads.
func (p Ports) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// Len returns the number of ports.
func (p Ports) Len() int { return int(p.Last) - int(p.First) + 1 }

func (p Ports) overlaps(q Ports) bool { return p.First <= q.Last && q.First <= p.Last }

// parsePorts parses FIRST-LAST, or a single port.
func parsePorts(text string) (Ports, error) {
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		last = first
	}
	from, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	to, toErr := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	if err = errors.Join(err, toErr); err != nil || from == 0 || from > to {
		return Ports{}, fmt.Errorf("%q is not a range of ports such as 1024-29999", text)
	}
	return Ports{uint16(from), uint16(to)}, nil
}

// Taken are ports that the node cannot use for connections to backends on other nodes.
type Taken struct {
	NodePorts Ports   // the cluster's range
	Local     Ports   // for sockets of the node that do not ask for a port
	Reserved  []Ports // by the node's administrator
}

// ReadTaken reads which ports the node's own sockets use, from the kernel settings below root, such
// as /proc/sys.
func ReadTaken(root string, nodePorts Ports) (Taken, error) {
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
	if taken.Local, err = parsePorts(strings.Join(strings.Fields(local), "-")); err != nil {
		return taken, fmt.Errorf("read ip_local_port_range: %w", err)
	}
	reserved, err := read("ip_local_reserved_ports")
	if err != nil || reserved == "" {
		return taken, err
	}
	for item := range strings.SplitSeq(reserved, ",") {
		ports, err := parsePorts(item)
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
func (t Taken) Largest() (Ports, error) {
	taken := slices.Concat([]Ports{t.NodePorts, t.Local}, t.Reserved)
	slices.SortFunc(taken, func(a, b Ports) int { return int(a.First) - int(b.First) })
	next, best := firstSnatPort, Ports{}
	offer := func(last int) {
		if last >= next && (best.First == 0 || last-next+1 > best.Len()) {
			best = Ports{uint16(next), uint16(last)}
		}
	}
	for _, p := range taken {
		offer(int(p.First) - 1)
		next = max(next, int(p.Last)+1)
	}
	offer(65535)
	if best.First == 0 || best.Len() < fewestSnatPorts {
		return Ports{}, fmt.Errorf("%s leave fewer than %d consecutive ports for connections to backends on other nodes: "+
			"make net.ipv4.ip_local_port_range smaller, for example \"32768 60999\"", t, fewestSnatPorts)
	}
	return best, nil
}

// Check returns an error that says what to do if the range cannot be used on this node. Package
// config compares it with the NodePorts.
func (t Taken) Check(ports Ports) error {
	if ports.overlaps(t.Local) {
		return fmt.Errorf("ports %s overlap with net.ipv4.ip_local_port_range, %s, which the node's sockets use: change one of the two",
			ports, t.Local)
	}
	for _, r := range t.Reserved {
		if ports.overlaps(r) {
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
