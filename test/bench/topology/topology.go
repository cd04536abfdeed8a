// Package topology sets up the environment of benchmarks: hosts, which are network namespaces, and
// wires between them, which are veths. IP addresses, hardware addresses and neighbors are fixed,
// so that programs can use them as constants and nothing is resolved during a measurement.
// Everything ends with the process; only if the process is killed, the empty directory of the
// cgroup remains.
package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"fairlead.io/fairlead/test/rig"
)

// Family is an IP family.
type Family int

// The IP families. Every host has addresses of both.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String returns the name of the family.
func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

// Host is a network namespace with the ends of wires in it.
type Host struct {
	*rig.Netns
	Ports []*Port
}

// Addr returns the host's address at its first port, or on loopback if it has no port.
func (h *Host) Addr(family Family) netip.Addr {
	if len(h.Ports) > 0 {
		return h.Ports[0].Addr(family)
	}
	if family == IPv4 {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// Port returns the end of the host's wire to the peer, or nil if there is no such wire.
func (h *Host) Port(peer *Host) *Port {
	for _, port := range h.Ports {
		if port.Peer.Host == peer {
			return port
		}
	}
	return nil
}

// Knobs are the variable properties of a topology. The zero value leaves the kernel's defaults.
type Knobs struct {
	MTU      int       // of every wire; zero = 1500
	Offloads *Offloads // of every port; nil = a veth's defaults: TSO and tx checksums, no GRO
	Servers  int       // pods behind the last node; zero = one
	// DirectReturn makes the servers' node of Balanced answer the client over its own wire,
	// bypassing the balancer.
	DirectReturn bool
}

// Topology is a client, the nodes on its way, servers, and a cgroup for the client's processes.
type Topology struct {
	Client  *Host
	Nodes   []*Host // on the way from the client to the servers, in this order
	Servers []*Host
	Cgroup  *rig.Cgroup

	knobs Knobs
	hosts []*Host
	wires int
}

// NewLoopback returns a topology with one host that is both client and server.
func NewLoopback() (*Topology, error) {
	return lay(Knobs{}, func(t *Topology) error {
		client, err := t.addHost("client")
		if err != nil {
			return err
		}
		t.Client, t.Servers = client, []*Host{client}
		return nil
	})
}

// NewDirect returns a client and a server at the two ends of a wire.
func NewDirect(knobs Knobs) (*Topology, error) {
	return lay(knobs, func(t *Topology) error {
		var err error
		if t.Client, err = t.addHost("client"); err != nil {
			return err
		}
		server, err := t.addHost("server")
		if err != nil {
			return err
		}
		t.Servers = []*Host{server}
		return t.connect(t.Client, server)
	})
}

// NewRouted returns a client and servers with a node that routes between them.
func NewRouted(knobs Knobs) (*Topology, error) {
	return lay(knobs, func(t *Topology) error {
		client, err := t.addHost("client")
		if err != nil {
			return err
		}
		node, err := t.addHost("node")
		if err != nil {
			return err
		}
		t.Client, t.Nodes = client, []*Host{node}
		if err := t.connect(client, node); err != nil {
			return err
		}
		if err := client.routeAll(node); err != nil {
			return err
		}
		return t.addServers(node)
	})
}

// NewBalanced returns a client, a node that balances, and another node with servers behind it. The
// second node also has a wire to the client, which is only used with DirectReturn.
func NewBalanced(knobs Knobs) (*Topology, error) {
	return lay(knobs, func(t *Topology) error {
		for _, label := range []string{"client", "balancer", "node"} {
			if _, err := t.addHost(label); err != nil {
				return err
			}
		}
		client, balancer, node := t.hosts[0], t.hosts[1], t.hosts[2]
		t.Client, t.Nodes = client, []*Host{balancer, node}
		err := errors.Join(t.connect(client, balancer), t.connect(balancer, node), t.connect(node, client))
		if err != nil {
			return err
		}
		if err := errors.Join(client.routeAll(balancer), balancer.routeAll(node)); err != nil {
			return err
		}
		back := balancer
		if knobs.DirectReturn {
			back = client
		}
		if err := node.route(client.Port(balancer), back); err != nil {
			return err
		}
		return t.addServers(node)
	})
}

// lay builds a topology. On failure it leaves nothing behind.
func lay(knobs Knobs, build func(*Topology) error) (*Topology, error) {
	if knobs.Servers == 0 {
		knobs.Servers = 1
	}
	t := &Topology{knobs: knobs}
	var err error
	if t.Cgroup, err = rig.CreateCgroup(); err == nil {
		err = build(t)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lay out hosts: %w", err), t.Close())
	}
	return t, nil
}

// New sets up a topology for a test, and closes it when the test ends.
func New(t rig.T, layOut func(Knobs) (*Topology, error), knobs Knobs) *Topology {
	t.Helper()
	rig.Root(t)
	topology, err := layOut(knobs)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := topology.Close(); err != nil {
			t.Errorf("%v", err)
		}
	})
	return topology
}

// Close kills the processes in the cgroup and removes the hosts.
func (t *Topology) Close() error {
	var errs []error
	if t.Cgroup != nil {
		errs = append(errs, t.Cgroup.Close())
	}
	for _, host := range t.hosts {
		errs = append(errs, host.Close())
	}
	return errors.Join(errs...)
}

func (t *Topology) addHost(label string) (*Host, error) {
	n, err := rig.CreateNetns(label)
	if err != nil {
		return nil, err
	}
	h := &Host{Netns: n}
	t.hosts = append(t.hosts, h)
	settings := map[string]string{
		// In a triangle, replies arrive on another wire than requests left.
		"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0",
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
		// Packets that the kernel sends by itself would be counted too.
		"net/ipv6/conf/default/router_solicitations": "0",
	}
	for name, value := range settings {
		if err := n.SetSysctl(name, value); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("set %s in %s: %w", name, label, err)
		}
	}
	return h, nil
}

// addServers puts pods behind the node.
func (t *Topology) addServers(node *Host) error {
	for range t.knobs.Servers {
		server, err := t.addHost(fmt.Sprintf("server%d", len(t.Servers)))
		if err != nil {
			return err
		}
		if err := t.connect(server, node); err != nil {
			return err
		}
		if err := server.routeAll(node); err != nil {
			return err
		}
		t.Servers = append(t.Servers, server)
	}
	// The balancer needs no routes to them: it sends unknown destinations to the node.
	return nil
}
