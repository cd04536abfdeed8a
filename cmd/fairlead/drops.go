package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/policies"
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
in a degraded way. docs/drops.md has a cause and a cure for each reason. What policies denied is listed below by policy
and rule; the agent knows their names, and without one only the numbers of rules are shown. With --watch, print what
increased every second, with the rules that denied it, until interrupted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			read := func() (r dropReading, err error) {
				if r.drops, err = reasons.ReadDrops(mapsDir(cfg)); err != nil {
					return r, pinsError(cfg, err)
				}
				r.denials, err = reasons.ReadDenials(mapsDir(cfg))
				return r, err
			}
			name := func(ctx context.Context) []policies.RuleName {
				names, err := client(cfg).PolicyRules(ctx)
				if err != nil {
					return nil // the numbers say more than an error would
				}
				return names
			}
			r, err := read()
			if err != nil {
				return err
			}
			if watch {
				ticks := time.NewTicker(dropsInterval)
				defer ticks.Stop()
				return inv.watchDrops(cmd.Context(), ticks.C, r, read, name)
			}
			if len(r.denials) > 0 {
				nameDenials(r.denials, name(cmd.Context()))
			}
			views := dropViews(reasons.Seen(r.drops), r.denials)
			return inv.print(views, func(w io.Writer) error {
				return errors.Join(reasons.WriteDrops(w, reasons.Seen(r.drops)), reasons.WriteDenials(w, r.denials))
			})
		},
	}
	cmd.Flags().BoolVar(&watch, "watch", false, "print what increased, every second")
	return cmd
}

// dropReading is what the maps count at one time.
type dropReading struct {
	drops   []reasons.Drop
	denials []reasons.Denial
}

// dropView is a drop as the command shows it. What policies dropped, or would have, has the rules that did.
type dropView struct {
	reasons.Drop
	Denials []reasons.Denial `json:"denials,omitempty"`
}

// dropRateView is the same for one that increases.
type dropRateView struct {
	reasons.DropRate
	Denials []reasons.DenialRate `json:"denials,omitempty"`
}

// byPolicies reports whether policies drop for this reason, or would.
func byPolicies(d *reasons.Drop) bool {
	return d.Reason == reasons.Policy || d.Reason == reasons.PolicyAudit
}

func dropViews(list []reasons.Drop, denials []reasons.Denial) []dropView {
	views := make([]dropView, 0, len(list))
	for _, d := range list {
		view := dropView{Drop: d}
		if byPolicies(&d) {
			view.Denials = denials
		}
		views = append(views, view)
	}
	return views
}

func dropRateViews(list []reasons.DropRate, denials []reasons.DenialRate) []dropRateView {
	views := make([]dropRateView, 0, len(list))
	for _, r := range list {
		view := dropRateView{DropRate: r}
		if byPolicies(&r.Drop) {
			view.Denials = denials
		}
		views = append(views, view)
	}
	return views
}

// nameDenials puts the numbers of rules into words.
func nameDenials(list []reasons.Denial, names []policies.RuleName) {
	words := wordsOf(names)
	for i := range list {
		list[i].Policy = words[list[i].Rule]
	}
}

func nameDenialRates(list []reasons.DenialRate, names []policies.RuleName) {
	words := wordsOf(names)
	for i := range list {
		list[i].Policy = words[list[i].Rule]
	}
}

// wordsOf returns what rules are called, by number.
func wordsOf(names []policies.RuleName) map[uint32]string {
	words := map[uint32]string{}
	for _, name := range names {
		words[name.Number] = name.Words
	}
	return words
}

// watchDrops prints, at every tick, what increased since the last one, until the context ends. name returns
// what the numbers of rules mean, and is asked only if a rule denies something.
func (inv *invocation) watchDrops(ctx context.Context, ticks <-chan time.Time, before dropReading, read func() (dropReading, error),
	name func(context.Context) []policies.RuleName,
) error {
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
		rates := reasons.DropRates(before.drops, after.drops, now.Sub(last))
		denials := reasons.DenialRates(before.denials, after.denials, now.Sub(last))
		if len(denials) > 0 {
			nameDenialRates(denials, name(ctx))
		}
		if err := inv.print(dropRateViews(rates, denials), func(w io.Writer) error {
			return errors.Join(reasons.WriteDropRates(w, now, rates), reasons.WriteDenialRates(w, denials))
		}); err != nil {
			return err
		}
		before, last = after, now
	}
}
