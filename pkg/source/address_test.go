package source

import (
	"net"
	"net/netip"
	"testing"

	netutils "k8s.io/utils/net"
	"pgregory.net/rapid"
)

// addressText draws texts that look much like addresses.
func addressText() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.StringMatching(`[0-9]{1,3}(\.[0-9]{1,4}){2,4}`),
		rapid.StringMatching(`(::ffff:)?[0-2]?[0-9]{1,2}(\.0?[0-9]{1,2}){3}(%[a-z]+)?`),
		rapid.StringMatching(`[0-9a-f:]{2,20}(%[a-z]+)?`),
		rapid.StringMatching(`[0-9a-f:.%/ ]{0,20}`),
	)
}

// TestParseAddrAsUpstream compares the parser with the one that kube-proxy uses.
func TestParseAddrAsUpstream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := addressText().Draw(t, "text")
		got, ok := parseAddr(text)
		want := netutils.ParseIPSloppy(text)
		if ok != (want != nil) {
			t.Fatalf("%q is an address: %v, upstream says %v", text, ok, want != nil)
		}
		if ok && !net.IP(got.AsSlice()).Equal(want) {
			t.Fatalf("%q is %s, upstream says %s", text, got, want)
		}
		if got.Is4In6() || got.Zone() != "" {
			t.Fatalf("%q is %s, which the maps have no form for", text, got)
		}
	})
}

func TestParsePrefixAsUpstream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := addressText().Draw(t, "text") + rapid.StringMatching(`/[0-9]{1,3}`).Draw(t, "bits")
		got, ok := parsePrefix(text)
		_, want, err := netutils.ParseCIDRSloppy(text)
		if ok != (err == nil) {
			t.Fatalf("%q is a prefix: %v, upstream says %v", text, ok, err == nil)
		}
		if !ok {
			return
		}
		if got != got.Masked() || got.Addr().Is4In6() {
			t.Fatalf("%q is %s, want it masked and unmapped", text, got)
		}
		for _, addr := range []netip.Addr{got.Addr(), last(got)} {
			// net.IP turns the last address of an IPv6 prefix that ends in the mapped range into an
			// IPv4 address.
			if !addr.Is4In6() && !want.Contains(addr.AsSlice()) {
				t.Fatalf("%q is %s, but upstream's has no %s", text, got, addr)
			}
		}
	})
}

func last(prefix netip.Prefix) netip.Addr {
	bytes := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < 8*len(bytes); bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(bytes)
	return addr
}

func TestParsePrefixUnmaps(t *testing.T) {
	for text, want := range map[string]string{
		"::ffff:10.1.2.3/104": "10.0.0.0/8",
		"::ffff:0.0.0.0/96":   "0.0.0.0/0",
		"::ffff:1.2.3.4/128":  "1.2.3.4/32",
		"::/0":                "::/0",
		"010.0.0.1/08":        "10.0.0.0/8",
	} {
		if got, ok := parsePrefix(text); !ok || got.String() != want {
			t.Errorf("%s is %s, %v; want %s", text, got, ok, want)
		}
	}
}
