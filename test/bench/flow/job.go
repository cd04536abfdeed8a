// Package flow sends traffic from a client to a server, each its own process in a chosen network
// namespace and cgroup and on a chosen CPU. It reports how long operations took, their CPU time on
// either side, and how many the server counted. Its loops are plain system calls on their own
// threads, so they measure the kernel and hardly Go.
package flow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"fairlead.io/fairlead/test/rig"
)

// Kind is the kind of traffic between a client and a server.
type Kind string

// The kinds of traffic. The comments say what one operation is.
const (
	// RequestResponse sends a request over a lasting TCP connection, and reads a response of the
	// same size.
	RequestResponse Kind = "request-response"
	// Connect opens a TCP connection, sends a request, reads the response and closes with a reset,
	// so that ports can be reused at once.
	Connect Kind = "connect"
	// Stream writes to a TCP connection. The time ends when the server has read everything.
	Stream Kind = "stream"
	// Datagram sends a UDP datagram and waits for its echo.
	Datagram Kind = "datagram"
	// Send sends UDP datagrams and only waits from time to time until the server has them all. Only
	// the sending is timed: until the client waits, the server sleeps on something else, since
	// waking it would cost more than sending.
	Send Kind = "send"
	// Associate opens a UDP socket, connects it and closes it. Only these three calls are timed, in
	// batches; in between, each socket sends a datagram and gets it back, so that the server can
	// count them.
	Associate Kind = "associate"
)

// datagrams reports whether the traffic uses UDP instead of TCP.
func (k Kind) datagrams() bool { return k == Datagram || k == Send || k == Associate }

// batches reports whether operations are done and timed in batches.
func (k Kind) batches() bool { return k == Send || k == Associate }

const (
	// batch is the number of datagrams sent before the client waits for the server, or of sockets
	// open at a time.
	batch = 64
	// patience is how long a datagram may take to come back before it counts as lost.
	patience = 2 * time.Second
	// maxSize bounds requests.
	maxSize = 1 << 20
	// maxDatagram bounds datagrams, so that none is fragmented.
	maxDatagram = 1400
	// sendBuffer holds a batch: each datagram counts as the memory that the kernel uses for it,
	// about a page.
	sendBuffer = 1 << 20
)

// CPU selects the CPU of a process: AnyCPU, or the result of On.
type CPU int

// AnyCPU leaves the choice of the CPU to the scheduler.
const AnyCPU CPU = 0

// On returns the CPU with the given number, counted from 0.
func On(number int) CPU { return CPU(number + 1) }

// Place says where a process runs. A nil namespace or cgroup is the caller's.
type Place struct {
	Cgroup *rig.Cgroup
	Netns  *rig.Netns
	CPU    CPU
}

// Job describes the traffic to send.
type Job struct {
	Kind        Kind
	Client      Place
	Server      Place
	Listen      netip.AddrPort // where the server listens; with port 0 the kernel chooses one
	Dial        netip.AddrPort // where the client connects, such as a frontend; zero = where the server listens
	Size        int            // bytes of an operation in one direction; zero = 1
	Operations  int            // timed operations of all connections together
	WarmUp      int            // untimed operations before them
	Parallel    int            // TCP connections in use at a time, each with a thread on both sides; zero = 1
	Unconnected bool           // UDP: give the destination with every datagram
}

// Result is the outcome of a job.
type Result struct {
	Claimed uint64        // operations that the client did and timed: at least the job's
	Arrived uint64        // of them, those that the server counted
	Took    time.Duration // wall time from the first to the last; for Send and Associate, the timed parts only
	Times   Times         // of one operation; for Send and Associate, means over batches; zero for Stream
	Client  Cost
	Server  Cost
}

// Cost is the CPU time of a process. It includes the kernel's softirqs as far as they interrupted
// the process.
type Cost struct {
	CPU        time.Duration
	Operations uint64 // done in this time
}

// PerOperation returns the CPU nanoseconds per operation.
func (c Cost) PerOperation() float64 { return float64(c.CPU) / float64(c.Operations) }

// Bandwidth returns the bits per second of a job whose operations have the given number of bytes.
func (r Result) Bandwidth(size int) float64 {
	return float64(r.Arrived) * float64(size) * 8 / r.Took.Seconds()
}

// order is the job description for one child process.
type order struct {
	Kind        Kind
	Address     netip.AddrPort
	CPU         CPU
	Size        int
	Operations  int // of one connection
	WarmUp      int // of one connection
	Parallel    int
	Unconnected bool
	Bell        string // path of the pipe by which the client wakes the server; only for Send
}

