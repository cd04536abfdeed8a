package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/observe"
)

// readPins returns what the pinned maps say. Its errors tell what to do.
func readPins(cfg *config.Config) (*observe.Pinned, error) {
	dir := mapsDir(cfg)
	pinned, err := observe.Read(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no fairlead maps under %s: is the agent running on this node, or is --bpffs another path?",
			filepath.Dir(dir))
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("no access to the maps under %s: run the command as root", filepath.Dir(dir))
	case err != nil:
		return nil, fmt.Errorf("read the maps: %w", err)
	}
	return pinned, nil
}

// pins reads the configuration and the pinned maps.
func (inv *invocation) pins(cmd *cobra.Command) (*config.Config, *observe.Pinned, error) {
	cfg, err := inv.config(cmd)
	if err != nil {
		return nil, nil, err
	}
	pinned, err := readPins(cfg)
	return cfg, pinned, err
}
