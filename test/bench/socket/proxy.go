package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"fairlead.io/fairlead/test/bench/kubeproxy"
	"fairlead.io/fairlead/test/bench/listwatch"
	"fairlead.io/fairlead/test/bench/round"
	"fairlead.io/fairlead/test/bench/topology"
)

// proxy is a node with the rules that kube-proxy wrote for a number of services. kube-proxy itself
// has ended, since it would sleep while nothing changes. Its services use IPv4 and TCP.
type proxy struct {
	mode   string
	fleet  listwatch.Fleet
	top    *topology.Topology
	number int // number of the service that leads to the server
}

func (p *proxy) String() string {
	return fmt.Sprintf("%d services, kube-proxy %s", p.fleet.Services, p.mode)
}

// frontend returns the frontend of the service that leads to the server.
func (p *proxy) frontend(topology.Family) netip.AddrPort {
	return netip.AddrPortFrom(p.fleet.ServiceAddr(p.number), frontPort)
}

// server returns the address of that service's pod, an additional address of the server.
func (p *proxy) server(topology.Family) netip.Addr { return p.fleet.PodAddr(p.number) }

func (p *proxy) way() *way {
	return &way{name: p.String(), top: p.top, listen: p.server, dial: p.frontend}
}

// newProxy makes a node and makes kube-proxy write its rules.
func newProxy(ctx context.Context, program *kubeproxy.Program, mode string, services int) (_ *proxy, err error) {
	p := &proxy{mode: mode, fleet: listwatch.Fleet{
		Services: services, Endpoints: 1, Nodes: 1, Namespaces: 100, FirstPod: 1<<23 + 1,
	}}
	if p.top, err = topology.NewRouted(topology.Knobs{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.top.Close())
		}
	}()
	if err := p.lead(services - 1); err != nil {
		return nil, err
	}
	return p, p.writeRules(ctx, program)
}

// lead makes a service lead to the server.
func (p *proxy) lead(number int) error {
	p.number = number
	node, server := p.top.Nodes[0], p.top.Servers[0]
	pod := netip.PrefixFrom(p.server(topology.IPv4), 32)
	if err := server.AddAddr(server.Ports[0].Name, pod); err != nil {
		return err
	}
	return node.AddRoute(pod, server.Addr(topology.IPv4))
}

// leadHalfway makes the service in the middle of the rules lead to the server. kube-proxy writes
// the rules in an order that changes from run to run, and a connection is compared with all rules
// before its own.
func (p *proxy) leadHalfway(path string) error {
	if p.mode != "iptables" || p.fleet.Services < 3 {
		return nil
	}
	cmd := exec.Command(path, "-t", "nat")
	var rules []byte
	if err := p.top.Nodes[0].Do(func() (err error) {
		rules, err = cmd.Output()
		return err
	}); err != nil {
		return fmt.Errorf("read the rules: %w", err)
	}
	var order []netip.Addr
	for line := range strings.Lines(string(rules)) {
		if rest, ok := strings.CutPrefix(line, "-A KUBE-SERVICES -d "); ok && strings.Contains(line, "-j KUBE-SVC-") {
			if addr, err := netip.ParsePrefix(strings.Fields(rest)[0]); err == nil {
				order = append(order, addr.Addr())
			}
		}
	}
	if len(order) != p.fleet.Services {
		return fmt.Errorf("read the rules: found %d services of %d", len(order), p.fleet.Services)
	}
	for number := range p.fleet.Services {
		if p.fleet.ServiceAddr(number) == order[len(order)/2] && number != p.number {
			return p.lead(number)
		}
	}
	return nil
}

// writeRules makes kube-proxy write its rules.
func (p *proxy) writeRules(ctx context.Context, program *kubeproxy.Program) error {
	save, err := program.Write(ctx, kubeproxy.Rules{
		Mode: p.mode, Fleet: p.fleet, Netns: p.top.Nodes[0].Netns, Await: p.awaitService,
	})
	if err != nil {
		return err
	}
	return p.leadHalfway(save)
}

// awaitService dials the service until it answers.
func (p *proxy) awaitService(ctx context.Context) error {
	listening := net.ListenConfig{}
	var listener net.Listener
	at := netip.AddrPortFrom(p.server(topology.IPv4), serverPort).String()
	if err := p.top.Servers[0].Do(func() (err error) {
		listener, err = listening.Listen(ctx, "tcp4", at)
		return err
	}); err != nil {
		return err
	}
	defer listener.Close()
	for {
		err := p.top.Client.Do(func() error { return dial(p.frontend(topology.IPv4)) })
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// dial connects on the calling thread, which may be in another namespace.
func dial(to netip.AddrPort) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open socket: %w", err)
	}
	defer syscall.Close(fd)
	limit := syscall.NsecToTimeval(int64(time.Second))
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &limit); err != nil {
		return fmt.Errorf("limit the wait: %w", err)
	}
	if err := syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return fmt.Errorf("dial %s: %w", to, err)
	}
	return nil
}

// startProxies makes a node for every number of services and every mode of kube-proxy.
func (s *setup) startProxies(ctx context.Context) error {
	if len(s.numbers) == 0 {
		return nil
	}
	program, version, err := kubeproxy.Find()
	if err != nil {
		return err
	}
	if program == nil {
		fmt.Fprintf(s.report.Out(), "NOT MEASURED: kube-proxy %s is not built; \"go run ./test/cluster build\" does that\n", version)
		return nil
	}
	for _, mode := range kubeproxy.Modes() {
		for _, n := range s.numbers {
			if mode == "nftables" && n > s.nft {
				fmt.Fprintf(s.report.Out(), "NOT MEASURED: %d services, kube-proxy nftables; -nft-most=%d would\n", n, n)
				continue
			}
			start := time.Now()
			p, err := newProxy(ctx, program, mode, n)
			if err != nil {
				return fmt.Errorf("%d services, kube-proxy %s: %w", n, mode, err)
			}
			fmt.Fprintf(s.report.Out(), "kube-proxy %s wrote the rules of %s in %.1f s\n",
				version, p, time.Since(start).Seconds())
			s.parts = append(s.parts, p.top)
			s.proxies = append(s.proxies, p)
		}
	}
	return nil
}

// proxyWays returns the ways through kube-proxy's nodes, if they support this traffic.
func (s *setup) proxyWays(what workload, family topology.Family) []*way {
	if !what.tcp || family != topology.IPv4 {
		return nil
	}
	var ways []*way
	for _, p := range s.proxies {
		ways = append(ways, p.way())
	}
	return ways
}

// askAgainst asks how many connections per second there are compared with kube-proxy's rules for as
// many services.
func (s *setup) askAgainst(what workload, proxies []*way) []round.Question {
	if what.metric != rate {
		return nil
	}
	var questions []round.Question
	for i, w := range proxies {
		p := s.proxies[i]
		at := slices.Index(s.services, p.fleet.Services)
		if at < 0 {
			continue
		}
		questions = append(questions, round.Question{
			Row: what.row + ", against kube-proxy", Case: p.String(), Metric: rate, Variant: s.ways[at].name, Yardstick: w.name, Goal: 1.1,
		})
	}
	return questions
}
