package model

import "net/netip"

// Special says what is special about an address that names no single host on the network, or
// returns "". Such an address can neither be a Service's nor an endpoint's: to the kernel it means
// the node itself, everybody, or a neighbor on one link. A packet that a program sends on to it, or
// takes from it, would not be where anybody expects it.
func Special(addr netip.Addr) string {
	switch {
	case addr.Zone() != "":
		return "an address with a zone"
	case addr.Is4In6() || addr.Is6() && oldIPv4(addr):
		return "an IPv4 address written as IPv6"
	case addr.IsUnspecified():
		return "the unspecified address"
	case addr.IsLoopback():
		return "a loopback address"
	case addr.IsLinkLocalUnicast():
		return "a link-local address"
	case addr.IsMulticast():
		return "a multicast address"
	case addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	case addr.Is4() && addr.As4()[0] == 0:
		return "an address of the network 0.0.0.0/8"
	}
	return ""
}

// oldIPv4 reports whether an IPv6 address is an IPv4 address in one of the forms that are no longer
// in use: IPv4-compatible (::a.b.c.d) or IPv4-translated (::ffff:0:a.b.c.d).
func oldIPv4(addr netip.Addr) bool {
	b := addr.As16()
	compatible := [12]byte{}
	translated := [12]byte{8: 0xff, 9: 0xff}
	switch [12]byte(b[:12]) {
	case compatible:
		return b[12]|b[13] != 0 // neither :: nor ::1
	case translated:
		return true
	}
	return false
}
