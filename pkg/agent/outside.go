package agent

import (
	"fmt"
	"net"
	"net/netip"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/config"
	"fairlead.io/fairlead/pkg/datapath"
	"fairlead.io/fairlead/pkg/devices"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/sysctl"
)

// packetsOf returns the configuration for packets: those of clients outside, and of pods.
func packetsOf(cfg *config.Config, store *model.Store) (*datapath.Packets, error) {
	packets := &datapath.Packets{
		XDP: devices.Mode(cfg.XDP), ExternalClusterIP: cfg.ExternalClusterIP == "true", AcceptDirect: cfg.AcceptsDSR(), AnySourcePort: cfg.TunnelSourcePorts == "any",
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
	if packets.NodePorts, err = datapath.ParseReach(cfg.NodePortAddresses); err != nil {
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

// linkState returns what keeps a device from sending and receiving, or "". A device that is gone is
// reported elsewhere.
func linkState(index int) observe.LinkState {
	device, err := net.InterfaceByIndex(index)
	switch {
	case err != nil:
		return ""
	case device.Flags&net.FlagUp == 0:
		return observe.LinkDown
	case device.Flags&net.FlagRunning == 0:
		return observe.NoCarrier
	}
	return ""
}

// outsideStatus returns how clients outside reach this node, or nil if no device is to be served.
func outsideStatus(from *datapath.OutsideStatus) *observe.OutsideStatus {
	if from.None {
		return nil
	}
	s := &observe.OutsideStatus{
		Idle: from.Idle, Devices: []observe.DeviceStatus{}, Missing: from.Missing, Mended: from.Mended, Addr4: from.Addr4, Addr6: from.Addr6,
		Tunnel4: from.Tunnel4, Tunnel6: from.Tunnel6, Unknown: from.Unknown, SnatPorts: from.SnatPorts.String(), AnyPort: from.AnySourcePort,
	}
	for _, d := range from.Devices {
		of := observe.DeviceStatus{
			Name: d.Name, Index: d.Index, Kind: d.Kind, MTU: d.MTU, Why: d.Why, TC: d.TC, XDP: d.XDP, XDPWhy: d.XDPWhy, Tunnel: d.Tunnel,
		}
		if d.Err != nil {
			of.Error = d.Err.Error()
		}
		of.Link = linkState(d.Index)
		s.Devices = append(s.Devices, of)
	}
	if from.Idle {
		for _, d := range from.Chosen {
			s.Devices = append(s.Devices, observe.DeviceStatus{Name: d.Name, Index: d.Index, Kind: d.Kind, MTU: d.MTU, Why: d.Why, Link: linkState(d.Index)})
		}
	}
	for i, setting := range sysctl.Forwarding() {
		// A setting that cannot be read is not reported as off.
		if off, err := setting.IsOff(sysctl.Root); err == nil && off && [...]netip.Addr{from.Addr4, from.Addr6}[i].IsValid() {
			s.NotForward = append(s.NotForward, setting.Name)
		}
	}
	return s
}
