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

// startBigTCP starts what makes packets of TCP larger, or puts back what an agent before has made so.
func (a *agent) startBigTCP(start func(string, func(context.Context) error), log *slog.Logger) error {
	if a.cfg.BigTCP != "true" {
		names, err := bigtcp.Restore(a.cfg.StateDir)
		if len(names) > 0 {
			log.Info("packets of TCP are as large as usual again", "devices", names)
		}
		return err
	}
	why4, why6 := whyUsual(a.cfg)
	a.big = bigtcp.New(bigtcp.Config{Dir: a.cfg.StateDir, Devices: a.path.Devices, IsPod: cni.IsDevice, Why4: why4, Why6: why6, Log: log})
	start("bigtcp", a.big.Run)
	return nil
}

// whyUsual says why packets of TCP are no larger than usual whatever the devices take; empty if they may be.
func whyUsual(cfg *config.Config) (why4, why6 string) {
	switch {
	case cfg.Routing == fabric.VXLAN:
		why4 = "a tunnel, as of --routing=vxlan, takes none that is larger"
		why6 = why4
	case cfg.DSR != "off":
		why4 = fmt.Sprintf("what --dsr=%s puts around a packet cannot say that it is larger", cfg.DSR)
		why6 = why4
	case cfg.HostRouting == "stack":
		why6 = "the node's own stack, as of --host-routing=stack, forwards none that is larger"
	}
	return why4, why6
}

// largest is what pods are told that start now.
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
