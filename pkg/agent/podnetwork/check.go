package podnetwork

import (
	"errors"
	"fmt"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/podnet"
)

// Check rejects options that need another --pod-network. Without it, there would be no
// configuration to write for the runtime, no programs that see the packets for proxies and rates,
// and no device to change. It also rejects a kind of device that the kernel lacks.
func Check(cfg *config.Config) error {
	if cfg.L7Proxies != "" && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--l7-proxies=%s needs --pod-network=main, and it is %s", cfg.L7Proxies, cfg.PodNetwork)}
	}
	if cfg.CNIConfDir != "" && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--cni-conf-dir=%s needs --pod-network=main, and it is %s: after another plugin, add fairlead-cni to that plugin's configuration",
			cfg.CNIConfDir, cfg.PodNetwork)}
	}
	if cfg.FollowsPolicies() && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--policies=%s needs --pod-network=main, and it is %s: another plugin decides which way pods' packets take",
			cfg.Policies, cfg.PodNetwork)}
	}
	if cfg.PodDevice == string(cni.Netkit) && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--pod-device=netkit needs --pod-network=main, and it is %s: another plugin creates the devices of pods",
			cfg.PodNetwork)}
	}
	if cfg.PodDevice == string(cni.Netkit) {
		if err := podnet.HasNetkit(); err != nil {
			return fmt.Errorf("--pod-device=netkit: %w; use --pod-device=veth instead", err)
		}
	}
	if cfg.BigTCP == "true" && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--big-tcp=true needs --pod-network=main, and it is %s: another plugin creates the devices of pods",
			cfg.PodNetwork)}
	}
	if cfg.Bandwidth == "true" && cfg.PodNetwork == "off" {
		return config.UsageError{Err: errors.New("--bandwidth=true needs --pod-network=main, or chained: without either, the agent does not know the devices of pods")}
	}
	if cfg.BBR != "false" && cfg.PodNetwork != "main" {
		return config.UsageError{Err: fmt.Errorf("--bbr=%s needs --pod-network=main, and it is %s: another plugin decides which way pods' packets take",
			cfg.BBR, cfg.PodNetwork)}
	}
	if cfg.BBR != "false" && cfg.Bandwidth != "true" {
		return config.UsageError{Err: fmt.Errorf("--bbr=%s needs --bandwidth=true, which makes packets wait until the time that their socket set",
			cfg.BBR)}
	}
	return nil
}
