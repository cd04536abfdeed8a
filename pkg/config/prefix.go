package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// parsePrefixes parses comma-separated networks.
func parsePrefixes(value string) ([]netip.Prefix, error) {
	if value == "" {
		return nil, nil
	}
	var list []netip.Prefix
	for text := range strings.SplitSeq(value, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || prefix.Addr().Is4In6() {
			return nil, fmt.Errorf("not a list of networks such as 10.244.1.0/24,fd00:1::/64: %q is not one",
				text)
		}
		list = append(list, prefix.Masked())
	}
	return list, nil
}

// apart accepts comma-separated networks that do not overlap.
func apart(value string) error {
	list, err := parsePrefixes(value)
	if err != nil {
		return err
	}
	for i, prefix := range list {
		for _, other := range list[:i] {
			if prefix.Overlaps(other) {
				return fmt.Errorf("not a list of separate networks: %s and %s overlap",
					other, prefix)
			}
		}
	}
	return nil
}

// primaryOrPrefixes accepts "primary", or at least one network.
func primaryOrPrefixes(value string) error {
	if value == "primary" {
		return nil
	}
	if list, err := parsePrefixes(value); err != nil || len(list) == 0 {
		return errors.New("neither primary nor a list of networks such as 192.0.2.0/24")
	}
	return nil
}

func prefixes(value string) error {
	_, err := parsePrefixes(value)
	return err
}

// autoOffOrPrefixes accepts "auto", "off", or at least one network.
func autoOffOrPrefixes(value string) error {
	if value == "auto" || value == "off" {
		return nil
	}
	if list, err := parsePrefixes(value); err != nil || len(list) == 0 {
		return errors.New("neither auto nor off nor a list of networks such as 10.96.0.0/12")
	}
	return nil
}
