package main

import (
	"context"
	"errors"
	"fmt"
	stdnet "net"
	"net/netip"
	"slices"
	"time"

	"fairlead.io/fairlead/test/bench/frames"
	"fairlead.io/fairlead/test/bench/kubeproxy"
	"fairlead.io/fairlead/test/bench/listwatch"
	"fairlead.io/fairlead/test/bench/napi"
	"fairlead.io/fairlead/test/bench/topology"
)

const (
	firstNodePort = 30000
	podPort       = 8080

	// cpu runs everything of a setup. Packets that change CPUs cost what the distance between the
	// CPUs costs, which is a property of the machine.
	cpu = 0
	// The devices' threads have priority over the thread that sends, so that a device has taken its
	// packets before more arrive: a veth drops packets if more than 256 are in its queue.
	sends, takes = 1, 2

	answerPatience = 5 * time.Second
)

// parts are closers, called in reverse order.
type parts []func() error

func (p *parts) add(closer func() error) { *p = append(*p, closer) }

// Close calls all of them.
func (p *parts) Close() error {
	var errs []error
	for _, closer := range slices.Backward(*p) {
		errs = append(errs, closer())
	}
	*p = nil
	return errors.Join(errs...)
}

// cluster returns two services: the backend of each is on the node with the same number.
func cluster() listwatch.Fleet {
	return listwatch.Fleet{
		Services: 2, Endpoints: 1, Nodes: 2, Namespaces: 1, FirstPod: 1<<23 + 1, NodePort: firstNodePort,
	}
}

// clientTwoNodes is a client and two nodes that balance in one way.
type clientTwoNodes struct {
	name    string
	flows   int
	top     *topology.Topology
	threads [2]*napi.Thread // of the nodes' devices toward the client
	parts   parts
}

