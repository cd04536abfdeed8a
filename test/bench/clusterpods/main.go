// Command clusterpods measures what the pods of all nodes cost an agent, without policies that name them and with:
// memory, how long the agent takes until it knows them, and what it takes while pods are replaced. The API server is
// played, and the agent, its node and some pods of it are real.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"fairlead.io/fairlead/test/bench/listwatch"
	"fairlead.io/fairlead/test/bench/node"
	"fairlead.io/fairlead/test/bench/result"
)

const (
	// Of this node, so many pods are attached, each in another namespace. The fleet has ten pods of each Service.
	attached, endpoints = 10, 10
	// replaced is how many pods are replaced in a second, each by two events.
	replaced = 100
	// idleFor and churnFor are how long the agent is watched. It compares the maps with its tables once a minute.
	idleFor, churnFor = 10 * time.Second, time.Minute
	// knownWithin is how long the agent may take until it knows all pods.
	knownWithin = 2 * time.Minute
)

// options are the command line's options.
type options struct {
	binaries, output      string
	pods, nodes, policies int
}

func main() {
	var o options
	flag.StringVar(&o.binaries, "binaries", "_output/bench/bin", "the `folder` with fairlead and fairlead-cni")
	flag.StringVar(&o.output, "output", "_output/bench/clusterpods.json", "the file for the results, in JSON")
	flag.IntVar(&o.pods, "pods", 100_000, "number of pods of the cluster, each an endpoint of a Service")
	flag.IntVar(&o.nodes, "nodes", 1000, "number of nodes")
	flag.IntVar(&o.policies, "policies", 1000, "number of NetworkPolicies, one a namespace; each pod is named by a third of them")
	flag.Parse()
	result.Main("clusterpods", func(ctx context.Context, _ []string, out io.Writer) error { return run(ctx, out, o) })
}

func run(ctx context.Context, out io.Writer, o options) error {
	report, err := result.Begin(result.Config{Benchmark: "clusterpods", Path: o.output, Out: out})
	if err != nil {
		return err
	}
	for _, policies := range []int{0, o.policies} {
		if err := measure(ctx, report, o, policies); err != nil {
			return fmt.Errorf("%d policies: %w", policies, err)
		}
	}
	return report.Finish()
}

// measure measures an agent of a cluster with so many policies. Without any it does not watch the pods of other nodes.
func measure(ctx context.Context, report *result.Report, o options, policies int) (err error) {
	fleet := listwatch.Fleet{Services: o.pods / endpoints, Endpoints: endpoints, Nodes: o.nodes, Namespaces: max(1, o.policies), Policies: policies}
	c, err := startCluster(ctx, o.binaries, fleet)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	took, err := c.known(policies > 0)
	if err != nil {
		return err
	}
	idle, err := c.watch(idleFor, 0)
	if err != nil {
		return err
	}
	churn, err := c.watch(churnFor, replaced)
	if err != nil {
		return err
	}
	memory, err := c.memory()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%d pods of %d services, %d policies", o.pods, fleet.Services, policies)
	busy := fmt.Sprintf("%s, %d pods replaced in a second", name, replaced)
	for _, row := range []result.Row{
		{Row: "memory", Case: name, Metric: "MiB resident", Value: memory.resident, Goal: 250},
		{Row: "memory", Case: name, Metric: "MiB resident at the peak", Value: memory.peak},
		{Row: "start", Case: name, Metric: "seconds until all pods are known", Value: took.Seconds()},
		{Row: "idle", Case: name, Metric: "percent of a processor", Value: idle.processor},
		{Row: "churn", Case: busy, Metric: "percent of a processor", Value: churn.processor, Goal: 2},
		{Row: "churn", Case: busy, Metric: "KB a second from the API server", Value: churn.received / 1000},
	} {
		row.Verdict = result.Pass
		if row.Goal > 0 {
			row.Verdict = result.AtMost(row.Value, row.Goal)
		}
		report.Add(row)
	}
	return nil
}

// cluster is a played API server, and a node with its agent.
type cluster struct {
	*node.Node
	server *listwatch.Server
	fleet  listwatch.Fleet
	sent   atomic.Uint64
	ended  chan error
	end    context.CancelFunc
	began  time.Time
}

