package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
)

func newLogLevelCommand(inv *invocation) *cobra.Command {
	return &cobra.Command{
		Use:       "log-level [LEVEL]",
		Short:     "Show or set the log level of the running agent",
		Long:      `Show the log level of the running agent, or set it to debug, info, warn or error until the agent restarts.`,
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: []string{"debug", "info", "warn", "error"},
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			agent := client(cfg)
			if len(args) == 1 {
				if _, err := api.ParseLevel(args[0]); err != nil {
					return config.UsageError{Err: err}
				}
				if err := agent.SetLogLevel(cmd.Context(), args[0]); err != nil {
					return fmt.Errorf("set log level: %w", err)
				}
			}
			level, err := agent.LogLevel(cmd.Context())
			if err != nil {
				return fmt.Errorf("read the agent's log level: %w", err)
			}
			return inv.print(map[string]string{"level": level}, func(w io.Writer) error {
				_, err := fmt.Fprintln(w, level)
				return err
			})
		},
	}
}
