package topology

import (
	"errors"
	"fmt"
)

// NewSpread returns a client and two nodes side by side, each with one server behind it and one
// wire to the client, which also routes between the nodes. So a node sends to the other node
// through the device that leads to the client.
func NewSpread(knobs Knobs) (*Topology, error) {
	knobs.Servers = 1
	return lay(knobs, func(t *Topology) error {
		client, err := t.addHost("client")
		if err != nil {
			return err
		}
		t.Client = client
		// Packets that one node sends to the other with the client's address pass through the
		// client.
		if err := client.SetSysctl("net/ipv4/conf/all/accept_local", "1"); err != nil {
			return fmt.Errorf("let the client route what it sent itself: %w", err)
		}
		for _, label := range []string{"node-0", "node-1"} {
			if err := t.addNode(label); err != nil {
				return err
			}
		}
		return errors.Join(client.route(t.Servers[0].Ports[0], t.Nodes[0]), client.route(t.Servers[1].Ports[0], t.Nodes[1]))
	})
}

// addNode adds a node at the client, and its servers. It disables ICMP redirects, since there is no
// shorter path: the only path to the other node is the one that a packet from the client has come
// by.
func (t *Topology) addNode(label string) error {
	node, err := t.addHost(label)
	if err != nil {
		return err
	}
	for _, scope := range []string{"all", "default"} {
		if err := node.SetSysctl("net/ipv4/conf/"+scope+"/send_redirects", "0"); err != nil {
			return fmt.Errorf("keep %s from redirecting: %w", label, err)
		}
	}
	if err := t.connect(node, t.Client); err != nil {
		return err
	}
	if err := node.routeAll(t.Client); err != nil {
		return err
	}
	t.Nodes = append(t.Nodes, node)
	return t.addServers(node)
}
