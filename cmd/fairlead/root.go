package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
)

// The exit codes, which rootHelp explains to users.
const (
	exitOK = iota
	exitError
	exitUsage
	exitDegraded
	exitUnreachable
)

const rootHelp = `fairlead sends the connections of a Kubernetes node to the backends of Services, with programs in the kernel.

"fairlead agent" is the agent, and "fairlead controller" writes what is written once for the cluster. All other commands
look at this node. Commands named by a noun only read. They read the maps in the kernel, so they also work while no
agent runs; then they leave out what only an agent knows.

Exit codes:

    0  success
    1  error
    2  mistake in the command line, the environment or the configuration
    3  the node is degraded; see "fairlead status"
    4  no agent answers`

// env is the environment of a command, so that tests can run commands in their own process.
type env struct {
	Stdout, Stderr io.Writer
	Environ        []string
	Args           []string
}

// degradedError says that the command succeeded and found the node degraded.
type degradedError struct{ findings []string }

// Error returns the first of the findings, and the number of the others.
func (e degradedError) Error() string {
	text := "the node is degraded: " + e.findings[0]
	if more := len(e.findings) - 1; more > 0 {
		text += fmt.Sprintf(" And %d more.", more)
	}
	return text
}

// invocation is one run of the root command.
type invocation struct {
	*env
	format  string
	started bool // the command line was parsed
}

func execute(ctx context.Context, env *env) int {
	inv := &invocation{env: env}
	root := newRootCommand(inv)
	root.SetArgs(append([]string{}, env.Args...)) // nil would mean the arguments of this process
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !inv.started && !errors.As(err, new(config.UsageError)) {
		err = config.UsageError{Err: err}
	}
	fmt.Fprintf(env.Stderr, "fairlead: %v\n", err)
	code := exitCode(err)
	if code == exitUsage {
		fmt.Fprintf(env.Stderr, "See \"%s --help\".\n", cmd.CommandPath())
	}
	return code
}

func exitCode(err error) int {
	var unreachable *api.UnreachableError
	switch {
	case errors.As(err, new(config.UsageError)):
		return exitUsage
	case errors.As(err, &unreachable):
		return exitUnreachable
	case errors.As(err, new(degradedError)):
		return exitDegraded
	}
	return exitError
}

func newRootCommand(inv *invocation) *cobra.Command {
	root := &cobra.Command{
		Use:           "fairlead",
		Short:         "Send the connections of a Kubernetes node to the backends of Services",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version(),
		PersistentPreRunE: func(*cobra.Command, []string) error {
			if err := checkFormat(inv.format); err != nil {
				return config.UsageError{Err: err}
			}
			inv.started = true
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	flags := root.PersistentFlags()
	config.AddFlags(flags, "bpffs", "state-dir")
	flags.StringVarP(&inv.format, "output", "o", formatTable, "output format (table|json|yaml)")
	completeWords(root, "output", formats())
	root.AddCommand(
		newAgentCommand(inv.env),
		newControllerCommand(inv),
		newStatusCommand(inv),
		newServiceCommand(inv),
		newBackendCommand(inv),
		newMapCommand(inv),
		newMaglevCommand(inv),
		newConntrackCommand(inv),
		newNATCommand(inv),
		newIPAMCommand(inv),
		newBandwidthCommand(inv),
		newSockmapCommand(inv),
		newPolicyCommand(inv),
		newExplainCommand(inv),
		newDropsCommand(inv),
		newMonitorCommand(inv),
		newVerifyCommand(inv),
		newConfigCommand(inv),
		newLogLevelCommand(inv),
		newPreflightCommand(inv),
		newBugreportCommand(inv),
		newInitCommand(inv),
		newInstallCommand(inv),
		newCleanupCommand(inv),
		newVersionCommand(inv),
	)
	return root
}

// noun returns a command that only groups others.
func noun(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(children...)
	return cmd
}

// completeWords makes the shell complete a flag with words.
func completeWords(cmd *cobra.Command, flag string, words []string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag, which is a mistake in the program
	}
}

// config returns the configuration of an agent with the command's flags and environment.
func (inv *invocation) config(cmd *cobra.Command) (*config.Config, error) {
	cfg, err := config.Load(cmd.Flags(), inv.Environ)
	if err != nil {
		return nil, config.UsageError{Err: err}
	}
	return cfg, nil
}

// client returns a client of the agent.
func client(cfg *config.Config) *api.Client { return api.NewClient(cfg.SocketPath()) }

// unreachable reports whether err says that no agent answers.
func unreachable(err error) bool {
	var gone *api.UnreachableError
	return errors.As(err, &gone)
}

// mapsDir returns the directory in which the maps are pinned.
func mapsDir(cfg *config.Config) string { return datapath.MapsDir(cfg.BPFFS) }
