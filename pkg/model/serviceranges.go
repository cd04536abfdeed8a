package model

import (
	"fmt"
	"net/netip"
	"strings"
)

// ServiceRanges are the ranges from which Services get their ClusterIPs.
type ServiceRanges struct {
	Refuses bool           `json:"refuses"` // whether what is sent to nobody there is refused
	Ranges  []netip.Prefix `json:"ranges,omitempty"`
}

// ServiceRanges returns the ranges from which Services get their ClusterIPs.
func (s *serviceRanges) ServiceRanges() *ServiceRanges {
	objects, refuses := s.ServiceCIDRs()
	ranges := &ServiceRanges{Refuses: refuses}
	for _, object := range objects {
		ranges.Ranges = append(ranges.Ranges, object.CIDRs...)
	}
	return ranges
}

// Text returns the line shown in the status of the node.
func (s *ServiceRanges) Text() string {
	if !s.Refuses {
		return "ClusterIPs that nobody has are not refused: --service-cidrs=off"
	}
	if len(s.Ranges) == 0 {
		return "ports that a ClusterIP does not have are refused; ClusterIPs that nobody has are not: the cluster has no ServiceCIDRs that the agent may read, and --service-cidrs names no networks"
	}
	words := make([]string, len(s.Ranges))
	for i, cidr := range s.Ranges {
		words[i] = cidr.String()
	}
	return fmt.Sprintf("ClusterIPs are from %s, where what is sent to nobody is refused", strings.Join(words, ", "))
}
