package model

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// ServiceCIDR is a ServiceCIDR of Kubernetes: ranges from which Services get their ClusterIPs.
type ServiceCIDR struct {
	Name     string
	UID      string
	CIDRs    []netip.Prefix
	Problems []Problem
}

// The widest ranges that Services may have. A wider one is a mistake that would cut pods off.
const widestServices4, widestServices6 = 8, 32

// serviceRanges are the ranges for ClusterIPs.
type serviceRanges struct {
	*claims
	objects    map[string]*ServiceCIDR
	fixed      []netip.Prefix // by the agent's option, in place of the objects if isFixed
	isFixed    bool
	isOff      bool
	rangeMoves uint64 // counts changes of these
}

// FixServiceRanges gives the ranges for ClusterIPs, whatever ServiceCIDRs say. Without off, what
// leads nowhere is refused at known ClusterIPs as well.
func (s *serviceRanges) FixServiceRanges(list []netip.Prefix, off bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fixed, s.isFixed, s.isOff = list, true, off
	s.rangesMoved()
}

// SetServiceCIDR stores a new or changed ServiceCIDR.
func (s *serviceRanges) SetServiceCIDR(cidr *ServiceCIDR) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setServiceCIDR(cidr)
}

func (s *serviceRanges) setServiceCIDR(cidr *ServiceCIDR) {
	if !reflect.DeepEqual(s.objects[cidr.Name], cidr) {
		s.objects[cidr.Name] = cidr
		s.rangesMoved()
	}
}

// DeleteServiceCIDR forgets a ServiceCIDR.
func (s *serviceRanges) DeleteServiceCIDR(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[name] != nil {
		delete(s.objects, name)
		s.rangesMoved()
	}
}

// ReplaceServiceCIDRs makes the ServiceCIDRs exactly the given ones. Services do not depend on them,
// so the Store counts as synced even if no source delivers any.
func (s *serviceRanges) ReplaceServiceCIDRs(cidrs []*ServiceCIDR) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.objects
	s.objects = make(map[string]*ServiceCIDR, len(cidrs))
	for _, cidr := range cidrs {
		s.objects[cidr.Name] = cidr
	}
	if !reflect.DeepEqual(was, s.objects) {
		s.rangesMoved()
	}
}

func (s *serviceRanges) rangesMoved() {
	s.rangeMoves++
	signal(s.wake)
}

// OptionServiceCIDRs is the name under which the ranges of the agent's option are listed.
const OptionServiceCIDRs = "option service-cidrs"

// ServiceCIDRs returns every ServiceCIDR by name, or one with the ranges of the agent's option, and
// whether anything that leads nowhere is refused. Ranges that cannot be those of Services are left
// out, with a problem.
func (s *serviceRanges) ServiceCIDRs() (list []*ServiceCIDR, refuses bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.serviceCIDRs(), !s.isOff
}

func (s *serviceRanges) serviceCIDRs() (list []*ServiceCIDR) {
	if s.isFixed {
		return []*ServiceCIDR{s.fitForServices(&ServiceCIDR{Name: OptionServiceCIDRs, CIDRs: s.fixed})}
	}
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		list = append(list, s.fitForServices(s.objects[name]))
	}
	return list
}

// fitForServices returns a ServiceCIDR without the ranges that cannot be those of Services.
func (s *serviceRanges) fitForServices(object *ServiceCIDR) *ServiceCIDR {
	fit := &ServiceCIDR{Name: object.Name, UID: object.UID, Problems: slices.Clip(object.Problems)}
	for _, cidr := range object.CIDRs {
		why := s.unfitForServices(cidr)
		if why == "" {
			fit.CIDRs = append(fit.CIDRs, cidr)
			continue
		}
		fit.Problems = append(fit.Problems, Problem{"ServiceCIDRIgnored",
			fmt.Sprintf("what is sent to nobody in %s is not refused: %s", cidr, why)})
	}
	return fit
}

// unfitForServices says why a range cannot be one of ClusterIPs, or returns "": everything else in
// it would be refused.
func (s *serviceRanges) unfitForServices(cidr netip.Prefix) string {
	wide := widestServices6
	if cidr.Addr().Is4() {
		wide = widestServices4
	}
	if cidr.Bits() < wide {
		return "it is too wide for a range of Services"
	}
	var found []string
	for name, node := range s.nodes {
		if slices.ContainsFunc(node.Addrs, cidr.Contains) || slices.ContainsFunc(node.PodCIDRs, cidr.Overlaps) {
			found = append(found, name)
		}
	}
	if len(found) == 0 {
		return ""
	}
	return "it has addresses of node " + slices.MinFunc(found, strings.Compare) + " or of its pods"
}

// ClusterIPs returns the sorted ranges in which what is for no Service leads nowhere: those for
// ClusterIPs, and the ClusterIPs outside of them. The number moves is as for Inside.
func (s *serviceRanges) ClusterIPs(known uint64) (list []netip.Prefix, moves uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	moves = s.rangeMoves + s.clusterIPMoves + s.moved
	if moves == known {
		return nil, known
	}
	if s.isOff {
		return nil, moves
	}
	for _, object := range s.serviceCIDRs() {
		list = append(list, object.CIDRs...)
	}
	wide := slices.Clone(list)
	for addr := range s.clusterIPs {
		inRange := slices.ContainsFunc(wide, func(cidr netip.Prefix) bool { return cidr.Contains(addr) })
		if !inRange && Special(addr) == "" && !s.isInside(addr) {
			list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	return slices.Compact(list), moves
}

// isInside reports whether an address is a node's or a pod's there, as far as Nodes tell.
func (s *claims) isInside(addr netip.Addr) bool {
	x := &s.nodeIndex
	if !x.built {
		x.build(s.nodes)
	}
	_, ofNode := x.addrs[addr]
	_, ofPod := x.pod(addr)
	return ofNode || ofPod
}
