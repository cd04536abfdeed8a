package lb

import (
	"net/netip"
	"slices"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// maxRanges bounds how much of the shared trie one Service can take, since each of its ports has
// rows of its own.
const maxRanges = 1 << 16

// rangesOf returns the source ranges of one family, sorted and deduplicated, at most as many as
// each port may have.
func (c *Compiler) rangesOf(service *model.Service, family model.Family) []netip.Prefix {
	if len(service.SourceRanges) == 0 || len(service.LoadBalancerIPs) == 0 {
		return nil
	}
	var list []netip.Prefix
	for _, prefix := range service.SourceRanges {
		if model.FamilyOf(prefix.Addr()) == family {
			list = append(list, prefix.Masked())
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	list = slices.Compact(list)
	if most := maxRanges / max(1, len(service.Ports)); len(list) > most {
		c.wanted.problem("TooManySourceRanges",
			"%d of %d loadBalancerSourceRanges of IPv%d are ignored, clients in them are not let in: ranges times ports can be %d, "+
				"merge ranges or use more Services", len(list)-most, len(list), family, maxRanges)
		list = list[:most]
	}
	return list
}

// guard applies the ranges to a port with load balancer addresses. If ranges is empty but not nil,
// because the limit left none, no client is let in.
func (s *Service) guard(ranges []netip.Prefix) {
	if ranges != nil && slices.ContainsFunc(s.Frontends, func(f Frontend) bool { return f.Kind == maps.LoadBalancer }) {
		s.SourceRanges = ranges
		s.Flags |= maps.SourceRanges
	}
}
