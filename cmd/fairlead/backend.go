package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/snapshot"
)

func newBackendCommand(inv *invocation) *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the backends of services",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, pinned, err := inv.pins(cmd)
			if err != nil {
				return err
			}
			used := slices.DeleteFunc(pinned.Backends, func(b snapshot.Backend) bool { return b.Service == "" })
			return inv.print(used, func(w io.Writer) error { return writeBackends(w, used) })
		},
	}
	return noun("backend", "Show the backends in the maps", list)
}

func writeBackends(w io.Writer, backends []snapshot.Backend) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "BACKEND\tPROTOCOL\tSERVICE")
	for _, b := range backends {
		fmt.Fprintf(table, "%s\t%s\t%s\n", b.Address, b.Protocol, b.Service)
	}
	return table.Flush()
}
