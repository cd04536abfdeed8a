package reconcile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"fairlead.io/fairlead/pkg/lb"
	"fairlead.io/fairlead/pkg/maps"
	"fairlead.io/fairlead/pkg/model"
)

// ranges are the source ranges of one service in the trie, sorted.
type ranges struct {
	list []netip.Prefix
	// unsure says that an operation failed, perhaps half way, or that rows were damaged. Then all
	// wanted ranges are written again, and list holds what may be in the trie.
	unsure bool
}

func rangesOf(index uint32, list []netip.Prefix) []maps.Range {
	rows := make([]maps.Range, len(list))
	for i, prefix := range list {
		rows[i] = maps.Range{Service: index, Prefix: prefix}
	}
	return rows
}

// without returns the elements of list that are not in other; both are sorted.
func without(list, other []netip.Prefix) []netip.Prefix {
	var rest []netip.Prefix
	for _, prefix := range list {
		if _, found := slices.BinarySearchFunc(other, prefix, netip.Prefix.Compare); !found {
			rest = append(rest, prefix)
		}
	}
	return rest
}

// addRanges writes the new ranges of a service before its flag makes the programs check them, and
// for a new service before it is reachable at all. If that fails, the flag is set anyway: too few
// clients are let in then, rather than all.
func (r *rows) addRanges(s *service, w *lb.Service) error {
	fresh := s.ranges.fresh(w.SourceRanges)
	if len(fresh) == 0 {
		return nil
	}
	r.rangeEpochs.begin()
	if err := r.insertRanges(s.index, &s.ranges, fresh); err != nil {
		r.tables.Services[s.index].Flags |= maps.SourceRanges
		return fmt.Errorf("write the source ranges of %s: %w", w.ID, err)
	}
	return nil
}

// fresh returns the ranges that have to be written to get the wanted ones.
func (s *ranges) fresh(want []netip.Prefix) []netip.Prefix {
	if s.unsure {
		return want
	}
	return without(want, s.list)
}

func (r *rows) insertRanges(index uint32, s *ranges, fresh []netip.Prefix) error {
	err := r.tables.Ranges.Insert(rangesOf(index, fresh))
	s.list = slices.Concat(s.list, fresh)
	slices.SortFunc(s.list, netip.Prefix.Compare)
	s.list = slices.Compact(s.list)
	if err != nil {
		s.unsure = true
		return err
	}
	r.stats.Writes += uint64(len(fresh))
	return nil
}

// dropRanges deletes the ranges that a service should no longer have, after its flag was updated.
func (r *rows) dropRanges(s *service, want []netip.Prefix) error {
	gone := without(s.ranges.list, want)
	if len(gone) > 0 {
		r.rangeEpochs.begin()
	}
	if err := r.deleteRanges(s.index, &s.ranges, gone); err != nil {
		return fmt.Errorf("delete source ranges of service %d: %w", s.index, err)
	}
	return nil
}

// deleteRanges deletes rows that are no longer wanted and completes what insertRanges began.
func (r *rows) deleteRanges(index uint32, s *ranges, gone []netip.Prefix) error {
	if len(gone) > 0 {
		if err := r.tables.Ranges.Delete(rangesOf(index, gone)); err != nil {
			s.unsure = true
			return err
		}
		r.stats.Writes += uint64(len(gone))
		s.list = without(s.list, gone)
	}
	s.unsure = false
	return nil
}

// adoptRanges takes over the ranges of the services found in the maps. Ranges of no service are
// deleted at once: the next owner of their index would let those clients in.
func (r *rows) adoptRanges() error {
	var strays []maps.Range
	err := r.tables.Ranges.Each(func(row maps.Range) {
		if of := r.rangesAt(row.Service); of != nil {
			of.list = append(of.list, row.Prefix)
		} else {
			strays = append(strays, row)
		}
	})
	if err != nil {
		return fmt.Errorf("read the source ranges: %w", err)
	}
	for _, s := range r.reserved {
		slices.SortFunc(s.list, netip.Prefix.Compare)
	}
	for _, s := range r.byIndex {
		if s != nil {
			slices.SortFunc(s.ranges.list, netip.Prefix.Compare)
		}
	}
	if err := r.tables.Ranges.Delete(strays); err != nil {
		return fmt.Errorf("delete source ranges of no service: %w", err)
	}
	return nil
}

// compareRanges compares the ranges of a service with the trie, and returns how many rows it looked
// up.
func (v *verifier) compareRanges(c *check, u unit, s *service, w *lb.Service) int {
	if !slices.Equal(s.ranges.list, w.SourceRanges) {
		c.differ(u, "range", w.ID.String(), fmt.Sprintf("%d source ranges", len(w.SourceRanges)), fmt.Sprintf("%d", len(s.ranges.list)))
		return 0
	}
	return v.compareRows(c, u, s.index, w.ID.String(), s.ranges.list)
}

// compareRows finds ranges without a row, and returns how many it looked up.
func (v *verifier) compareRows(c *check, u unit, index uint32, where string, list []netip.Prefix) int {
	missing, first := 0, netip.Prefix{}
	for _, prefix := range list {
		has, err := v.tables.Ranges.Has(maps.Range{Service: index, Prefix: prefix})
		if err != nil {
			c.err = fmt.Errorf("verify the maps: %w", err)
			return 0
		}
		if has {
			continue
		}
		if missing++; missing == 1 {
			first = prefix
		}
	}
	if missing > 0 {
		c.differ(u, "range", where, first.String(), fmt.Sprintf("no row; %d of %d are missing", missing, len(list)))
	}
	return len(list)
}

// compareStray reports a row of the trie that its service does not want: it lets clients in.
func (v *verifier) compareStray(c *check, row maps.Range) {
	if of := v.rangesAt(row.Service); of != nil {
		if _, found := slices.BinarySearchFunc(of.list, row.Prefix, netip.Prefix.Compare); found {
			return
		}
	}
	has, err := v.tables.Ranges.Has(row) // the listed row may have gone since
	if err != nil {
		c.err = fmt.Errorf("verify the maps: %w", err)
		return
	}
	if !has {
		return
	}
	where, object := "service "+strconv.Itoa(int(row.Service)), model.Key{}
	if s := v.byService(row.Service); s != nil && s.object != nil {
		where, object = s.id().String(), s.object.key
	} else if s := v.reservedAt(row.Service); s != nil {
		where = s.where
	}
	c.differ(unit{kind: unitRange, object: object, stray: row}, "range", where, "no row", row.Prefix.String())
}

// mendRange makes the owner of an unwanted row due, or deletes the row if no service has its index.
func (v *verifier) mendRange(row maps.Range, object model.Key) error {
	of := v.rangesAt(row.Service)
	if of == nil {
		return v.tables.Ranges.Delete([]maps.Range{row})
	}
	at, found := slices.BinarySearchFunc(of.list, row.Prefix, netip.Prefix.Compare)
	if !found {
		of.list = slices.Insert(of.list, at, row.Prefix)
	}
	if s := v.reservedAt(row.Service); s != nil {
		s.due = true
	} else if v.byService(row.Service).object != nil {
		v.objects.store.MarkDirty(object)
	}
	return nil
}

// rangesAt returns the known ranges of a service index, or nil if there should be none.
func (r *rows) rangesAt(index uint32) *ranges {
	if s := r.reservedAt(index); s != nil {
		return &s.ranges
	}
	if s := r.byService(index); s != nil {
		return &s.ranges
	}
	return nil
}
