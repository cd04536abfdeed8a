package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/reasons"
)

// dropsInterval is the time between two readings of --watch.
const dropsInterval = time.Second

func newDropsCommand(inv *invocation) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "drops",
		Short: "Show what the programs dropped or refused, and why",
		Long: `Show what the programs have dropped or refused since their maps were created, by hook and reason, and what they passed on
in a degraded way. docs/drops.md has a cause and a cure for each reason. With --watch, print what increased every second,
until interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			read := func() ([]reasons.Drop, error) {
				list, err := reasons.ReadDrops(mapsDir(cfg))
				if err != nil {
					return nil, pinsError(cfg, err)
				}
				return list, nil
			}
			list, err := read()
			if err != nil {
				return err
			}
			if watch {
				ticks := time.NewTicker(dropsInterval)
				defer ticks.Stop()
				return inv.watchDrops(cmd.Context(), ticks.C, list, read)
			}
			seen := reasons.Seen(list)
			return inv.print(seen, func(w io.Writer) error { return reasons.WriteDrops(w, seen) })
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "print what increased, every second")
	return cmd
}

// watchDrops prints, at every tick, what increased since the last one, until the context ends.
func (inv *invocation) watchDrops(ctx context.Context, ticks <-chan time.Time, before []reasons.Drop, read func() ([]reasons.Drop, error)) error {
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks:
		}
		after, err := read()
		if err != nil {
			return err
		}
		now := time.Now()
		rates := reasons.DropRates(before, after, now.Sub(last))
		if err := inv.print(rates, func(w io.Writer) error { return reasons.WriteDropRates(w, now, rates) }); err != nil {
			return err
		}
		before, last = after, now
	}
}
