package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/api"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/fabric"
)

// removal is what cleanup took away.
type removal struct {
	Root  string   `json:"root"`
	Links []string `json:"links"`
	Maps  []string `json:"maps"`
	// Routes is how many there were to the pods of other nodes.
	Routes int `json:"routes"`
}

func newCleanupCommand(inv *invocation) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Detach the programs and remove the maps from this node",
		Long: `Detach the programs and remove the maps from this node. From then on nothing carries connections to Services, unless
something else does. The routes and the tunnel to the pods of other nodes are removed too. It is refused while an agent
runs, which would have lost what it works on.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := inv.config(cmd)
			if err != nil {
				return err
			}
			alive, err := api.Alive(cfg.SocketPath())
			if err != nil && !force {
				return fmt.Errorf("%w; --force removes everything all the same", err)
			}
			if alive && !force {
				return fmt.Errorf("an agent runs at %s: stop it first, or use --force", cfg.SocketPath())
			}
			removed, err := pinnedNames(filepath.Dir(mapsDir(cfg)))
			if err != nil {
				return err
			}
			if err := datapath.Cleanup(cfg.BPFFS); err != nil {
				return fmt.Errorf("clean up: %w; it may be repeated", err)
			}
			if removed.Routes, err = fabric.Remove(); err != nil {
				return fmt.Errorf("clean up: %w; it may be repeated", err)
			}
			return inv.print(removed, removed.write)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "remove everything even while an agent runs")
	return cmd
}

// pinnedNames lists what is pinned under root.
func pinnedNames(root string) (removal, error) {
	names := func(dir string) ([]string, error) {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list pins: %w", err)
		}
		list := []string{}
		for _, entry := range entries {
			if !entry.IsDir() {
				list = append(list, entry.Name())
			}
		}
		return list, nil
	}
	links, err := names("links")
	if err != nil {
		return removal{}, err
	}
	devices, err := names("devices")
	if err != nil {
		return removal{}, err
	}
	maps, err := names("maps")
	return removal{Root: root, Links: append(links, devices...), Maps: maps}, err
}

func (r removal) write(w io.Writer) error {
	if r.Routes > 0 {
		fmt.Fprintf(w, "removed %d routes to pods of other nodes\n", r.Routes)
	}
	if len(r.Links)+len(r.Maps) == 0 {
		_, err := fmt.Fprintf(w, "nothing was pinned under %s\n", r.Root)
		return err
	}
	for _, name := range r.Links {
		fmt.Fprintf(w, "detached program %s\n", name)
	}
	for _, name := range r.Maps {
		fmt.Fprintf(w, "removed map %s\n", name)
	}
	_, err := fmt.Fprintf(w, "%d programs and %d maps are gone from %s\n", len(r.Links), len(r.Maps), r.Root)
	return err
}
