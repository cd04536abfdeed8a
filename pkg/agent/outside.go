package agent

import (
	"fmt"
	"net/netip"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/sysctl"
)

// packetsOf returns the configuration for packets: those of clients outside, and of pods.
func packetsOf(cfg *config.Config, store *model.Store) (*datapath.Packets, error) {
	packets := &datapath.Packets{
		XDP: devices.Mode(cfg.XDP), ExternalClusterIP: cfg.ExternalClusterIP == "true", AcceptDirect: cfg.AcceptsDSR(), AnySourcePort: cfg.TunnelSourcePorts == "any", Policies: cfg.FollowsPolicies(),
		HashKeys: lb.NewHashKeys(cfg.HashSeed),
		Own:      func() []netip.Addr { return store.Self().Addrs },
		Pods:     cfg.PodNetwork == "main", Chained: cfg.PodNetwork == "chained" && cfg.Bandwidth == "true", IsPod: cni.IsDevice, Node: cfg.PodNetwork != "off",
	}
	packets.Note = func(setting, was, is string) error {
		return sysctl.Save(sysctl.Root, cfg.StateDir, map[string]sysctl.Edit{setting: {Was: was, Is: is}})
	}
	if cfg.Routing == fabric.VXLAN {
		packets.Tunnel, packets.TunnelPort = fabric.DeviceName, fabric.Port
	}
	packets.Bypass = packets.Pods && cfg.HostRouting == "bpf"
	packets.Proxies = packets.Pods && len(cfg.Proxies()) > 0
	packets.Masquerade = packets.Pods && cfg.Masquerade == "true"
	var err error
	if packets.Devices, err = devices.ParseFilter(cfg.Devices); err != nil {
		return nil, config.UsageError{Err: fmt.Errorf("option devices: %w", err)}
	}
	if packets.NodePorts, err = datapath.ParseNodePortAddrs(cfg.NodePortAddresses); err != nil {
		return nil, config.UsageError{Err: fmt.Errorf("option nodeport-addresses: %w", err)}
	}
	if packets.Devices.None() {
		return packets, nil
	}
	packets.SnatPorts, err = snatPorts(cfg)
	return packets, err
}

// snatPorts returns the ports of the option, or the largest free range if the option is empty.
func snatPorts(cfg *config.Config) (model.PortRange, error) {
	taken, err := datapath.ReadTaken(sysctl.Root, cfg.NodePorts())
	if err != nil {
		return model.PortRange{}, err
	}
	if cfg.Routing == fabric.VXLAN {
		taken.Reserved = append(taken.Reserved, config.TunnelPorts())
	}
	if cfg.SnatPorts == "" {
		ports, err := taken.Largest()
		if err != nil {
			return ports, fmt.Errorf("choose snat-ports: %w", err)
		}
		return ports, nil
	}
	ports := cfg.SourcePorts()
	if err := taken.Check(ports); err != nil {
		return ports, config.UsageError{Err: fmt.Errorf("option snat-ports: %w", err)}
	}
	return ports, nil
}

// addForwarding adds which settings keep the node from forwarding what clients outside send.
func addForwarding(s *datapath.Outside) {
	if s == nil {
		return
	}
	for i, setting := range sysctl.Forwarding() {
		// A setting that cannot be read is not reported as off.
		if off, err := setting.IsOff(sysctl.Root); err == nil && off && [...]netip.Addr{s.Addr4, s.Addr6}[i].IsValid() {
			s.NotForward = append(s.NotForward, setting.Name)
		}
	}
}
