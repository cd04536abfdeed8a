package main

import (
	"context"
	"fmt"
	"log/slog"

	"fairlead.io/fairlead/pkg/bigtcp"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/observe"
)

// startBigTCP starts raising the size of TCP packets, or restores the sizes that an earlier agent
// raised.
func (a *agent) startBigTCP(start func(string, func(context.Context) error), log *slog.Logger) error {
	if a.cfg.BigTCP != "true" {
		names, err := bigtcp.Restore(a.cfg.StateDir)
		if len(names) > 0 {
			log.Info("restored the usual size of TCP packets", "devices", names)
		}
		return err
	}
	why4, why6 := whyUsual(a.cfg)
	a.big = bigtcp.New(bigtcp.Config{Dir: a.cfg.StateDir, Devices: a.path.Devices, IsPod: cni.IsDevice, Why4: why4, Why6: why6, Log: log})
	start("bigtcp", a.big.Run)
	return nil
}

// whyUsual returns why TCP packets keep their usual size whatever the devices support, or "" if
// they may be larger.
func whyUsual(cfg *config.Config) (why4, why6 string) {
	switch {
	case cfg.Routing == fabric.VXLAN:
		why4 = "the tunnel of --routing=vxlan does not carry larger packets"
		why6 = why4
	case cfg.DSR != "off":
		why4 = fmt.Sprintf("the header that --dsr=%s adds cannot hold a larger size", cfg.DSR)
		why6 = why4
	case cfg.HostRouting == "stack":
		why6 = "the node's own stack, which --host-routing=stack uses, does not forward larger packets"
	}
	return why4, why6
}

// largest returns the packet sizes for pods that start now.
func (a *agent) largest() cni.Largest {
	if a.big == nil {
		return cni.Largest{}
	}
	return cni.Largest(a.big.Stats().Sizes)
}

func (a *agent) bigStatus() *observe.BigTCPStatus {
	if a.big == nil {
		return nil
	}
	s := a.big.Stats()
	return &observe.BigTCPStatus{V4: s.V4, V6: s.V6, Why4: s.Why4, Why6: s.Why6, Devices: s.Devices, Error: s.Error}
}
