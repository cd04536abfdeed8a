package podnetwork

import (
	"errors"
	"fmt"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/fabric"
	"fairlead.io/fairlead/pkg/observe"
	"fairlead.io/fairlead/pkg/podnet"
	"fairlead.io/fairlead/pkg/sysctl"
)

// Stats returns the state of the pod network, or nil with --pod-network=off and before there is one.
func (n *Network) Stats() *podnet.Stats {
	if n == nil || n.pods == nil {
		return nil
	}
	stats := n.pods.Stats()
	return &stats
}

// FabricStatus returns the state of the routes to other nodes, or nil unless --pod-network=main.
func (n *Network) FabricStatus() *fabric.Status {
	if n == nil || n.fabric == nil {
		return nil
	}
	status := n.fabric.Status()
	return &status
}

// Cookies returns the network namespace cookies of the pods that the plugin has set up.
func (n *Network) Cookies() map[cni.Pod]uint64 {
	if n == nil || n.pods == nil {
		return nil
	}
	return n.pods.Cookies()
}

// Ready returns why pods cannot get a network yet.
func (n *Network) Ready() error {
	if n == nil {
		return errors.New("the pod network has not started yet")
	}
	if n.Options.PodNetwork != "main" {
		return nil
	}
	if _, err := n.podCIDRs(); err != nil {
		return err
	}
	if stats := n.FabricStatus(); stats == nil || stats.Pending {
		return errors.New("the routes to other nodes' pods are not written yet")
	}
	return nil
}

// Status returns the state of the pod network, or nil with --pod-network=off and before there is one.
func (n *Network) Status() *observe.PodNetwork {
	stats := n.Stats()
	if stats == nil {
		return nil
	}
	s := &observe.PodNetwork{Status: stats.Status(), Routing: n.FabricStatus(), BigTCP: n.bigStatus(), Bandwidth: n.bandwidthStatus(stats), Masquerade: n.masquerade.Status()}
	s.Mode = n.Options.PodNetwork
	n.addProxies(&s.Status, stats.Proxied)
	v4, v6 := false, false
	for _, prefix := range stats.CIDRs {
		v4, v6 = v4 || prefix.Addr().Is4(), v6 || prefix.Addr().Is6()
	}
	for i, setting := range sysctl.Forwarding() {
		if ![...]bool{v4, v6}[i] {
			continue
		}
		s.Needed = append(s.Needed, setting.Name+"=1")
		// A setting that cannot be read is not reported as off.
		if off, err := setting.IsOff(sysctl.Root); err == nil && off {
			s.Settings = append(s.Settings, setting.Name)
		}
	}
	if n.Options.PodNetwork == "main" {
		s.Device = string(Kind(n.Options))
		for _, setting := range podnet.Settings() {
			s.Needed = append(s.Needed, fmt.Sprintf("net.%s.conf.DEVICE.%s=%s", setting.Family, setting.Key, setting.Value))
		}
	}
	return s
}
