package podnetwork

import (
	"fmt"

	"fairlead.io/fairlead/pkg/bigtcp"
	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/fabric"
)

// prepareBigTCP prepares raising the size of TCP packets, or restores the sizes that an earlier agent
// raised.
func (n *Network) prepareBigTCP() error {
	if n.Options.BigTCP != "true" {
		names, err := bigtcp.Restore(n.Options.StateDir)
		if len(names) > 0 {
			n.Log.Info("restored the usual size of TCP packets", "devices", names)
		}
		return err
	}
	why4, why6 := WhyUsual(n.Options)
	n.big = bigtcp.New(bigtcp.Config{Dir: n.Options.StateDir, Devices: n.Path.Devices, IsPod: cni.IsDevice, Why4: why4, Why6: why6, Log: n.Log})
	return nil
}

// WhyUsual returns why TCP packets keep their usual size whatever the devices support, or "" if
// they may be larger.
func WhyUsual(cfg *config.Config) (why4, why6 string) {
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
func (n *Network) largest() cni.Largest {
	if n.big == nil {
		return cni.Largest{}
	}
	return cni.Largest(n.big.Status().Sizes())
}

func (n *Network) bigStatus() *bigtcp.Status {
	if n.big == nil {
		return nil
	}
	status := n.big.Status()
	return &status
}
