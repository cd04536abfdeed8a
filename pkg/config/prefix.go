package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// parsePrefixes reads networks with commas between them. They may not overlap: an address belongs to one.
func parsePrefixes(value string) ([]netip.Prefix, error) {
	if value == "" {
		return nil, nil
	}
	var list []netip.Prefix
	for text := range strings.SplitSeq(value, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("not a list of networks such as 10.244.1.0/24,fd00:1::/64: %q is none", text)
		}
		prefix = prefix.Masked()
		for _, other := range list {
			if prefix.Overlaps(other) {
				return nil, fmt.Errorf("not a list of networks that are apart: %s and %s overlap", other, prefix)
			}
		}
		list = append(list, prefix)
	}
	return list, nil
}

func prefixes(value string) error {
	_, err := parsePrefixes(value)
	return err
}
