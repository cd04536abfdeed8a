package podnetwork

import (
	"fmt"
	"path/filepath"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/cni/install"
	"fairlead.io/fairlead/pkg/config"
)

// ConfigureRuntime writes the configuration of the network that the agent serves.
func ConfigureRuntime(cfg *config.Config) (install.Placed, error) {
	placed, err := install.Configuration(cfg.CNIConfDir, cfg.CNIConfName, PluginSocket(cfg))
	if err != nil {
		return placed, fmt.Errorf("write the runtime's configuration: %w", err)
	}
	return placed, nil
}

// PluginSocket is the socket on which the agent serves the plugin.
func PluginSocket(cfg *config.Config) string { return filepath.Join(cfg.StateDir, cni.SocketName) }
