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

	"fairlead.io/fairlead/pkg/agent/connections"
	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/conntrack"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/ticks"
)

const (
	// drainScanEvery is how often the remaining connections are counted, and drainReportEvery how often that
	// is reported.
	drainScanEvery   = time.Second
	drainReportEvery = 30 * time.Second
	// drainRest is the pause between two counts, as a multiple of the time that the last count
	// took. The pause is at most drainReportEvery.
	drainRest = 50
)

// drainer waits, on a node without an agent, for connections to end that nothing could continue
// after a cleanup.
type drainer struct {
	cfg   *config.Config
	limit time.Duration // how long to wait; zero means not at all
	out   io.Writer     // gets progress reports
	node  *flowtable.Drain
}

// drain closes the frontends and waits for connections to end. It returns the connections left
// after the limit. With a limit of zero it only counts them, and closes nothing.
func drain(ctx context.Context, cfg *config.Config, limit time.Duration, out io.Writer) (left flowtable.Stuck, err error) {
	timeouts, err := connections.Timeouts(&cfg.Conntrack)
	if err != nil {
		return left, err
	}
	node, err := flowtable.NewDrain(datapath.MapsDir(cfg.BPFFS), timeouts.TCPClosing)
	if limit == 0 && err != nil {
		// Unreadable maps are removed too, and the handover reports that it could not read them.
		return left, nil
	}
	if node == nil {
		return left, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	if limit == 0 {
		if left, err = node.Stuck(); err != nil { // the count is only information
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

// collect starts removing flows that are over, which no agent does now: they must not be waited
// for, and pods still open connections. It returns a function that stops that.
func (d *drainer) collect(timeouts conntrack.Timeouts) (end func() error, err error) {
	flows, err := d.node.Flows()
	if flows == nil {
		if err == nil {
			fmt.Fprintln(d.out, "flows that are over are not removed meanwhile, because an agent was interrupted while their map grew; start an agent to finish that")
		}
		return func() error { return nil }, err
	}
	tick, err := ticks.Measure()
	if err != nil {
		return nil, errors.Join(err, flows.Close())
	}
	nothingIs := func(_ context.Context, peers []maps.Origin) ([]bool, error) { return make([]bool, len(peers)), nil }
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

// wait returns when no such connections are left, or after the limit. It fails if it is
// interrupted, or if an agent has started, which serves the node again.
func (d *drainer) wait(ctx context.Context) (flowtable.Stuck, error) {
	begun, reported := time.Now(), time.Time{}
	for {
		start := time.Now()
		left, err := d.scan()
		if err == nil && ctx.Err() != nil {
			err = fmt.Errorf("wait for %s: interrupted; new connections are left to other rules until an agent starts", stuckWords(left))
		}
		if err != nil || left.All() == 0 || start.Sub(begun) >= d.limit {
			return left, err
		}
		if start.Sub(reported) >= drainReportEvery {
			reported = start
			fmt.Fprintf(d.out, "waiting up to %[2]v for %[1]s\n", stuckWords(left), (d.limit - start.Sub(begun)).Round(time.Second))
		}
		next := min(max(drainScanEvery, drainRest*time.Since(start)), drainReportEvery)
		select {
		case <-ctx.Done(): // the next scan ends the wait
		case <-time.After(min(next, max(0, d.limit-time.Since(begun)))):
		}
	}
}

func (d *drainer) scan() (left flowtable.Stuck, err error) {
	alive, err := api.Alive(d.cfg.SocketPath())
	if err == nil && alive {
		err = fmt.Errorf("wait for connections: an agent has started at %s", d.cfg.SocketPath())
	}
	if err != nil {
		return left, err
	}
	return d.node.Stuck()
}

// stuckWords says how many connections there are, and of which kinds.
func stuckWords(s flowtable.Stuck) string {
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
