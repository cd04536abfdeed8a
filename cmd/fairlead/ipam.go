package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/podnet"
)

func newIPAMCommand(inv *invocation) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the addresses that pods have, and those that are cooling down",
		Long: `List the addresses of this node's pods ("used"), and addresses that are not reused yet because their pod has just gone
("cooling"). It reads the agent's files, so it also works while no agent runs.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			leases, err := podnet.List(cfg.StateDir)
			if err != nil {
				return err
			}
			rows := make([]address, 0, len(leases))
			for i := range leases {
				rows = append(rows, addressOf(&leases[i]))
			}
			return inv.print(rows, func(w io.Writer) error { return writeAddresses(w, rows) })
		},
	}
	return noun("ipam", "Show pod addresses", list)
}

// address is an address that a pod has or had.
type address struct {
	Address   string    `json:"address"`
	State     string    `json:"state"`
	Pod       string    `json:"pod"`
	PodUID    string    `json:"podUID,omitempty"`
	Container string    `json:"container"`
	Interface string    `json:"interface"`
	Device    string    `json:"device"`
	Since     time.Time `json:"since"`
}

func addressOf(l *podnet.Lease) address {
	return address{
		Address: l.Address.String(), State: l.State(), Pod: l.Pod.String(), PodUID: l.Pod.UID, Container: l.Owner.Container,
		Interface: l.Owner.IfName, Device: l.Device, Since: l.Since,
	}
}

func writeAddresses(w io.Writer, rows []address) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ADDRESS\tSTATE\tPOD\tCONTAINER\tINTERFACE\tDEVICE\tSINCE")
	for _, r := range rows {
		const enough = 12 // digits of a container's ID, as other tools show them
		fmt.Fprintf(table, "%s\t%s\t%s\t%.*s\t%s\t%s\t%s\n",
			r.Address, r.State, orNone(r.Pod), enough, orNone(r.Container), orNone(r.Interface), r.Device, r.Since.Format(time.RFC3339))
	}
	return table.Flush()
}

func orNone(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
