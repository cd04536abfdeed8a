package datapath

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// NodePortAddrs says at which of the node's addresses clients outside reach NodePorts. The zero value means
// at none.
type NodePortAddrs struct {
	primary  bool
	prefixes []netip.Prefix
}

// ParseNodePortAddrs parses "primary", for the node's first address of each family, or a list of prefixes.
func ParseNodePortAddrs(text string) (NodePortAddrs, error) {
	if text == "primary" {
		return NodePortAddrs{primary: true}, nil
	}
	var r NodePortAddrs
	for item := range strings.SplitSeq(text, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(item))
		if err != nil {
			return NodePortAddrs{}, fmt.Errorf("%q is neither \"primary\" nor a prefix such as 192.0.2.0/24", item)
		}
		r.prefixes = append(r.prefixes, prefix.Masked())
	}
	return r, nil
}

func (r NodePortAddrs) has(addr netip.Addr, first primary) bool {
	if r.primary {
		return slices.Contains(first[:], addr)
	}
	return slices.ContainsFunc(r.prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}
