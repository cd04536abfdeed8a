package maps

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"fairlead.io/fairlead/pkg/bpf"
)

// Range is a range of clients that a service accepts.
type Range struct {
	Service uint32
	Prefix  netip.Prefix
}

// Inside stands in for a service: its ranges are the cluster's own addresses.
const Inside = uint32(0)

// ClusterIPs stands in for a service likewise: its ranges are those from which Services get their
// ClusterIPs, and ClusterIPs outside of these. What leads nowhere there is refused.
const ClusterIPs = ^uint32(0)

// rangeBatch is how many rows one system call transfers.
const rangeBatch = 4096

// mappedBits is the length of the prefix that IPv4-mapped addresses share.
const mappedBits = 128 - 32

func rangeKey(r Range) (key bpf.MapsRangeKey, bits uint32) {
	bits = uint32(r.Prefix.Bits())
	if r.Prefix.Addr().Is4() {
		bits += mappedBits
	}
	return bpf.MapsRangeKey{
		PrefixLen: uint32(bpf.MapsRangeBitsRANGE_SERVICE_BITS) + bits, Service: r.Service, Addr: AddrOf(r.Prefix.Masked().Addr()),
	}, bits
}

// rangeOf is the inverse of rangeKey. A prefix shorter than that of IPv4-mapped addresses is an
// IPv6 prefix.
func rangeOf(key bpf.MapsRangeKey) Range {
	bits, addr := int(key.PrefixLen)-int(bpf.MapsRangeBitsRANGE_SERVICE_BITS), NetipOf(key.Addr)
	switch {
	case addr.Is4() && bits >= mappedBits:
		bits -= mappedBits
	case addr.Is4():
		addr = netip.AddrFrom16(addr.As16())
	}
	return Range{key.Service, netip.PrefixFrom(addr, bits)}
}

// RangeTable is the trie of source ranges. It does not own its map.
type RangeTable struct {
	m *ebpf.Map
}

// NewRangeTable returns a table over a map with the layout of src_ranges.
func NewRangeTable(m *ebpf.Map) *RangeTable { return &RangeTable{m} }

// Insert adds ranges, which may exist already. If it fails, some may have been added.
func (t *RangeTable) Insert(ranges []Range) error {
	for len(ranges) > 0 {
		n := min(len(ranges), rangeBatch)
		keys, rows := make([]bpf.MapsRangeKey, n), make([]uint32, n)
		for i, r := range ranges[:n] {
			keys[i], rows[i] = rangeKey(r)
		}
		_, err := t.m.BatchUpdate(keys, rows, nil)
		if errors.Is(err, ebpf.ErrNotSupported) {
			err = t.insertSingly(keys, rows)
		}
		if err != nil {
			return fmt.Errorf("insert source ranges: %d left: %w", len(ranges), err)
		}
		ranges = ranges[n:]
	}
	return nil
}

func (t *RangeTable) insertSingly(keys []bpf.MapsRangeKey, rows []uint32) error {
	for i := range keys {
		if err := t.m.Update(&keys[i], &rows[i], ebpf.UpdateAny); err != nil {
			return fmt.Errorf("insert source range %s: %w", rangeOf(keys[i]).Prefix, err)
		}
	}
	return nil
}

// Delete deletes ranges, which need not exist. If it fails, some may have been deleted.
func (t *RangeTable) Delete(ranges []Range) error {
	for _, r := range ranges {
		key, _ := rangeKey(r)
		if err := t.m.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete source range %s: %w", r.Prefix, err)
		}
	}
	return nil
}

// Has reports whether a range has a row of its own. A wider range that contains it does not count.
func (t *RangeTable) Has(r Range) (bool, error) {
	key, bits := rangeKey(r)
	var found uint32
	err := t.m.Lookup(&key, &found)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up source range %s: %w", r.Prefix, err)
	}
	return found == bits, nil
}

// Allows returns the narrowest range of a service that contains client, and false if there is none.
func (t *RangeTable) Allows(service uint32, client netip.Addr) (netip.Prefix, bool, error) {
	key := bpf.MapsRangeKey{PrefixLen: uint32(bpf.MapsRangeBitsRANGE_BITS), Service: service, Addr: AddrOf(client)}
	var bits uint32
	err := t.m.Lookup(&key, &bits)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return netip.Prefix{}, false, nil
	}
	if err != nil {
		return netip.Prefix{}, false, fmt.Errorf("look up the source range of %s: %w", client, err)
	}
	key.PrefixLen = uint32(bpf.MapsRangeBitsRANGE_SERVICE_BITS) + bits
	return rangeOf(key).Prefix.Masked(), true, nil
}

// Each calls visit with every range, in no order. Ranges written meanwhile may be missed.
func (t *RangeTable) Each(visit func(Range)) error {
	var key bpf.MapsRangeKey
	var bits uint32
	rows := t.m.Iterate()
	for rows.Next(&key, &bits) {
		visit(rangeOf(key))
	}
	if err := rows.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("list source ranges: %w", err)
	}
	return nil
}
