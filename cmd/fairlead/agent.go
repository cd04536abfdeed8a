package main

import (
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"fairlead.io/fairlead/pkg/agent"
	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/metrics"
)

func newAgentCommand(env *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run this node's agent",
		Long: `Run this node's agent. It watches Services and EndpointSlices, keeps the maps up to date, and attaches the programs that
read the maps. On SIGTERM the agent exits and the datapath keeps working with what it has; the next agent takes it over.
"fairlead cleanup" removes the datapath.

With --mode=accelerate-only the agent does none of that. It runs beside kube-proxy and another pod network, does not
watch Services, and only lets connections within the node bypass TCP, for the selected pods.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(cmd.Flags(), env.Environ)
			if err != nil {
				return config.UsageError{Err: err}
			}
			log, level, err := newLog(env, cfg)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			b := currentBuild()
			return agent.Run(ctx, agent.Config{
				Options: cfg, Version: version(), Level: level, Log: log,
				Build: metrics.Build{Version: b.Version, Commit: b.Commit, Go: b.Go, Kernel: b.Kernel},
			})
		},
	}
	config.AddFlags(cmd.Flags())
	return cmd
}

// newLog returns a log as the configuration asks for, also for client-go, and its level.
func newLog(env *env, cfg *config.Config) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	at, err := api.ParseLevel(cfg.LogLevel)
	if err != nil {
		return nil, nil, config.UsageError{Err: err}
	}
	level.Set(at)
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewTextHandler(env.Stderr, options)
	if cfg.LogFormat == "json" {
		handler = slog.NewJSONHandler(env.Stderr, options)
	}
	log := slog.New(handler)
	klog.SetSlogLogger(log)
	return log, level, nil
}
