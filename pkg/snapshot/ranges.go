package snapshot

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"fairlead.io/fairlead/pkg/maps"
)

// readRanges assigns the source ranges to the services that check them. The services must have been
// read.
func (s *Snapshot) readRanges(table Ranges) error {
	if table == nil {
		return nil
	}
	services := map[uint32]*Service{}
	for i := range s.Services {
		if service := &s.Services[i]; service.Has(FlagSourceRanges) {
			services[service.Index] = service
		}
	}
	err := table.Each(func(r maps.Range) {
		switch service := services[r.Service]; {
		case service != nil:
			service.SourceRanges = append(service.SourceRanges, r.Prefix)
		case r.Service == maps.Inside:
			s.Inside = append(s.Inside, r.Prefix)
		case r.Service == maps.ClusterIPs:
			s.ClusterIPs = append(s.ClusterIPs, r.Prefix)
		default:
			s.Strays = append(s.Strays, SourceRange{r.Service, r.Prefix})
		}
	})
	for _, service := range services {
		slices.SortFunc(service.SourceRanges, netip.Prefix.Compare)
	}
	slices.SortFunc(s.Inside, netip.Prefix.Compare)
	slices.SortFunc(s.ClusterIPs, netip.Prefix.Compare)
	slices.SortFunc(s.Strays, compareRanges)
	return err
}

func compareRanges(a, b SourceRange) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), a.Range.Compare(b.Range))
}

// Ranges returns every row of src_ranges, by the index of its service.
func (s *Snapshot) Ranges() []SourceRange {
	list := append([]SourceRange{}, s.Strays...)
	for _, prefix := range s.Inside {
		list = append(list, SourceRange{maps.Inside, prefix})
	}
	for _, prefix := range s.ClusterIPs {
		list = append(list, SourceRange{maps.ClusterIPs, prefix})
	}
	for i := range s.Services {
		for _, prefix := range s.Services[i].SourceRanges {
			list = append(list, SourceRange{s.Services[i].Index, prefix})
		}
	}
	slices.SortFunc(list, compareRanges)
	return list
}

// shownRanges is how many source ranges of a service are shown in a line.
const shownRanges = 16

// RangesText lists the ranges that a service admits.
func RangesText(service *Service) string {
	list := service.SourceRanges
	if len(list) == 0 {
		return "none, so no client is admitted"
	}
	words := make([]string, 0, shownRanges)
	for _, prefix := range list[:min(len(list), shownRanges)] {
		words = append(words, prefix.String())
	}
	if more := len(list) - shownRanges; more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, " ")
}
