package enforce

import (
	"fmt"
	"slices"
)

// extent is a range of rows of the map of runs.
type extent struct{ first, count uint32 }

// extents are the free ranges of an array, in order. No two of them meet.
type extents struct {
	free []extent
	size uint32 // of the array
}

// fullError says that a map has no room for what policies come to.
type fullError struct{ name string }

func (e fullError) Error() string {
	what := map[string]string{
		"policy_runs": "policies distinguish too many ports", "policy_pods": "the node has too many pods",
		"policy_regions": "policies name too many blocks of addresses", "policy_peers": "policies are about too many pods elsewhere",
	}[e.name]
	if what == "" {
		what = "policies tell too many sets of pods apart"
	}
	return fmt.Sprintf("the map %s is full: %s; those that were in force stay in force until there are fewer, or the pods that they select are on more nodes", e.name, what)
}

func newExtents(size uint32) *extents { return &extents{[]extent{{0, size}}, size} }

// extend makes the rows free that an array has gained.
func (e *extents) extend(size uint32) {
	e.give(extent{e.size, size - e.size})
	e.size = size
}

// find returns so many rows in sequence.
func (e *extents) find(count uint32) (extent, error) {
	for i := range e.free {
		if e.free[i].count < count {
			continue
		}
		found := extent{e.free[i].first, count}
		e.take(found)
		return found, nil
	}
	return extent{}, fullError{"policy_runs"}
}

// take marks rows as used. Some of them may be used already.
func (e *extents) take(used extent) {
	var left []extent
	for _, f := range e.free {
		if used.first > f.first {
			left = append(left, extent{f.first, min(f.count, used.first-f.first)})
		}
		if end, last := used.first+used.count, f.first+f.count; end < last {
			first := max(end, f.first)
			left = append(left, extent{first, last - first})
		}
	}
	e.free = slices.DeleteFunc(left, func(f extent) bool { return f.count == 0 })
}

// give makes rows free again.
func (e *extents) give(unused extent) {
	if unused.count == 0 {
		return
	}
	at, _ := slices.BinarySearchFunc(e.free, unused, func(f, u extent) int { return int(f.first) - int(u.first) })
	e.free = slices.Insert(e.free, at, unused)
	for i := max(at-1, 0); i+1 < len(e.free) && i <= at; {
		if e.free[i].first+e.free[i].count != e.free[i+1].first {
			i++
			continue
		}
		e.free[i].count += e.free[i+1].count
		e.free = slices.Delete(e.free, i+1, i+2)
	}
}
