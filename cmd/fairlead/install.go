package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/agent/podnetwork"
	"fairlead.io/fairlead/pkg/cni/install"
	"fairlead.io/fairlead/pkg/config"
)

func newInstallCommand(inv *invocation) *cobra.Command {
	var from, dir string
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the CNI plugin for the container runtime",
		Long: `Install the CNI plugin where the container runtime finds it. With --cni-conf-dir, the network configuration is written as
the last step, and from then on the runtime starts pods. Without it, an agent that has this option writes the
configuration when it is ready to serve pods.

Each file is replaced in one step, so the command can be repeated at any time: a running plugin continues, and files that
are up to date are not written. "fairlead cleanup" removes both.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			if !filepath.IsAbs(dir) {
				return config.UsageError{Err: fmt.Errorf("--cni-bin-dir=%s is not an absolute path", dir)}
			}
			if from == "" {
				self, err := os.Executable()
				if err != nil {
					return fmt.Errorf("find the plugin: %w; name it with --from", err)
				}
				from = filepath.Join(filepath.Dir(self), install.PluginName)
			}
			done := installation{}
			placed, err := install.Plugin(from, dir)
			if err != nil {
				return fmt.Errorf("install the plugin: %w", err)
			}
			done.Files = append(done.Files, placed)
			if cfg.CNIConfDir != "" {
				if placed, err = podnetwork.ConfigureRuntime(cfg); err != nil {
					return err
				}
				done.Files = append(done.Files, placed)
			}
			return inv.print(done, done.write)
		},
	}
	config.AddFlags(cmd.Flags(), "cni-conf-dir", "cni-conf-name")
	cmd.Flags().StringVar(&from, "from", "", "plugin to install (default "+install.PluginName+" beside this program)")
	cmd.Flags().StringVar(&dir, pluginDirFlag, install.PluginDir, "directory where the container runtime looks for plugins")
	return cmd
}

const pluginDirFlag = "cni-bin-dir"

// installation is what the command found or wrote.
type installation struct {
	Files []install.Placed `json:"files"`
}

func (i installation) write(w io.Writer) error {
	for _, file := range i.Files {
		text := "is there already"
		if file.Changed {
			text = "is written"
		}
		if _, err := fmt.Fprintf(w, "%s %s\n", file.Path, text); err != nil {
			return err
		}
	}
	return nil
}
