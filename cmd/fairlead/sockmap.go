package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/sockmap"
)

func newSockmapCommand(inv *invocation) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the connections of this node that may go past TCP",
		Long: `List the connections of this node of which both ends are here and may go past TCP, and how much of what either end
sent did, and did not while it could. A connection is in one of these states:

    watched   it goes by TCP, until it is plain that its ends take turns
    chosen    it is about to go past TCP
    short     its messages go past TCP, but those that are better off by it
    leaving   one end sends on and on: it goes by TCP again
    excluded  it goes by TCP for good; docs/socket-acceleration.md says what each reason means

Nothing of what goes past TCP is seen by tcpdump, by ss or in what the kernel says of connections: here and in the metrics it is. The
command reads the maps and the files of the agent, so it works while none runs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			view, err := sockmap.Read(cfg.BPFFS)
			if err != nil {
				return err
			}
			rows := shortRows(view)
			return inv.print(rows, func(w io.Writer) error { return writeShortRows(w, view, rows) })
		},
	}
	off := newHoldCommand(inv, "off", "Have all connections of this node go by TCP, at once", `Have all connections of this node go by TCP from their next message on, whatever the
agent's options say, and have their sockets leave the map once they have read what waits for them there. It needs no agent, and holds until
"fairlead sockmap on" or the node's next start; the option --sockmap says so for good.`, sockmap.Hold)
	on := newHoldCommand(inv, "on", "End what \"fairlead sockmap off\" has begun", `Let connections of this node go past TCP again, if the agent's option --sockmap does.`, sockmap.Release)
	return noun("sockmap", "Show and stop what goes past TCP", list, off, on)
}

func newHoldCommand(inv *invocation, use, short, long string, do func(bpffs string) (bool, error)) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			found, err := do(cfg.BPFFS)
			if err == nil && !found {
				err = fmt.Errorf("nothing here goes past TCP: no agent with --sockmap=true has run below %s", cfg.BPFFS)
			}
			return err
		},
	}
}

// shortRow is a connection as it is listed.
type shortRow struct {
	Client     string    `json:"client"`
	ClientPod  string    `json:"clientPod,omitempty"`
	Server     string    `json:"server"`
	ServerPod  string    `json:"serverPod,omitempty"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Redirected [2]uint64 `json:"redirected"` // bytes of the client and of the server
	Passed     [2]uint64 `json:"passed"`
}

func shortRows(view sockmap.View) []shortRow {
	rows := []shortRow{}
	for _, p := range view.Pairs {
		rows = append(rows, shortRow{
			Client: p.Client.String(), ClientPod: view.Pods[p.ClientNetns], Server: p.Server.String(), ServerPod: view.Pods[p.ServerNetns],
			State: p.State, Reason: p.Exclusion, Redirected: p.Redirected, Passed: p.Passed,
		})
	}
	slices.SortFunc(rows, func(a, b shortRow) int {
		return strings.Compare(a.Server+" "+a.Client, b.Server+" "+b.Client)
	})
	return rows
}

func writeShortRows(w io.Writer, view sockmap.View, rows []shortRow) error {
	if view.Held {
		if _, err := fmt.Fprintln(w, `Everything goes by TCP until "fairlead sockmap on".`); err != nil {
			return err
		}
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "CLIENT\tPOD\tSERVER\tPOD\tSTATE\tREDIRECTED\tPASSED")
	for _, r := range rows {
		state := r.State
		if r.Reason != "" {
			state += " (" + r.Reason + ")"
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%d/%d\t%d/%d\n", r.Client, cmp.Or(r.ClientPod, "-"), r.Server, cmp.Or(r.ServerPod, "-"), state,
			r.Redirected[0], r.Redirected[1], r.Passed[0], r.Passed[1])
	}
	return out.Flush()
}
