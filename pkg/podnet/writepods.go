package podnet

import (
	"net"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
)

// firstOf returns the lowest index of a pod's devices. The programs count all traffic of the pod
// under it, whichever device it uses. A record without an owner, because it was lost, stands for
// itself.
func (n *Network) firstOf(record *Record) int {
	first := record.Device.Index
	for _, other := range n.records {
		if record.Owner.Container != "" && other.Owner.Container == record.Owner.Container {
			first = min(first, other.Device.Index)
		}
	}
	return first
}

// podOf translates a validated record for the programs. first is the lowest index of the pod's
// devices.
func podOf(record *Record, first int) maps.Pod {
	mac := func(text string) (addr [6]byte) {
		parsed, _ := net.ParseMAC(text)
		copy(addr[:], parsed)
		return addr
	}
	return maps.Pod{
		Addrs: record.Addresses, Device: record.Device.Name, Index: uint32(record.Device.Index), Netkit: record.Device.Kind == cni.Netkit,
		MAC: mac(record.Device.PodMAC), HostMAC: mac(record.Device.MAC), Unchecked: record.Unchecked, Proxy: record.Proxy,
		Rates: record.Rates, Pace: uint32(first), BBR: record.BBR, Policy: record.Policy,
	}
}

// writePods makes the programs know exactly the pods that exist.
func (n *Network) writePods() error {
	if n.cfg.Programs == nil {
		return nil
	}
	list, first := make([]maps.Pod, 0, len(n.records)), map[string]int{}
	for _, record := range n.records {
		if at, known := first[record.Owner.Container]; !known || record.Device.Index < at {
			first[record.Owner.Container] = record.Device.Index
		}
	}
	delete(first, "")
	for _, record := range n.records {
		list = append(list, podOf(record, first[record.Owner.Container]))
	}
	return n.cfg.Programs.SetPods(list)
}
