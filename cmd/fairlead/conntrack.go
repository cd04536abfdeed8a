package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/flowtable"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/snapshot"
	"fairlead.io/fairlead/pkg/ticks"
)

// flushed is how many flows are removed at a time.
const flushed = 4096

func newConntrackCommand(inv *invocation) *cobra.Command {
	list := listFlows(inv, "List tracked flows", &flowForm{
		header: fmt.Sprintf("%-5s %-11s %-11s %7s %-21s %-21s %s", "PROTO", "STATE", "KIND", "IDLE", "CLIENT", "FRONTEND", "BACKEND"),
		row: func(f *snapshot.Flow) string {
			idle := "-"
			if f.IdleSeconds != nil {
				idle = fmt.Sprintf("%ds", *f.IdleSeconds)
			}
			state := f.State
			if f.Missing != "" {
				state += " (no " + f.Missing + ")"
			}
			return fmt.Sprintf("%-5s %-11s %-11s %7s %-21s %-21s %s", f.Protocol, state, f.Kind, idle, f.Client, f.Frontend, f.Backend)
		},
	})
	list.Long = `List the tracked flows, in no particular order: what the client dialed, the flow's backend, and how long ago the last
packet came. A flow is in one of these states:

    new          the client has not been answered
    answered     the client has not yet shown that it saw the answer
    open         established
    half-closed  one end has closed it
    closed       both ends have closed it
    reset        one end has reset it

The kind says who began it, and where its backend is:

    remote       a client outside; the backend is on another node and sees an address of this one
    local        a client outside; the backend is on this node
    dsr-*        a client outside; the backend is on another node and replies to it directly
    masqueraded  a pod of this node, to an address outside, which sees an address of this node
    pod          a pod of this node, to a Service
    pod-self     the same, and the backend is that pod
    host         this node itself, to a Service
    host-local   the same, and the backend is a process of this node

Flows in the states new and answered are kept apart from the others. If there are too many of them, some are evicted.`
	var all bool
	var filter flowFlags
	flush := &cobra.Command{
		Use:   "flush",
		Short: "Forget tracked flows",
		Long: `Forget the flows that match all given flags, or all flows with --all. The next UDP packet of a client gets a new backend.
A TCP connection is interrupted: its next packet may go to a backend that does not know it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := filter.filter()
			if err != nil {
				return config.UsageError{Err: err}
			}
			if all == (*wanted != snapshot.FlowFilter{}) {
				return config.UsageError{Err: errors.New("say which flows to forget, or --all for all of them")}
			}
			return inv.flush(cmd, wanted)
		},
	}
	filter.add(flush)
	flush.Flags().BoolVar(&all, "all", false, "forget all flows")
	return noun("conntrack", "Show and forget tracked flows", list, flush)
}

func newNATCommand(inv *invocation) *cobra.Command {
	list := listFlows(inv, "List how the packets of flows are translated", &flowForm{
		header: fmt.Sprintf("%-5s %-46s %s", "PROTO", "ORIGINAL", "TRANSLATED"),
		row: func(f *snapshot.Flow) string {
			return fmt.Sprintf("%-5s %-46s %s", f.Protocol, fmt.Sprintf("%s -> %s", f.Client, f.Frontend),
				fmt.Sprintf("%s -> %s", f.Source, f.Backend))
		},
	})
	list.Long = `List how the packets of each flow are translated: the client's packets as sent, and as the backend gets them. Replies are
translated back. If the backend is on this node, the client's address stays the source.`
	return noun("nat", "Show how the packets of flows are translated", list)
}

// flowForm is how flows are listed for people. Its columns are fixed, because a list may be too
// long to hold in memory and measure.
type flowForm struct {
	header string
	row    func(*snapshot.Flow) string
}

// flowFlags are the flags that select flows.
type flowFlags struct {
	src, dst, proto, state string
	port                   uint16
}

func (f *flowFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.src, "src", "", "only from clients with this address, or in this prefix")
	flags.StringVar(&f.dst, "dst", "", "only to frontends or backends with this address, or in this prefix")
	flags.Uint16Var(&f.port, "port", 0, "only to this port of a frontend or a backend")
	flags.StringVar(&f.proto, "proto", "", "only with this protocol (tcp|udp|sctp|icmp|icmp6|number)")
	flags.StringVar(&f.state, "state", "", "only in this state (new|answered|open|half-closed|closed|reset)")
	completeWords(cmd, "state", snapshot.FlowStates())
	completeWords(cmd, "proto", []string{"tcp", "udp"})
}

