package reconcile

import (
	"fmt"
	"net/netip"

	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// reserved holds ranges of the cluster itself. The programs see them as source ranges of a reserved
// service index.
type reserved struct {
	ranges
	index uint32
	where string
	read  func(moves uint64) ([]netip.Prefix, uint64) // of the Store
	late  bool                                        // rows are only added once the sources are complete
	want  []netip.Prefix
	moves uint64 // the Store's count when it returned want
	due   bool   // rows have to be written or deleted
}

const (
	whereInside     = "the addresses inside the cluster"
	whereClusterIPs = "the ranges of ClusterIPs"
)

// newReserved returns the addresses inside the cluster, and the ranges of ClusterIPs: what leads
// nowhere there is refused, so before the sources are complete, Services that they have not
// delivered would be.
func newReserved(cfg *Config) []*reserved {
	return []*reserved{
		{index: maps.Inside, where: whereInside, read: cfg.Store.Inside, due: true},
		{index: maps.ClusterIPs, where: whereClusterIPs, read: cfg.Store.ClusterIPs, late: true, due: true},
	}
}

// reservedAt returns the ranges with a reserved index, or nil if the index is not reserved.
func (r *rows) reservedAt(index uint32) *reserved {
	for _, s := range r.reserved {
		if s.index == index {
			return s
		}
	}
	return nil
}

func (r *Reconciler) writeReserved() error {
	for _, s := range r.reserved {
		if err := r.writeRanges(s); err != nil {
			return err
		}
	}
	return nil
}

// writeRanges brings the rows up to date. It deletes none before the sources are complete.
func (r *Reconciler) writeRanges(s *reserved) error {
	if s.late && !r.synced {
		return nil
	}
	if list, moves := s.read(s.moves); moves != s.moves {
		s.want, s.moves, s.due = list, moves, true
		if s.index == maps.ClusterIPs {
			r.reportServiceCIDRs()
		}
	}
	if !s.due && !s.unsure {
		return nil
	}
	if fresh := s.fresh(s.want); len(fresh) > 0 {
		if err := r.insertRanges(s.index, &s.ranges, fresh); err != nil {
			return fmt.Errorf("write %s: %w", s.where, err)
		}
	}
	if !r.synced {
		return nil
	}
	if err := r.deleteRanges(s.index, &s.ranges, without(s.list, s.want)); err != nil {
		return fmt.Errorf("delete from %s: %w", s.where, err)
	}
	s.due = false
	return nil
}

// reportServiceCIDRs reports what is wrong with the ranges of ClusterIPs, and what no longer is.
func (r *Reconciler) reportServiceCIDRs() {
	list, _ := r.cfg.Store.ServiceCIDRs()
	bad := map[model.Key]*model.ServiceCIDR{}
	for _, object := range list {
		if len(object.Problems) > 0 {
			bad[model.Key{Kind: model.KindServiceCIDR, Name: model.Name{Name: object.Name}}] = object
		}
	}
	for key := range r.Problems() {
		if key.Kind == model.KindServiceCIDR && bad[key] == nil {
			r.problems.set(&object{key: key}, nil)
		}
	}
	for key, found := range bad {
		r.problems.set(&object{key: key, uid: found.UID}, found.Problems)
	}
}

// compareReserved compares the rows with the known ranges.
func (v *verifier) compareReserved(c *check, s *reserved) int {
	return v.compareRows(c, unit{kind: unitReserved, index: s.index}, s.index, s.where, s.list)
}