// newClientTwoNodes makes a setup on which nothing balances yet.
func newClientTwoNodes(name string, flows int) (_ *clientTwoNodes, err error) {
	s := &clientTwoNodes{name: name, flows: flows}
	// A device takes frames if GRO is on, and XDP needs complete checksums.
	s.top, err = topology.NewSpread(topology.Knobs{Offloads: &topology.Offloads{GRO: true}})
	if err != nil {
		return nil, err
	}
	s.parts.add(s.top.Close)
	for i := range s.top.Nodes {
		err = errors.Join(err, s.addPod(i))
	}
	if err == nil {
		err = s.startThreads()
	}
	if err == nil {
		err = s.takeFrames()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close removes the setup.
func (s *clientTwoNodes) Close() error { return s.parts.Close() }

// addPod adds the pod address of a node's service to its server.
func (s *clientTwoNodes) addPod(node int) error {
	pod, server := netip.PrefixFrom(cluster().PodAddr(node), 32), s.top.Servers[node]
	return errors.Join(
		server.AddAddr(server.Ports[0].Name, pod),
		s.top.Nodes[node].AddRoute(pod, server.Addr(topology.IPv4)),
		s.top.Client.AddRoute(pod, s.top.Nodes[node].Addr(topology.IPv4)),
	)
}

// startThreads gives every device its own thread. Packets of a device without one would be taken on
// the thread of the device that sends to it.
func (s *clientTwoNodes) startThreads() error {
	place := napi.Place{CPU: cpu, Priority: takes}
	for _, host := range slices.Concat([]*topology.Host{s.top.Client}, s.top.Nodes, s.top.Servers) {
		for _, port := range host.Ports {
			thread, err := napi.Start(host.Netns, port.Name)
			if err == nil {
				err = thread.Put(place)
			}
			if err != nil {
				return err
			}
			if at := slices.Index(s.top.Nodes, host); at >= 0 && port.Peer.Host == s.top.Client {
				s.threads[at] = thread
			}
		}
	}
	return nil
}

// takeFrames lets the client's devices take the frames that a node's XDP sends back. It does so at
// every setup, since the cost is the client's.
func (s *clientTwoNodes) takeFrames() error {
	for _, port := range s.top.Client.Ports {
		pass, err := frames.AttachPass(s.top.Client.Netns, port.Index)
		if err != nil {
			return err
		}
		s.parts.add(pass.Close)
	}
	return nil
}

// frontend returns the NodePort of a service on a node.
func (s *clientTwoNodes) frontend(node, service int) netip.AddrPort {
	return netip.AddrPortFrom(s.top.Nodes[node].Addr(topology.IPv4), uint16(firstNodePort+service))
}

func pod(service int) netip.AddrPort { return netip.AddrPortFrom(cluster().PodAddr(service), podPort) }

// attachOurs makes both nodes balance with our programs.
func (s *clientTwoNodes) attachOurs(xdp bool) error {
	for i, node := range s.top.Nodes {
		var services []nodePort
		for service := range cluster().Services {
			services = append(services, nodePort{uint16(firstNodePort + service), pod(service), service == i})
		}
		programs, err := attachOurs(node.Port(s.top.Client), services, xdp)
		if err != nil {
			return err
		}
		s.parts.add(programs.Close)
	}
	return nil
}

// writeRules makes both nodes balance with kube-proxy's rules.
func (s *clientTwoNodes) writeRules(ctx context.Context, program *kubeproxy.Program, mode string) error {
	for i, node := range s.top.Nodes {
		_, err := program.Write(ctx, kubeproxy.Rules{
			Mode: mode, Fleet: cluster(), Netns: node.Netns, Node: i,
			Await: func(ctx context.Context) error { return s.await(ctx, i) },
		})
		if err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	return nil
}

// await returns when a node's own backend answers through the node's port.
func (s *clientTwoNodes) await(ctx context.Context, node int) error {
	stop, err := s.serve(node)
	if err != nil {
		return err
	}
	defer stop()
	for {
		// Use a new port each time: a flow that began before the rules existed bypasses them for as
		// long as it is remembered.
		from := netip.AddrPortFrom(s.top.Client.Addr(topology.IPv4), 0)
		err := s.exchange(from, s.frontend(node, node), time.Second/5)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(context.Cause(ctx), err)
		}
	}
}

// serve makes the pod of a service answer.
func (s *clientTwoNodes) serve(service int) (stop func(), err error) {
	var server *stdnet.UDPConn
	err = s.top.Servers[service].Do(func() error {
		server, err = stdnet.ListenUDP("udp4", stdnet.UDPAddrFromAddrPort(pod(service)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for packet := make([]byte, 2048); ; {
			n, from, err := server.ReadFromUDPAddrPort(packet)
			if err != nil {
				if errors.Is(err, stdnet.ErrClosed) {
					return
				}
				continue // ICMP error: an earlier client's port is closed
			}
			// A client that gets no answer reports that itself.
			_, _ = server.WriteToUDPAddrPort(packet[:n], from)
		}
	}()
	return func() { _ = server.Close(); <-ended }, nil
}

// exchange sends a packet and waits for the answer, twice: a flow is established once the client
// sends again after an answer.
func (s *clientTwoNodes) exchange(from, to netip.AddrPort, patience time.Duration) error {
	var conn *stdnet.UDPConn
	err := s.top.Client.Do(func() (err error) {
		conn, err = stdnet.DialUDP("udp4", stdnet.UDPAddrFromAddrPort(from), stdnet.UDPAddrFromAddrPort(to))
		return err
	})
	if err != nil {
		return fmt.Errorf("dial %s: %w", to, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	for range 2 {
		if _, err := conn.Write([]byte("hello")); err != nil {
			return fmt.Errorf("send from %s to %s: %w", from, to, err)
		}
		if _, err := conn.Read(make([]byte, 16)); err != nil {
			return fmt.Errorf("wait for an answer to %s from %s: %w", from, to, err)
		}
	}
	return nil
}

// shape returns the shape of packets of the setup's flows to a frontend.
func (s *clientTwoNodes) shape(to netip.AddrPort) frames.Shape {
	out := s.top.Client.Port(s.top.Nodes[0])
	return frames.Shape{
		Kind: frames.UDP, Source: out.Addr(topology.IPv4), To: to, Local: out.MAC, Remote: out.Peer.MAC, Flows: s.flows,
	}
}

// establish makes all flows to a service known.
func (s *clientTwoNodes) establish(service int) error {
	stop, err := s.serve(service)
	if err != nil {
		return err
	}
	defer stop()
	to := s.frontend(0, service)
	for flow := range s.flows {
		if err := s.exchange(s.shape(to).FlowSource(flow), to, answerPatience); err != nil {
			return fmt.Errorf("establish flow %d: %w", flow, err)
		}
	}
	return nil
}
