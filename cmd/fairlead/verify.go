package main

import (
	"errors"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/reconcile"
	"fairlead.io/fairlead/pkg/snapshot"
)

func newVerifyCommand(inv *invocation) *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the maps with the objects, and repair them",
		Long: `Compare the maps, row by row, with what the agent's latest objects compile to, and list the differences. With --repair,
fix them, in an order that does not disturb any connection. The agent does the same by itself every minute and counts
what it finds.

The exit code is 3 if there are differences, and with --repair if any of them could not be fixed. While no agent answers,
it is not known what the maps should contain. Then only their structure is checked, and the exit code is 3 if it is
damaged and 4 if it is sound.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			found, asked := client(cfg).Verify(cmd.Context(), repair)
			if asked != nil && !unreachable(asked) {
				return asked
			}
			write := found.WriteText
			if asked != nil {
				if found, err = structureOf(cfg); err != nil {
					return errors.Join(asked, err)
				}
				write = found.WriteStructure
			}
			if err := inv.print(&found, write); err != nil {
				return err
			}
			if left := found.Findings(); len(left) > 0 {
				return degradedError{left}
			}
			return asked
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "repair the differences")
	return cmd
}

// structureOf checks the pinned maps without knowing what they should contain.
func structureOf(cfg *config.Config) (observe.Verification, error) {
	pinned, err := readPins(cfg)
	if err != nil {
		return observe.Verification{}, err
	}
	v := observe.Verification{Report: reconcile.Report{Differences: []reconcile.Difference{}}, Structure: snapshot.Check(pinned.Snapshot)}
	v.Services, v.Frontends, v.Backends = pinned.Counts()
	return v, nil
}
