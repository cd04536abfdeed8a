package maps

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// Pod is a pod of this node whose network fairlead provides.
type Pod struct {
	Addrs     []netip.Addr
	Device    string // the host end
	Netkit    bool   // a netkit device, not a veth
	Index     uint32
	MAC       [6]byte // of the pod's end
	HostMAC   [6]byte
	Unchecked bool // may send from addresses it doesn't have
	Proxy     Proxy
	Rates     Rates
	// Pace is the index of the device whose rows account for this one's traffic too, if the pod has
	// several devices; 0 if this device has its own.
	Pace uint32
	BBR  bool // its connections use BBR, unless they choose another congestion control
	// Policy is whether a policy is about it, or it is not known yet whether one is.
	Policy bool
}

// Proxy says which proxy gets the connections that a pod opens. The zero value means none.
type Proxy struct {
	Asked    bool   `json:"asked,omitempty"`
	Port     uint16 `json:"port,omitempty"`     // where it listens; 0 if unknown: then nothing bypasses it
	Optional bool   `json:"optional,omitempty"` // connections go on directly while nothing listens
}

func (p Proxy) word() uint32 {
	word := uint32(p.Port)
	if p.Asked {
		word |= uint32(bpf.MapsPodProxyPOD_PROXIED)
	}
	if p.Optional {
		word |= uint32(bpf.MapsPodProxyPOD_PROXY_OPTIONAL)
	}
	return word
}

func proxyOf(word uint32) Proxy {
	return Proxy{
		Asked: word&uint32(bpf.MapsPodProxyPOD_PROXIED) != 0, Port: uint16(word), Optional: word&uint32(bpf.MapsPodProxyPOD_PROXY_OPTIONAL) != 0,
	}
}

func (p *Pod) link() bpf.MapsPodLink {
	row := bpf.MapsPodLink{Mac: p.MAC, Proxy: p.Proxy.word()}
	if p.Unchecked {
		row.Flags |= uint16(bpf.MapsPodFlagPOD_UNCHECKED)
	}
	if p.Policy {
		row.Flags |= uint16(bpf.MapsPodFlagPOD_POLICY)
	}
	return row
}

func (p *Pod) row() bpf.MapsPod {
	row := bpf.MapsPod{Ifindex: p.Index, Mac: p.MAC, HostMac: p.HostMAC, Proxy: p.Proxy.word()}
	if p.BBR {
		row.Flags |= uint32(bpf.MapsPodFlagPOD_BBR)
	}
	if p.Policy {
		row.Flags |= uint32(bpf.MapsPodFlagPOD_POLICY)
	}
	return row
}

func hasBBR(row *bpf.MapsPod) bool { return row.Flags&uint32(bpf.MapsPodFlagPOD_BBR) != 0 }

func hasPolicy(row *bpf.MapsPod) bool { return row.Flags&uint32(bpf.MapsPodFlagPOD_POLICY) != 0 }

// SetPods makes the maps of the node's pods equal to want and returns how many rows it changed.
// Rows that stay are never absent meanwhile.
func (m *Maps) SetPods(want []Pod) (changed int, err error) {
	if changed, err = m.SetRates(want); err != nil {
		return changed, err
	}
	links := make(map[uint32]bpf.MapsPodLink, len(want))
	addrs := make(map[Addr]bpf.MapsPod, len(want))
	for _, p := range want {
		links[p.Index] = p.link()
		for _, addr := range p.Addrs {
			addrs[AddrOf(addr)] = p.row()
		}
	}
	// A pod with an address may send, so its device is added before its addresses and removed after
	// them.
	n, err := putRows(m.PodLinks, links)
	changed += n
	if err == nil {
		n, err = putRows(m.Pods, addrs)
		changed += n
	}
	if err == nil {
		n, err = dropRows(m.Pods, addrs)
		changed += n
	}
	if err == nil {
		n, err = dropRows(m.PodLinks, links)
		changed += n
	}
	if err != nil {
		return changed, fmt.Errorf("write the node's pods: %w", err)
	}
	return changed, nil
}

// SetNative makes the map of the prefixes to which pods speak with their own addresses equal to
// want and returns how many rows it changed.
func (m *Maps) SetNative(want []netip.Prefix) (changed int, err error) {
	rows := make(map[bpf.MapsPrefixKey]uint32, len(want))
	for _, p := range want {
		rows[PrefixKey(p)] = 1
	}
	changed, err = putPrefixes(m.MasqSkip, rows)
	if err == nil {
		var n int
		n, err = dropRows(m.MasqSkip, rows)
		changed += n
	}
	if err != nil {
		return changed, fmt.Errorf("write the prefixes that are not masqueraded: %w", err)
	}
	return changed, nil
}

// PrefixKey returns a prefix as a key of the maps, in which IPv4 addresses are mapped.
func PrefixKey(p netip.Prefix) bpf.MapsPrefixKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return bpf.MapsPrefixKey{PrefixLen: uint32(bits), Addr: AddrOf(p.Masked().Addr())}
}

