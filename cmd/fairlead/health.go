package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
)

// statusPoll is how often --wait asks.
const statusPoll = 250 * time.Millisecond

func newStatusCommand(inv *invocation) *cobra.Command {
	var wait bool
	var most time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how this node is doing",
		Long: `Show how this node is doing. The exit code is 3 if it is degraded, and 4 if no agent answers. Without an agent, it shows
what the maps and links in the kernel tell.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			ask := client(cfg).Status
			if wait {
				ask = healthy(ask, most)
			}
			status, asked := ask(cmd.Context())
			if asked != nil && !unreachable(asked) {
				return fmt.Errorf("read the agent's status: %w", asked)
			}
			if asked != nil {
				status = pinnedStatus(cfg)
			}
			if err := inv.print(status, status.WriteText); err != nil {
				return err
			}
			if asked == nil && len(status.Degraded) > 0 {
				return degradedError{status.Degraded}
			}
			return asked
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until an agent answers and the node is not degraded")
	cmd.Flags().DurationVar(&most, "wait-duration", 5*time.Minute, "maximum time to wait")
	return cmd
}

// healthy returns a function that repeats ask until the node is healthy or most has passed, and
// then returns the last answer.
func healthy(ask func(context.Context) (observe.Status, error), most time.Duration) func(context.Context) (observe.Status, error) {
	return func(ctx context.Context) (observe.Status, error) {
		over := time.NewTimer(most)
		defer over.Stop()
		again := time.NewTicker(statusPoll)
		defer again.Stop()
		for {
			status, err := ask(ctx)
			if err == nil && len(status.Degraded) == 0 || err != nil && !unreachable(err) {
				return status, err
			}
			select {
			case <-over.C:
				return status, err
			case <-ctx.Done():
				return status, ctx.Err()
			case <-again.C:
			}
		}
	}
}

// pinnedStatus returns the status that can be read without an agent. What cannot be read is listed
// in Degraded.
func pinnedStatus(cfg *config.Config) observe.Status {
	pinned, err := readPins(cfg)
	if err != nil {
		nothing := observe.Status{
			Datapath: datapath.Status{Programs: []datapath.ProgramStatus{}},
			Maps:     []mapstats.Map{}, Problems: []model.ObjectProblem{},
			Degraded: []string{"No agent answers.", err.Error()},
		}
		if isPastTCPAlone(cfg) {
			nothing.Mode = config.AccelerateOnly
			nothing.Degraded = []string{"No agent answers: connections that bypass TCP continue to, but no others start to."}
		}
		return nothing
	}
	status := observe.NewStatus(pinned)
	status.Datapath.Programs, err = datapath.ReadLinks(filepath.Join(filepath.Dir(mapsDir(cfg)), "links"))
	status.FindProblems()
	if err != nil {
		status.Degraded = append(status.Degraded, err.Error())
	}
	status.Degraded = append([]string{"No agent answers: what is in the maps is served, but changes are not followed."},
		status.Degraded...)
	return status
}