func startCluster(ctx context.Context, binaries string, fleet listwatch.Fleet) (_ *cluster, err error) {
	c := &cluster{fleet: fleet, ended: make(chan error, 1)}
	if c.server, err = listwatch.New(listwatch.Config{Fleet: fleet}); err != nil {
		return nil, err
	}
	ctx, c.end = context.WithCancel(ctx)
	c.Node, err = node.NewOf(binaries, func(n *node.Node) ([]string, error) { return c.serve(ctx, n) })
	if err != nil {
		c.end()
		return nil, err
	}
	c.began = time.Now()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	for i := range attached {
		// The newest pods of the node: the oldest are replaced.
		number := (fleet.Services*fleet.Endpoints/fleet.Nodes - 1 - i) * fleet.Nodes
		p, err := c.NewPod(fmt.Sprintf("pod%d", i))
		if err != nil {
			return nil, err
		}
		p.Namespace, p.Name, p.UID = fleet.PodIdentity(number)
		if _, err := c.Add(ctx, p); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// serve starts the API server in the node's namespace, and returns the flags by which its agent finds it.
func (c *cluster) serve(ctx context.Context, n *node.Node) (flags []string, err error) {
	if err := n.AddAddr("eth0", netip.PrefixFrom(c.fleet.NodeAddr(0), 32)); err != nil {
		return nil, err
	}
	var listener net.Listener
	err = n.Do(func() error {
		listener, err = listwatch.Listen(ctx, "127.0.0.1:0")
		return err
	})
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(n.Dir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(listwatch.Kubeconfig(listener.Addr())), 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	go func() { c.ended <- c.server.Serve(ctx, counting{listener, &c.sent}) }()
	return []string{"--source=kubernetes", "--kubeconfig=" + kubeconfig, "--node-name=" + c.fleet.NodeName(0), "--policies=enforce"}, nil
}

func (c *cluster) close() error {
	err := c.Node.Close()
	c.end()
	return errors.Join(err, <-c.ended)
}

// known waits until the agent knows the pods of all nodes, and returns since when it has been running.
func (c *cluster) known(named bool) (time.Duration, error) {
	want := 0
	if named {
		want = c.fleet.Services * c.fleet.Endpoints
	}
	for {
		text, err := c.Ask("status", "--output=json")
		if err != nil {
			return 0, err
		}
		var status struct {
			Policies struct {
				Waiting     string
				ClusterPods int
				Pods        int
			}
		}
		if err := json.Unmarshal(text, &status); err != nil {
			return 0, err
		}
		p := status.Policies
		if p.Waiting == "" && p.ClusterPods == want && (!named || p.Pods == attached) {
			return time.Since(c.began), nil
		}
		if time.Since(c.began) > knownWithin {
			return 0, fmt.Errorf("not in %v: the agent knows %d pods, want %d, and policies are about %d of its own, want %d", knownWithin, p.ClusterPods, want, p.Pods, attached)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// load is what an agent takes.
type load struct {
	processor float64 // percent of one
	received  float64 // bytes a second
}

// watch replaces pods for some time, and returns what the agent took.
func (c *cluster) watch(during time.Duration, pods float64) (load, error) {
	ctx, cancel := context.WithTimeout(context.Background(), during)
	defer cancel()
	before, err := c.processorTime()
	if err != nil {
		return load{}, err
	}
	sent, began := c.sent.Load(), time.Now()
	done, err := c.server.Run(ctx, listwatch.Churn{Pods: pods})
	if err != nil {
		return load{}, err
	}
	took := time.Since(began)
	if float64(done.Pods) < 0.9*pods*during.Seconds() {
		return load{}, fmt.Errorf("only %d pods were replaced in %v", done.Pods, took)
	}
	after, err := c.processorTime()
	return load{
		processor: 100 * (after - before).Seconds() / took.Seconds(), received: float64(c.sent.Load()-sent) / took.Seconds(),
	}, err
}

// processorTime returns how long the agent has been running on processors.
func (c *cluster) processorTime() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Pid()))
	if err != nil {
		return 0, err
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all architectures that are supported
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var sum time.Duration
	for _, field := range fields[11:13] {
		ticks, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ticks) * tick
	}
	return sum, nil
}

// memory is an agent's, in MiB.
type memory struct{ resident, peak float64 }

func (c *cluster) memory() (m memory, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Pid()))
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		for name, at := range map[string]*float64{"VmRSS:": &m.resident, "VmHWM:": &m.peak} {
			var kib float64
			if n, _ := fmt.Sscanf(line, name+" %f kB", &kib); n == 1 {
				*at = kib / 1024
			}
		}
	}
	if m.resident == 0 || m.peak == 0 {
		return m, errors.New("the kernel does not say how much memory the agent has")
	}
	return m, nil
}

// counting is a listener that counts what is sent by its connections.
type counting struct {
	net.Listener
	sent *atomic.Uint64
}

func (l counting) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return countingConn{conn, l.sent}, err
}

type countingConn struct {
	net.Conn
	sent *atomic.Uint64
}

func (c countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.sent.Add(uint64(n))
	return n, err
}
