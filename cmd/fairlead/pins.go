package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/mapstats"
	"fairlead.io/fairlead/pkg/sockmap"
)

// readPins reads the pinned maps. Its errors say what to do.
func readPins(cfg *config.Config) (*mapstats.Pinned, error) {
	pinned, err := mapstats.Read(mapsDir(cfg))
	if err != nil {
		return nil, pinsError(cfg, err)
	}
	return pinned, nil
}

// isPastTCPAlone reports whether the only pins are those of an agent in accelerate-only mode.
func isPastTCPAlone(cfg *config.Config) bool {
	_, err := os.Stat(mapsDir(cfg))
	_, failed := os.Stat(sockmap.Dir(cfg.BPFFS))
	return errors.Is(err, fs.ErrNotExist) && failed == nil
}

// acceleratesOnly reports whether this node's agent runs in accelerate-only mode, and so has no maps
// of Services, according to the options here, the pins or the agent.
func acceleratesOnly(cfg *config.Config) bool {
	if cfg.AcceleratesOnly() || isPastTCPAlone(cfg) {
		return true
	}
	status, err := client(cfg).Status(context.Background()) // it takes no longer than the client waits
	return err == nil && status.Mode == config.AccelerateOnly
}

// pinsError adds what to do to an error from opening or reading the pins.
func pinsError(cfg *config.Config, err error) error {
	root := filepath.Dir(mapsDir(cfg))
	switch {
	case errors.Is(err, fs.ErrNotExist) && acceleratesOnly(cfg):
		return errors.New("there are no maps of Services here, since an agent with --mode=" + config.AccelerateOnly + " does not serve them; use \"fairlead sockmap list\" and \"fairlead status\"")
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no fairlead maps under %s: is the agent running on this node, or is --bpffs another path?", root)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no access to the maps under %s: run the command as root", root)
	}
	return fmt.Errorf("read the maps: %w", err)
}

// pins reads the configuration and the pinned maps.
func (inv *invocation) pins(cmd *cobra.Command) (*config.Config, *mapstats.Pinned, error) {
	cfg, err := inv.config(cmd)
	if err != nil {
		return nil, nil, err
	}
	pinned, err := readPins(cfg)
	return cfg, pinned, err
}
