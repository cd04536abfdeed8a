package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/maps"
)

const (
	// drainLooks is how often is looked how many connections are left, and drainTells how often that is told.
	drainLooks = time.Second
	drainTells = 30 * time.Second
	// drainRest is how many times as long as a look took the next one is away, up to drainTells.
	drainRest = 50
)

// drainer waits on a node without an agent for the end of the connections with which nobody could go on after a cleanup.
type drainer struct {
	cfg   *config.Config
	limit time.Duration // how long; zero for not at all
	out   io.Writer     // is told how it goes
	node  *datapath.Drain
}

// drain closes the frontends and waits. It returns what is left after the limit, or at once without one: then it closes nothing.
func drain(ctx context.Context, cfg *config.Config, limit time.Duration, out io.Writer) (left datapath.Stuck, err error) {
	timeouts, err := timeoutsOf(&cfg.Conntrack)
	if err != nil {
		return left, err
	}
	node, err := datapath.NewDrain(cfg.BPFFS, timeouts.TCPClosing)
	if limit == 0 && err != nil {
		return left, nil // maps that cannot be read are removed too, and who hands connections over says that they cannot
	}
	if node == nil {
		return left, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if limit == 0 {
		if left, err = node.Stuck(); err != nil { // it is only told
			fmt.Fprintf(out, "connections that will break could not be counted: %v\n", err)
		}
		return left, nil
	}
	ctx, cancel := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer cancel()
	if err := node.CloseFrontends(); err != nil {
		return left, err
	}
	d := &drainer{cfg: cfg, limit: limit, out: out, node: node}
	end, err := d.collect(timeouts)
	if err != nil {
		return left, err
	}
	defer func() { err = errors.Join(err, end()) }()
	return d.wait(ctx)
}

// collect has flows forgotten that are over, which nobody else does now: what is over is not waited for, and pods go on to open connections. It
// returns what ends that.
func (d *drainer) collect(timeouts conntrack.Timeouts) (end func() error, err error) {
	flows, err := d.node.Flows()
	if flows == nil {
		if err == nil {
			fmt.Fprintln(d.out, "flows that are over are not removed meanwhile: an agent was interrupted while their map grew; start one to finish that")
		}
		return func() error { return nil }, err
	}
	tick, err := datapath.MeasureTick()
	if err != nil {
		return nil, errors.Join(err, flows.Close())
	}
	nothingIs := func(_ context.Context, peers []maps.Peer) ([]bool, error) { return make([]bool, len(peers)), nil }
	collector := conntrack.NewCollector(conntrack.Config{
		Flows: flows, Clock: conntrack.Clock(tick), Timeouts: timeouts, Stale: nothingIs, Log: slog.New(slog.NewTextHandler(d.out, nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- collector.Run(ctx) }()
	return func() error {
		cancel()
		return errors.Join(<-ended, flows.Close())
	}, nil
}

// wait returns when there are no such connections any more, or after the limit. It gives up if it is told to, and if there is an agent again, which
// serves the node.
func (d *drainer) wait(ctx context.Context) (datapath.Stuck, error) {
	begun, told := time.Now(), time.Time{}
	for {
		start := time.Now()
		left, err := d.look()
		if err == nil && ctx.Err() != nil {
			err = fmt.Errorf("wait for %s: interrupted; new connections are left to other rules until an agent starts", stuckWords(left))
		}
		if err != nil || left.All() == 0 || start.Sub(begun) >= d.limit {
			return left, err
		}
		if start.Sub(told) >= drainTells {
			told = start
			fmt.Fprintf(d.out, "waiting up to %[2]v for %[1]s\n", stuckWords(left), (d.limit - start.Sub(begun)).Round(time.Second))
		}
		next := min(max(drainLooks, drainRest*time.Since(start)), drainTells)
		select {
		case <-ctx.Done(): // which the next look ends with
		case <-time.After(min(next, max(0, d.limit-time.Since(begun)))):
		}
	}
}

func (d *drainer) look() (left datapath.Stuck, err error) {
	alive, err := api.Alive(d.cfg.SocketPath())
	if err == nil && alive {
		err = fmt.Errorf("wait for connections: an agent has started at %s", d.cfg.SocketPath())
	}
	if err != nil {
		return left, err
	}
	return d.node.Stuck()
}

// stuckWords says how many connections there are and of which kinds.
func stuckWords(s datapath.Stuck) string {
	text := fmt.Sprintf("%d connections", s.All())
	if s.All() == 1 {
		text = "1 connection"
	}
	between := " ("
	for _, kind := range []struct {
		n    int
		text string
	}{{s.Direct, "with direct server return"}, {s.Tunnel, "through the tunnel"}, {s.SCTP, "by SCTP"}, {s.Forwarded, "that other nodes may forward here"}} {
		if kind.n > 0 {
			text += fmt.Sprintf("%s%d %s", between, kind.n, kind.text)
			between = ", "
		}
	}
	if between != " (" {
		text += ")"
	}
	return text
}