func (f *flowFlags) filter() (*snapshot.FlowFilter, error) {
	filter := &snapshot.FlowFilter{Port: f.port, Proto: f.proto, State: f.state}
	for _, one := range []struct {
		flag, value string
		to          *netip.Prefix
	}{{"src", f.src, &filter.Src}, {"dst", f.dst, &filter.Dst}} {
		if one.value == "" {
			continue
		}
		prefix, err := parseAddrs(one.value)
		if err != nil {
			return nil, fmt.Errorf("--%s %w", one.flag, err)
		}
		*one.to = prefix
	}
	return filter, filter.Check()
}

func listFlows(inv *invocation, short string, form *flowForm) *cobra.Command {
	var filter flowFlags
	list := &cobra.Command{
		Use:   "list",
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			wanted, err := filter.filter()
			if err != nil {
				return config.UsageError{Err: err}
			}
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(inv.Stdout)
			list := flowList{out, inv.format, form, 0}
			list.begin()
			err = readFlows(cfg, wanted, func(f *snapshot.Flow, _ maps.Doomed, _ bool) error { return list.add(f) })
			if err != nil {
				return err
			}
			list.end()
			return out.Flush()
		},
	}
	filter.add(list)
	return list
}

// flowList writes flows one by one, so that a list may have any length.
type flowList struct {
	io.Writer
	format string
	form   *flowForm
	n      int
}

func (l *flowList) begin() {
	switch l.format {
	case formatTable:
		fmt.Fprintln(l, l.form.header)
	case formatJSON:
		fmt.Fprint(l, "[")
	}
}

func (l *flowList) add(f *snapshot.Flow) error {
	if l.format == formatTable {
		_, err := fmt.Fprintln(l, l.form.row(f))
		return err
	}
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	before := "- " // YAML with JSON in it
	if l.format == formatJSON {
		before = "\n  "
		if l.n > 0 {
			before = ",\n  "
		}
	} else if l.n > 0 {
		before = "\n- "
	}
	l.n++
	_, err = fmt.Fprintf(l, "%s%s", before, text)
	return err
}

func (l *flowList) end() {
	switch {
	case l.format == formatJSON && l.n > 0:
		fmt.Fprintln(l, "\n]")
	case l.format == formatJSON:
		fmt.Fprintln(l, "]")
	case l.format == formatYAML && l.n > 0:
		fmt.Fprintln(l)
	case l.format == formatYAML:
		fmt.Fprintln(l, "[]")
	}
}

// readFlows calls visit for each pinned flow that wanted selects.
func readFlows(cfg *config.Config, wanted *snapshot.FlowFilter, visit func(*snapshot.Flow, maps.Doomed, bool) error) error {
	reader, err := snapshot.OpenFlows(mapsDir(cfg), flowClock())
	if err != nil {
		return pinsError(cfg, err)
	}
	if err := errors.Join(reader.Each(wanted, visit), reader.Close()); err != nil {
		return fmt.Errorf("read the flows: %w", err)
	}
	return nil
}

// flowClock returns the programs' clock, or nil if it cannot be read; flows are then shown without
// their ages.
func flowClock() *snapshot.FlowClock {
	tick, err := ticks.Measure()
	if err != nil {
		return nil
	}
	now, err := tick.Now()
	if err != nil {
		return nil
	}
	return &snapshot.FlowClock{Now: now, Tick: tick.Duration}
}

// flush removes flows, some at a time.
func (inv *invocation) flush(cmd *cobra.Command, wanted *snapshot.FlowFilter) error {
	cfg, err := inv.config(cmd)
	if err != nil {
		return err
	}
	flows, err := flowtable.Open(mapsDir(cfg))
	if err != nil {
		return pinsError(cfg, err)
	}
	defer flows.Close()
	var list [2][]maps.Doomed
	forgotten := 0
	forget := func(which int) error {
		err := flows.Collect(which == 1, 0, &maps.FlowLimits{}, list[which])
		for i := range list[which] {
			if list[which][i].Outcome == maps.DoomDeleted {
				forgotten++
			}
		}
		list[which] = list[which][:0]
		return err
	}
	err = readFlows(cfg, wanted, func(_ *snapshot.Flow, keys maps.Doomed, half bool) error {
		which := 0
		if half {
			which = 1
		}
		keys.Why = maps.DoomFlushed
		if list[which] = append(list[which], keys); len(list[which]) < flushed {
			return nil
		}
		return forget(which)
	})
	if err = errors.Join(err, forget(0), forget(1)); err != nil {
		return err
	}
	if moved, err := flows.Moved(mapsDir(cfg)); err != nil || moved {
		return errors.Join(err, errors.New("forget flows: the map was growing meanwhile, so some flows may remain: run it again"))
	}
	view := struct {
		Forgotten int `json:"forgotten"`
	}{forgotten}
	return inv.print(view, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "forgot %d flows\n", forgotten)
		return err
	})
}