// complete checks the job and returns the orders for its server and its client.
func (j Job) complete() (server, client order, err error) {
	parallel, size := max(j.Parallel, 1), max(j.Size, 1)
	udp := j.Kind.datagrams()
	switch {
	case !slices.Contains([]Kind{RequestResponse, Connect, Stream, Datagram, Send, Associate}, j.Kind):
		return server, client, fmt.Errorf("no kind %q", j.Kind)
	case !j.Listen.IsValid():
		return server, client, errors.New("no address: set where the server listens")
	case j.Operations < 1 || j.WarmUp < 0 || j.Parallel < 0:
		return server, client, fmt.Errorf("cannot do %d operations after %d, %d in parallel", j.Operations, j.WarmUp, j.Parallel)
	case j.Size < 0 || size > maxSize || udp && size > maxDatagram:
		return server, client, fmt.Errorf("a size of %d is not possible (at most %d, for UDP %d)", j.Size, maxSize, maxDatagram)
	case udp && parallel > 1:
		return server, client, errors.New("UDP runs alone; do not set Parallel")
	case (!udp || j.Kind == Associate) && j.Unconnected:
		return server, client, fmt.Errorf("%s is always connected; do not set Unconnected", j.Kind)
	}
	server = order{
		Kind: j.Kind, Address: j.Listen, CPU: j.Server.CPU, Size: size, Parallel: parallel, Unconnected: j.Unconnected,
		Operations: roundUp(j.Operations, parallel), WarmUp: roundUp(j.WarmUp, parallel),
	}
	if j.Kind.batches() {
		server.Operations, server.WarmUp = roundUp(j.Operations, batch)*batch, roundUp(j.WarmUp, batch)*batch
	}
	client = server
	client.CPU, client.Address = j.Client.CPU, j.Dial
	return server, client, nil
}

func roundUp(n, by int) int { return (n + by - 1) / by }

// Run runs a job. If the context ends, it kills the processes and returns the context's cause.
func Run(ctx context.Context, job Job) (Result, error) {
	serve, send, err := job.complete()
	if err != nil {
		return Result{}, fmt.Errorf("plan %s: %w", job.Kind, err)
	}
	if job.Kind == Send {
		bell, remove, err := newBell()
		if err != nil {
			return Result{}, err
		}
		defer remove()
		serve.Bell, send.Bell = bell, bell
	}
	server, address, err := startServer(ctx, job.Server, serve)
	if err != nil {
		return Result{}, fmt.Errorf("start server: %w", err)
	}
	defer server.Kill()
	if !send.Address.IsValid() {
		send.Address = address
	}
	var sent clientReport
	if err := runClient(ctx, job.Client, send, &sent); err != nil {
		return Result{}, fmt.Errorf("run client: %w", err)
	}
	counted, err := server.finish(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("ask server: %w", err)
	}
	warm := uint64(send.WarmUp * send.Parallel)
	result := Result{
		Claimed: sent.Operations, Took: sent.Took, Times: sent.Times,
		Client: Cost{CPU: sent.CPU, Operations: sent.Operations},
		Server: Cost{CPU: counted.CPU, Operations: counted.Operations},
	}
	if counted.Operations > warm {
		result.Arrived = counted.Operations - warm
	}
	if want := (sent.Operations + warm) * uint64(send.Size); counted.Bytes < want {
		return result, fmt.Errorf("compare both ends: the client sent %d bytes, the server got %d", want, counted.Bytes)
	}
	return result, nil
}

// child is a process of a job.
type child struct{ *rig.Process }

func startChild(ctx context.Context, place Place, name string, o order) (child, func(), error) {
	text, err := json.Marshal(o)
	if err != nil {
		return child{}, nil, err
	}
	p, err := rig.StartChild(place.Cgroup, place.Netns, name, string(text))
	if err != nil {
		return child{}, nil, err
	}
	stop := context.AfterFunc(ctx, p.Kill)
	return child{p}, func() { stop() }, nil
}

// report reads the one line that a child prints at its end, and waits until it has ended.
func (c child) report(ctx context.Context, into any) error {
	line, err := c.ReadLine()
	if err != nil {
		// The read error only says that the child ended; report how it ended.
		err = errors.Join(context.Cause(ctx), c.Wait())
		if err == nil {
			err = errors.New("the process ended without a report")
		}
		return err
	}
	if err := json.Unmarshal([]byte(line), into); err != nil {
		return fmt.Errorf("read report: %w", err)
	}
	return c.Wait()
}

// serverProcess is a running server.
type serverProcess struct {
	child
	release func()
}

// startServer starts a server and waits until it listens.
func startServer(ctx context.Context, place Place, o order) (*serverProcess, netip.AddrPort, error) {
	c, release, err := startChild(ctx, place, serverName, o)
	if err != nil {
		return nil, netip.AddrPort{}, err
	}
	s := &serverProcess{child: c, release: release}
	line, err := c.ReadLine()
	if err == nil {
		var address netip.AddrPort
		if address, err = netip.ParseAddrPort(line); err == nil {
			return s, address, nil
		}
	}
	err = errors.Join(context.Cause(ctx), err)
	s.Kill()
	return nil, netip.AddrPort{}, errors.Join(err, c.Wait())
}

// finish asks the server for its report.
func (s *serverProcess) finish(ctx context.Context) (serverReport, error) {
	var r serverReport
	if err := s.Stdin.Close(); err != nil {
		return r, errors.Join(context.Cause(ctx), err)
	}
	return r, s.report(ctx, &r)
}

// Kill kills the server.
func (s *serverProcess) Kill() {
	s.release()
	s.Process.Kill()
}

func runClient(ctx context.Context, place Place, o order, into *clientReport) error {
	c, release, err := startChild(ctx, place, clientName, o)
	if err != nil {
		return err
	}
	defer c.Kill()
	defer release()
	return c.report(ctx, into)
}
