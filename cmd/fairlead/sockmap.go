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
		Short: "List the connections within this node that may bypass TCP",
		Long: `List the connections whose ends are both on this node and that may bypass TCP, with how many bytes of each end bypassed
TCP, and how many went by TCP while the connection was short or leaving. A connection is in one of these states:

    watched   it uses TCP until it is clear that its ends take turns
    chosen    it is about to bypass TCP
    short     its messages bypass TCP, except those that are better off with it
    leaving   one end keeps sending, or everything is switched off: it returns to TCP
    excluded  it uses TCP for good; docs/socket-acceleration.md explains each reason

Data that bypasses TCP is invisible to tcpdump, ss and the kernel's connection statistics; this list and the metrics show
it. The command reads the maps, so it also works while no agent runs.`,
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
	off := newHoldCommand(inv, "off", "Return all connections of this node to TCP at once", `Return all connections of this node to TCP from their next message on, whatever the
agent's options say. The command needs no agent. An agent takes sockets out of the map, once they have read what waits for them
there. Everything uses TCP until "fairlead sockmap on", "fairlead cleanup" or the node's next start; for a permanent change, use the option --sockmap.`, sockmap.Hold)
	on := newHoldCommand(inv, "on", "Undo \"fairlead sockmap off\"", `Let connections of this node bypass TCP again, if the agent's option --sockmap allows it.`, sockmap.Release)
	return noun("sockmap", "Show connections that bypass TCP, and stop that", list, off, on)
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
				err = fmt.Errorf("nothing bypasses TCP here: no agent with --sockmap=true has run below %s", cfg.BPFFS)
			}
			return err
		},
	}
}

// shortRow is a connection in the list.
type shortRow struct {
	Client     string    `json:"client"`
	ClientPod  string    `json:"clientPod,omitempty"`
	Server     string    `json:"server"`
	ServerPod  string    `json:"serverPod,omitempty"`
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Redirected [2]uint64 `json:"redirected"` // by the client and by the server
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
	note := ""
	switch {
	case view.Held:
		note = `Everything goes by TCP until "fairlead sockmap on".` + "\n"
	case view.Pinned && !view.On:
		note = "Everything goes by TCP: the agent has switched this off, or runs without --sockmap=true.\n"
	}
	if _, err := io.WriteString(w, note); err != nil {
		return err
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
