package podnet

import (
	"net"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
)

// firstOf returns the least index of a pod's devices, this one's among them: all that the pod sends and gets by any of them is counted there. Of one
// whose record was lost no others are known.
func (n *Network) firstOf(record *Record) int {
	first := record.Device.Index
	for _, other := range n.records {
		if record.Owner.Container != "" && other.Owner.Container == record.Owner.Container {
			first = min(first, other.Device.Index)
		}
	}
	return first
}

// podOf returns what the programs are told of a record, which was checked, of a pod whose first device has that index.
func podOf(record *Record, first int) maps.Pod {
	mac := func(text string) (addr [6]byte) {
		parsed, _ := net.ParseMAC(text)
		copy(addr[:], parsed)
		return addr
	}
	return maps.Pod{
		Addrs: record.Addresses, Device: record.Device.Name, Index: uint32(record.Device.Index), Netkit: record.Device.Kind == cni.Netkit,
		MAC: mac(record.Device.PodMAC), HostMAC: mac(record.Device.MAC), Unchecked: record.Unchecked, Proxy: record.Proxy,
		Rates: record.Rates, Pace: uint32(first), BBR: record.BBR,
	}
}

// tellPods makes the programs know the pods that there are, and no others.
func (n *Network) tellPods() error {
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
