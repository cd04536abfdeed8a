package podnet

import (
	"cmp"
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/cni"
)

// Stats is how a Network is doing.
type Stats struct {
	// Error is why no pod can be added; empty if one can.
	Error string
	CIDRs []netip.Prefix
	Pods  int // that are registered
	// Unchecked has how many of them may send under others' addresses.
	Unchecked int
	// Limited has how many of them may send or get only so much, and BBR how many have connections with that congestion control.
	Limited, BBR int
	// Rated has them by their device's index, the namespace's name among them.
	Rated map[uint32]cni.Pod
	// Waits is how many bytes may wait until pods with a rate may send or get them, and MostWaits how many of one of them.
	Waits, MostWaits uint64
	// Netkits has how many are at a netkit.
	Netkits int
	// Adopted names those whose records were lost, so that what the runtime asked for is not known, and Unknown those of which not
	// even enough is known to check what they send.
	Adopted, Unknown []string
	// Proxied has how many of them have a proxy, by where it listens; 0 for those whose proxy is not known.
	Proxied map[uint16]int
	// Families has how many addresses there are of IPv4, and of IPv6, as far as the node has any.
	Families  map[string]Count
	Reclaimed uint64 // attachments that nobody released, and that were taken back
	Mended    uint64 // pods whose routes were lost
}

// Count is how many addresses of a family are in which state.
type Count struct {
	Used, Cooling int
	Free          float64 // IPv6 has more than can be counted
}

// Stats returns how it is doing.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := Stats{Pods: len(n.records), Proxied: map[uint16]int{}, Rated: map[uint32]cni.Pod{}, Families: map[string]Count{}, Reclaimed: n.reclaimed, Mended: n.mended}
	if err := n.ready(0); err != nil {
		s.Error = err.Error()
	}
	for _, record := range n.records {
		if record.Unchecked {
			s.Unchecked++
		}
		if record.Rates.Limited() {
			s.Rated[uint32(record.Device.Index)] = record.Pod
		}
		if record.Device.Kind == cni.Netkit {
			s.Netkits++
		}
		if record.Adopted {
			s.Adopted = append(s.Adopted, nameOf(record.Pod, record.Device.Name))
		}
		if record.Proxy.Asked {
			s.Proxied[record.Proxy.Port]++
		}
	}
	s.Limited = n.podsWith(func(r *Record) bool { return r.Rates.Limited() })
	s.BBR = n.podsWith(func(r *Record) bool { return r.BBR })
	s.Waits, s.MostWaits = n.waits()
	for device, pod := range n.unknown {
		s.Unknown = append(s.Unknown, nameOf(pod, device))
	}
	slices.Sort(s.Adopted)
	slices.Sort(s.Unknown)
	n.leases.sweep()
	for _, p := range n.leases.pools {
		s.CIDRs = append(s.CIDRs, p.prefix)
		count := s.Families[familyOf(p.prefix.Addr())]
		count.Free += p.size()
		s.Families[familyOf(p.prefix.Addr())] = count
	}
	for addr, lease := range n.leases.all {
		count := s.Families[familyOf(addr)]
		if lease.Released == 0 {
			count.Used++
		} else {
			count.Cooling++
		}
		if n.leases.poolOf(addr) != nil {
			count.Free--
		}
		s.Families[familyOf(addr)] = count
	}
	return s
}

// podsWith returns how many pods have something, each counted once, however many interfaces it has.
func (n *Network) podsWith(has func(*Record) bool) int {
	pods := map[string]bool{}
	for name, record := range n.records {
		if has(record) {
			pods[podKey(name, record)] = true
		}
	}
	return len(pods)
}

// podKey returns what tells a pod from others; one whose owner is not known is told by its device.
func podKey(name string, record *Record) string {
	return "pod/" + cmp.Or(record.Owner.Container, name)
}

// How long what a pod sends and gets may have to wait: what would wait for longer the programs drop (bpf/lib/edt.h).
const (
	horizon  = 2 // seconds
	patience = 0.5
)

// waits returns how many bytes may wait of all pods, and of the one of which the most may. Who shares a rate and has none of his own is one with the others.
func (n *Network) waits() (all, most uint64) {
	of := map[string]uint64{}
	for name, record := range n.records {
		rates := record.Rates
		waits := rates.Out*horizon + uint64(float64(rates.In)*patience)
		switch {
		case rates.Out > 0:
		case rates.Share.OfNamespace > 0:
			of["shared/"+rates.Share.Namespace] = rates.Share.OfNamespace * horizon
		case rates.Share.OfNode > 0:
			of["shared"] = rates.Share.OfNode * horizon
		}
		pod := podKey(name, record)
		of[pod] = max(of[pod], waits)
	}
	for _, waits := range of {
		all, most = all+waits, max(most, waits)
	}
	return all, most
}

// nameOf returns what people know a pod by.
func nameOf(pod cni.Pod, device string) string {
	return cmp.Or(pod.String(), "the one at device "+device)
}

func familyOf(addr netip.Addr) string {
	if addr.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
