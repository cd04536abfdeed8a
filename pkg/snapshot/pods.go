package snapshot

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"

	"fairlead.io/fairlead/pkg/maps"
)

// LocalPod is a pod of this node as the programs know it: its rows of pods and pod_links.
type LocalPod struct {
	Interface uint32       `json:"interface"` // index of the node's end
	Device    string       `json:"device,omitempty"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
	MAC       string       `json:"mac"`
	// Unchecked says that it may send from foreign addresses.
	Unchecked bool `json:"unchecked,omitempty"`
	// Proxy is the proxy that its connections are handed to.
	Proxy maps.Proxy `json:"proxy,omitzero"`
	// BBR says that its new connections use BBR congestion control.
	BBR bool `json:"bbr,omitempty"`
}

// DeviceName returns the name of the pod's device, or its index if the name is unknown.
func (p *LocalPod) DeviceName() string {
	return cmp.Or(p.Device, fmt.Sprintf("with index %d", p.Interface))
}

// ProxyText says to which proxy the connections of a pod are handed.
func ProxyText(p maps.Proxy) string {
	switch {
	case !p.Asked:
		return "-"
	case p.Port == 0:
		return "unknown"
	case p.Optional:
		return fmt.Sprintf("port %d, or none", p.Port)
	}
	return fmt.Sprintf("port %d", p.Port)
}

// readPods returns the node's pods, with the names of their devices in this network namespace.
func readPods(m *maps.Maps) ([]LocalPod, error) {
	rows, err := maps.PodRows(m.PodLinks, m.Pods)
	if err != nil {
		return nil, err
	}
	var list []LocalPod
	for i := range rows {
		row := &rows[i]
		p := LocalPod{
			Interface: row.Index, Addresses: row.Addrs, MAC: net.HardwareAddr(row.MAC[:]).String(), Unchecked: row.Unchecked, Proxy: row.Proxy, BBR: row.BBR,
		}
		if device, err := net.InterfaceByIndex(int(row.Index)); err == nil {
			p.Device = device.Name // on error the device is just gone, or this is another network namespace
		}
		list = append(list, p)
	}
	return list, nil
}
