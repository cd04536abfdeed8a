package podnet

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"fairlead.io/fairlead/pkg/cni"
	"fairlead.io/fairlead/pkg/maps"
)

// Stats is the state of a Network.
type Stats struct {
	// Error is why no pod can be added; empty if pods can be.
	Error string
	CIDRs []netip.Prefix
	Pods  int // registered interfaces
	// Unchecked counts the pods that may send from addresses of others.
	Unchecked int
	// Limited counts the pods that have a rate, and BBR those whose connections use that congestion
	// control.
	Limited, BBR int
	// Rated names the pods that have a rate, by the index of their devices.
	Rated map[uint32]cni.Pod
	// Waits is how many bytes of all rate-limited pods may be queued at once, and MostWaits how
	// many of a single pod or share.
	Waits, MostWaits uint64
	// Netkits counts the pods whose device is a netkit.
	Netkits int
	// Adopted names the pods whose records were lost, so that what the runtime asked for is not
	// known, and Unknown those of which too little is known to check what they send.
	Adopted, Unknown []string
	// Proxied counts the pods that have a proxy, by the port it listens on; 0 if that is not known.
	Proxied map[uint16]int
	// Families counts the addresses of IPv4 and IPv6, as far as the node has any.
	Families  map[string]AddressCount
	Reclaimed uint64 // attachments that nobody released, and the agent did
	Mended    uint64 // pods whose routes or neighbors were lost
}

// AddressCount is how many addresses of a family are in each state.
type AddressCount struct {
	Used    int     `json:"used"`
	Cooling int     `json:"cooling"`
	Free    float64 `json:"free"` // a float, since IPv6 has more than an integer holds
}

// Stats returns the current state.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := Stats{Pods: len(n.records), Proxied: map[uint16]int{}, Rated: map[uint32]cni.Pod{}, Families: map[string]AddressCount{}, Reclaimed: n.reclaimed, Mended: n.mended}
	if err := n.addable(0); err != nil {
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

// podsWith returns how many pods have an interface that satisfies has, counting each pod once.
func (n *Network) podsWith(has func(*Record) bool) int {
	pods := map[string]bool{}
	for name, record := range n.records {
		if has(record) {
			pods[podKey(name, record)] = true
		}
	}
	return len(pods)
}

// podKey returns a key that identifies a pod, by its device if its owner is not known.
func podKey(name string, record *Record) string {
	return "pod/" + cmp.Or(record.Owner.Container, name)
}

// waiting returns how many bytes wait at most at a rate.
func waiting(rate uint64, most time.Duration) uint64 { return uint64(float64(rate) * most.Seconds()) }

// waits returns how many bytes may be queued of all pods, and the most of a single one. All pods
// that send within a shared rate, and have none of their own, count as one.
func (n *Network) waits() (all, most uint64) {
	of := map[string]uint64{}
	for name, record := range n.records {
		rates := record.Rates
		waits := waiting(rates.Out, maps.Horizon) + waiting(rates.In, maps.Patience)
		switch {
		case rates.Out > 0:
		case rates.Share.OfNamespace > 0:
			of["shared/"+rates.Share.Namespace] = waiting(rates.Share.OfNamespace, maps.Horizon)
		case rates.Share.OfNode > 0:
			of["shared"] = waiting(rates.Share.OfNode, maps.Horizon)
		}
		pod := podKey(name, record)
		of[pod] = max(of[pod], waits)
	}
	for _, waits := range of {
		all, most = all+waits, max(most, waits)
	}
	return all, most
}

// nameOf returns the name that people know a pod by.
func nameOf(pod cni.Pod, device string) string {
	return cmp.Or(pod.String(), "the pod at device "+device)
}

func familyOf(addr netip.Addr) string {
	if addr.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
