package source

import (
	"net/netip"

	netutils "k8s.io/utils/net"
)

// parseAddr parses an address as leniently as the API server once did: numbers may have leading
// zeros and are decimal. An IPv4-mapped address becomes an IPv4 address.
func parseAddr(text string) (netip.Addr, bool) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return addr.Unmap(), true
	}
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return addr.Unmap(), ok
}

// parsePrefix parses a CIDR as leniently as parseAddr parses an address, and masks it.
func parsePrefix(text string) (netip.Prefix, bool) {
	_, cidr, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(cidr.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	bits, size := cidr.Mask.Size()
	if addr.Is4In6() && size == 128 {
		bits -= 96 // masking keeps the ffff of the mapping, so the mask covers it
	}
	prefix := netip.PrefixFrom(addr.Unmap(), bits)
	return prefix, prefix.IsValid()
}
