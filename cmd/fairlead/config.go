package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
)

// configView is the effective configuration, and whose it is.
type configView struct {
	// Of is "agent", or "here" for that of an agent with these flags and this environment.
	Of      string          `json:"of"`
	Options []config.Origin `json:"options"`
}

func newConfigCommand(inv *invocation) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show the effective configuration, and where each value comes from",
		Long: `Show the effective configuration, and where each value comes from. If an agent answers, this is its configuration.
Otherwise it is what an agent would use with this command's flags and environment.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			view := configView{Of: "agent"}
			view.Options, err = client(cfg).Config(cmd.Context())
			if unreachable(err) {
				view, err = configView{Of: "here", Options: cfg.Origins()}, nil
			}
			if err != nil {
				return fmt.Errorf("read the agent's configuration: %w", err)
			}
			return inv.print(view, func(w io.Writer) error { return view.write(w, cfg.SocketPath()) })
		},
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

func (v configView) write(w io.Writer, socket string) error {
	if v.Of == "agent" {
		fmt.Fprintf(w, "The agent at %s runs with:\n\n", socket)
	} else {
		fmt.Fprintf(w, "No agent answers at %s; one started with these flags and this environment would run with:\n\n", socket)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "OPTION\tVALUE\tFROM")
	for _, o := range v.Options {
		fmt.Fprintf(table, "%s\t%s\t%s\n", o.Name, cmp.Or(o.Value, "-"), o.From)
	}
	return table.Flush()
}
