package observe

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

func (s *ServiceRanges) text() string {
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