// PrefixOf returns the prefix of a key.
func PrefixOf(key bpf.MapsPrefixKey) netip.Prefix {
	addr, bits := NetipOf(key.Addr), int(key.PrefixLen)
	if addr.Is4() {
		bits -= 96
	}
	return netip.PrefixFrom(addr, bits)
}

// PodRows returns the pods according to the maps, one for each device, and one for each address
// whose device is not registered. Their Device is empty.
func PodRows(links, addrs *ebpf.Map) ([]Pod, error) {
	byDevice := map[uint32]*Pod{}
	var ifindex uint32
	var link bpf.MapsPodLink
	rows := links.Iterate()
	for rows.Next(&ifindex, &link) {
		byDevice[ifindex] = &Pod{
			Index: ifindex, MAC: link.Mac, Unchecked: link.Flags&uint16(bpf.MapsPodFlagPOD_UNCHECKED) != 0, Proxy: proxyOf(link.Proxy),
			Policy: link.Flags&uint16(bpf.MapsPodFlagPOD_POLICY) != 0,
		}
	}
	err := rows.Err()
	var list []Pod
	var addr Addr
	var row bpf.MapsPod
	rows = addrs.Iterate()
	for rows.Next(&addr, &row) {
		p := byDevice[row.Ifindex]
		if p == nil || p.MAC != row.Mac {
			list = append(list, Pod{Addrs: []netip.Addr{NetipOf(addr)}, Index: row.Ifindex, MAC: row.Mac, HostMAC: row.HostMac, Proxy: proxyOf(row.Proxy), BBR: hasBBR(&row), Policy: hasPolicy(&row)})
			continue
		}
		p.HostMAC, p.BBR = row.HostMac, hasBBR(&row)
		p.Addrs = append(p.Addrs, NetipOf(addr))
	}
	if err := errors.Join(err, rows.Err()); err != nil {
		return nil, fmt.Errorf("read the node's pods: %w", err)
	}
	for _, p := range byDevice {
		slices.SortFunc(p.Addrs, netip.Addr.Compare)
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), slices.CompareFunc(a.Addrs, b.Addrs, netip.Addr.Compare))
	})
	return list, nil
}

// NativeRows returns the prefixes to which pods speak with their own addresses, sorted.
func NativeRows(m *ebpf.Map) ([]netip.Prefix, error) {
	var list []netip.Prefix
	var key bpf.MapsPrefixKey
	var one uint32
	rows := m.Iterate()
	for rows.Next(&key, &one) {
		list = append(list, PrefixOf(key))
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the prefixes that are not masqueraded: %w", err)
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return list, nil
}

// putPrefixes is putRows for a trie, where a lookup might find a wider prefix than the key's.
func putPrefixes[V comparable](m *ebpf.Map, want map[bpf.MapsPrefixKey]V) (changed int, err error) {
	have := map[bpf.MapsPrefixKey]V{}
	var key bpf.MapsPrefixKey
	var row V
	rows := m.Iterate()
	for rows.Next(&key, &row) {
		have[key] = row
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for key, row := range want {
		if was, ok := have[key]; ok && was == row {
			continue
		}
		if err := m.Put(&key, &row); err != nil {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// putRows adds or updates the rows of want and returns how many it changed.
func putRows[K, V comparable](m *ebpf.Map, want map[K]V) (changed int, err error) {
	var have V
	for key, row := range want {
		err := m.Lookup(&key, &have)
		if err == nil && have == row {
			continue
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return changed, err
		}
		if err := m.Put(&key, &row); err != nil {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// dropRows deletes all rows that are not in want and returns how many it deleted.
func dropRows[K, V comparable](m *ebpf.Map, want map[K]V) (changed int, err error) {
	var key K
	var row V
	var gone []K
	rows := m.Iterate()
	for rows.Next(&key, &row) {
		if _, ok := want[key]; !ok {
			gone = append(gone, key)
		}
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, key := range gone {
		if err := m.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

// AddPod writes the rows of p and leaves those of other pods alone.
func (m *Maps) AddPod(p Pod) error {
	if err := m.setRate(&p); err != nil {
		return fmt.Errorf("write the rate of a pod: %w", err)
	}
	link, row := p.link(), p.row()
	if err := m.PodLinks.Put(&p.Index, &link); err != nil {
		return fmt.Errorf("write the device of a pod: %w", err)
	}
	for _, addr := range p.Addrs {
		key := AddrOf(addr)
		if err := m.Pods.Put(&key, &row); err != nil {
			return fmt.Errorf("write the address %s of a pod: %w", addr, err)
		}
	}
	return nil
}

// RemovePod deletes the rows of p, except those that belong to another pod by now. Absent rows are
// no error.
func (m *Maps) RemovePod(p Pod) error {
	var errs []error
	for _, addr := range p.Addrs {
		var have bpf.MapsPod
		key := AddrOf(addr)
		if err := m.Pods.Lookup(&key, &have); err != nil || have.Ifindex != p.Index {
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, err)
			}
			continue
		}
		if err := m.Pods.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	p.Rates = Rates{}
	errs = append(errs, m.setRate(&p))
	if err := m.PodLinks.Delete(&p.Index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove a pod: %w", err)
	}
	return nil
}
